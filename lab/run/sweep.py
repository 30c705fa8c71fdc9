"""Many settings of a few knobs under one load, within a limit of time: `python -m lab sweep`.

Every combination of the knobs' levels is a cell of the run. A grid measures them one after the other; a guided sweep
lets Optuna (its multi-objective TPE) choose the next from what the others gave, which pays from three knobs on, where
a grid no longer fits into the time. What does not load, or fails, stays in the list as infeasible, with why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from lab.errors import InputError, ModelError
from lab.measure.pareto import Direction
from lab.measure.words import format_metric, level_label, metric_label
from lab.run import gauge, results
from lab.run.bench import Bench
from lab.run.folder import RunFolder
from lab.run.plan import Block, cell_blocks
from lab.run.runner import Stop
from lab.run.serving import serving
from lab.run.swept import better
from lab.run.turn import Report, turn
from lab.spec import Experiment, plain

MOST_CELLS = 512


def check(experiment: Experiment, minutes: float) -> None:
    """InputError for what cannot be swept in any time, or in none."""
    if not minutes > 0:
        raise InputError(f"--minutes {minutes:g}: allowed is a time above 0")
    if len(experiment.cells()) > MOST_CELLS:
        raise InputError(f"{len(experiment.cells())} combinations; allowed: up to {MOST_CELLS}")


def run(
    experiment: Experiment,
    folder: RunFolder,
    *,
    guided: bool,
    minutes: float,
    stop: Stop,
    report: Report,
    url: str | None,
) -> dict[str, Any]:
    """Measure into `folder`, and end it; the document's "sweep". LabError when nothing can be measured."""
    with turn(folder, "sweep", stop, report), serving(url, folder) as server:
        folder.event("serving", triton=server.version(), grpc_url=server.grpc_url, managed=bool(server.managed))
        folder.event("sweep", guided=guided, minutes=minutes)
        cells = len(experiment.cells())
        workers = gauge.load_workers(experiment, folder, server, 60 * minutes, report)
        with Bench(folder, server, workers=workers, cells=cells, stopped=stop) as bench:
            _sweep(experiment, folder, bench, guided, 60 * minutes, stop, report)
    return dict(results.document(folder)["sweep"])


def _sweep(
    experiment: Experiment,
    folder: RunFolder,
    bench: Bench,
    guided: bool,
    seconds: float,
    stop: Stop,
    report: Report,
) -> None:
    blocks = {block.cell: block for block in cell_blocks(experiment) if block.repeat == 0}
    figures = better(experiment)
    order = _guided(experiment, figures) if guided else _grid(experiment)
    began, measured = time.monotonic(), 0
    answer: dict[str, float | None] | None = None
    while time.monotonic() - began < seconds and not stop():
        cell = order.send(answer)
        if cell is None:
            return
        block = blocks[cell]
        label = _label(experiment, cell)
        report(f"{measured + 1}: {label}")
        share = min((time.monotonic() - began) / seconds, 0.99)
        folder.set_status(state="running", phase=f"setting {measured + 1}: {label}", progress=share)
        answer = dict.fromkeys(figures)
        try:
            bench.block(measured, Block("cell", cell, 0, block.model, block.workload), on_tick=lambda *_: None)
        except ModelError as error:
            folder.event("infeasible", cell=cell, text=str(error))
            report(f"  infeasible: {error}")
            continue
        summary = results.block_results(folder, experiment)[-1].summary
        answer = {name: getattr(summary, name) for name in figures}
        told = [f"{metric_label(name)} {format_metric(name, value)}" for name, value in answer.items()]
        report(f"  {', '.join(told)}")
        measured += 1


Order = Any
"""A generator of cells, sent the figures of each: None before the first, and None at its end."""


def _grid(experiment: Experiment) -> Order:
    def cells() -> Iterator[int | None]:
        cell = 0
        while cell < len(experiment.cells()):  # `yield from` would pass on the figures that it is sent
            yield cell
            cell += 1
        yield None

    return cells()


def _guided(experiment: Experiment, figures: dict[str, Direction]) -> Order:
    """Optuna asks, each combination once."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions: list[Any] = ["maximize" if way == "higher" else "minimize" for way in figures.values()]
    sampler = optuna.samplers.TPESampler(seed=experiment.workload.seed, n_startup_trials=5)
    study = optuna.create_study(directions=directions, sampler=sampler)
    knobs = {path: range(len(levels)) for path, levels in experiment.factors.items()}
    at = {tuple(_positions(experiment, cell)): cell for cell in range(len(experiment.cells()))}
    left = dict(at)

    def cells() -> Any:
        while left:
            trial = study.ask({p: optuna.distributions.CategoricalDistribution(list(n)) for p, n in knobs.items()})
            wanted = tuple(trial.params[path] for path in knobs)
            if wanted not in left:  # asked for again: the untried one that differs in the fewest knobs
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                wanted = min(left, key=lambda other: (sum(a != b for a, b in zip(other, wanted, strict=True)), other))
                study.enqueue_trial(dict(zip(knobs, wanted, strict=True)))
                continue
            answer = yield left.pop(wanted)
            values = [None if answer is None else answer.get(name) for name in figures]
            if any(value is None for value in values):
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, [float(value) for value in values if value is not None])
        yield None

    return cells()


def _positions(experiment: Experiment, cell: int) -> list[int]:
    """Which level of each knob a cell has; cells are in the order of the product, the last knob varying fastest."""
    found = []
    for levels in reversed(list(experiment.factors.values())):
        cell, position = divmod(cell, len(levels))
        found.append(position)
    return found[::-1]


def _label(experiment: Experiment, cell: int) -> str:
    factors = experiment.cells()[cell].factors
    return ", ".join(level_label(path, plain(level)) for path, level in factors.items())
