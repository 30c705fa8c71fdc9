"""The planner on blocks of this machine that it had not seen, beside how far the machine is from itself.

    .venv/bin/python benchmarks/planner.py [--json] [--short] [--only MODEL]

About half an hour: digits 15, sleeper 8, language 9 by --only; --short is a quarter of it, and rough.

A machine's speed moves by tens of percent within a minute, so calibrating and held-out blocks take turns, in several
rounds, each in an order of its own, so that what a block leaves behind (a warm cache, a clock that is throttled) falls
on all alike. A held-out block gives the planner its arrivals and nothing else. What it costs to serve comes from
calibrating blocks (of a language model its speed from those that ran around it), which were taken at other rates, and
for "unfitted" rows with another batch size, delay or precision.

What is judged is a setting at a rate: all of its blocks put together, the predicted ones and the measured ones. Their
percentile is the best that is known of the setting's true one; it has noise of its own, which no model can beat: how
far its two halves, of every other round, are from each other (A/A) is told beside. Rows give the median over settings,
and the worst. Loads are shares, up to 85 %, of the saturation that the same session measures in each round: requests a
second of users who ask again at once, more of them than are served at a time. Rows "in its own machine's time" tell how
much of an error is the queue's model, and how much is that nobody can know beforehand how fast a shared machine will be
just then: held-out blocks are replayed at the speed that they themselves had from moment to moment.

Three models: digits (real batches), a sleeper (its time is known) and a language model (continuous batching). Of the
first and the last also what a move of a slider on the page Plan takes to compute, once the run is calibrated.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.bench import own_home
from benchmarks.planner_blocks import Asks, Blocks, Plan, digits, language_model, measuring, sleeper
from benchmarks.table import Row, main, say
from lab.measure import ledger
from lab.measure.floors import Machine
from lab.measure.percentile import needed, percentile
from lab.measure.planner import answers, heldout, limits, scaling
from lab.measure.planner.calibrated import Calibrated
from lab.measure.planner.calibration import Measured
from lab.measure.planner.calibrator import Calibrator
from lab.measure.planner.engine_calibrator import EngineCalibrator, engine_steps
from lab.measure.planner.heldout import Trust
from lab.measure.planner.limits import Surroundings
from lab.measure.planner.prediction import SimulatedRun, put_together
from lab.measure.planner.scaling import Format
from lab.measure.planner.service import Service
from lab.measure.planner.setting import Ranges, Setting
from lab.measure.planner.steps import Steps
from lab.serve import installation, weights
from lab.spec import ModelSpec, Precision, Slo
from lab.watch.probe import probe

SHORT = "--short" in sys.argv
ONLY = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None
PERCENTILES = {"p95": 0.95, "p99": 0.99}
LATELY = 3
"""Rounds whose saturation, the middle one, is what a block's rate is a share of: a machine drifts."""
NEAR_FULL = 0.8
"""Share of saturation from which on a row of its own tells how far off the model is there."""
GOALS = {"throughput": 0.05, "p95": 0.09, "p99": 0.20, "unfitted p95": 0.15}


@dataclass(frozen=True)
class Held:
    """A held-out block and simulated runs of it; `load_fraction`: what it was asked ÷ what the model says the server
    can do; `own_time`: runs at the speed that it had itself, none of a language model, whose steps are not recorded."""

    asks: Asks
    round: int
    measured: Measured
    simulated: Sequence[SimulatedRun]
    load_fraction: float
    own_time: Sequence[SimulatedRun] = ()


def measure() -> list[Row]:
    installation.fetch()
    plans = [plan for plan in (digits(), sleeper(), language_model()) if ONLY is None or plan.name.startswith(ONLY)]
    if not plans:
        raise SystemExit(f"--only {ONLY!r}: allowed: digits, sleeper, language")
    models = {asks.model.name: asks.model for plan in plans for asks in (*plan.calibrating, *plan.held_out)}
    for model in models.values():
        weights.prepare(model)
    with own_home():
        machine = _machine()
        rows = []
        for plan in plans:
            with measuring(plan) as blocks:
                found, model = held(plan, blocks, machine)
            rows += report(plan, found)
            if plan.name != "sleeper":
                rows.append(slider(plan, model))
        return rows


def _machine() -> Machine:
    found = probe()
    rates = {"fp32": found.matmul_fp32_flop_s, "bf16": found.matmul_bf16_flop_s, "int8": found.matmul_int8_op_s}
    return Machine(found.read_bandwidth_bytes_s, rates)


def held(plan: Plan, blocks: Blocks, machine: Machine) -> tuple[list[Held], Calibrated]:
    """(held-out blocks with their predictions, what a page would plan with)."""
    saturations: dict[str, list[float]] = {}
    calibrating: list[Measured] = []
    asked: list[tuple[Asks, int, Measured]] = []

    def measured(asks: Asks, seed: int) -> Measured:
        seconds = plan.held_seconds if asks in plan.held_out else plan.seconds
        lately = {name: statistics.median(found[-LATELY:]) for name, found in saturations.items()}
        one = blocks.measure(asks, seconds / (2 if SHORT else 1), lately, seed)
        if asks.users is not None:
            saturations.setdefault(asks.label, []).append(one.summary.throughput_rps or 0.0)
        return one

    for asks in plan.calibrating:
        if asks.users is not None:
            calibrating.append(measured(asks, seed=0))
    for number in range(2 if SHORT else plan.rounds):
        for asks in plan.order(number):
            if asks in plan.held_out:
                asked.append((asks, number, measured(asks, 1000 * (1 + plan.held_out.index(asks)) + number)))
            else:
                calibrating.append(measured(asks, seed=1 + number))
        told = ", ".join(f"{name} {found[-1]:,.1f} req/s" for name, found in saturations.items())
        say(f"{plan.name}, round {number + 1}: {told}")
    predict = _engine(calibrating, machine) if plan.name == "language model" else _batches(calibrating)
    timed = None if plan.name == "language model" else Calibrator([*calibrating, *(one for _, _, one in asked)])
    found = []
    for asks, number, one in asked:
        server = predict(one, sorted(calibrating, key=lambda other: abs(other.number - one.number))[: plan.near])
        load = (one.summary.offered_rps or 0.0) / heldout.capacity(one, server)
        runs, own_time = heldout.replays(one, server), list[SimulatedRun]()
        if timed is not None and isinstance(server, Service):
            own_time = heldout.replays(one, replace(timed.in_own_time(server, one.number), rests=()))
        found.append(Held(asks, number, one, runs, load, own_time))
    return found, _to_plan_with(calibrating)


Predict = Callable[[Measured, Sequence[Measured]], Service | Steps]
"""The server of a held-out block, by its model and the blocks measured around it."""


def _batches(every: Sequence[Measured]) -> Predict:
    server = Calibrator(every).service()

    def predict(one: Measured, near: Sequence[Measured]) -> Service:
        return server

    return predict


def _engine(every: Sequence[Measured], machine: Machine) -> Predict:
    calibrator = EngineCalibrator(every)
    tuned = calibrator.tune([one.number for one in every])

    def predict(one: Measured, near: Sequence[Measured]) -> Steps:
        steps = calibrator.steps(near=[block.number for block in near], tuned=tuned)
        if one.model.precision != every[0].model.precision:
            here, there = (_format(model, every) for model in (every[0].model, one.model))
            steps, _ = scaling.in_precision(steps, here, there, machine)
        return steps

    return predict


def _format(model: ModelSpec, every: Sequence[Measured]) -> Format:
    """Of the measured precision by the engine's own word, of another by the ledger: nothing of it was measured."""
    config = weights.model_config(model)
    predicted, elements = ledger.predict(config, model), ledger.layer_elements(config)
    told = next((b.summary.engine_weight_bytes for b in every if b.model.precision == model.precision), None)
    size = told or predicted["weights"].size_bytes + predicted["scales"].size_bytes
    precision: Precision = model.precision
    return Format(precision, size, predicted.kv_bytes_per_token, elements, predicted=told is None)


def _to_plan_with(every: Sequence[Measured]) -> Calibrated:
    last = every[-1]
    ranges = Ranges((1.0, 1.0), 1.0, frozenset(), (last.model.precision,))
    model = Calibrated(last.model, ranges, Trust((), {}))
    if last.model.family == "llm":
        steps = {last.model.precision: engine_steps(every)}
        return replace(model, steps=steps, prompt_tokens=int(last.prompt_tokens.max()), output_tokens=(8, 32))
    return replace(model, services={last.model.precision: Calibrator(every).service()})


def slider(plan: Plan, model: Calibrated) -> Row:
    """What the page computes anew at a move: the setting, the replicas, the curve, and the dearer of its two views."""
    slo = Slo(latency_s=4 * (model.pattern(Setting(0.01 * model.capacity_rps(Setting(1.0)))).latency_p95_s or 1.0))
    took = []
    for share, replicas in itertools.product((0.2, 0.5, 0.8), (1, 4)):
        setting = Setting(share * replicas * model.capacity_rps(Setting(1.0)), replicas)
        began = time.perf_counter()
        told = answers.tell(model, setting, slo)
        answers.needed(model, setting, slo)
        answers.curve(model, setting, slo, asked=told)
        between = time.perf_counter()
        limits.limits(model, setting, slo, Surroundings())
        broke = time.perf_counter()
        if replicas > 1:
            answers.balancing(model, setting, slo)
        took.append(between - began + max(broke - between, time.perf_counter() - broke))
    note = f"median, worst {max(took):.3g}"
    return Row(f"{plan.name}: a move of a slider", statistics.median(took), " s", "<= 1.5", len(took), note)


def report(plan: Plan, found: Sequence[Held]) -> list[Row]:
    cells = [[h for h in found if h.asks is asks] for asks in plan.held_out]
    for asks, cell in zip(plan.held_out, cells, strict=True):
        say(f"  {asks.label}: {_told(cell)}")
    fitted = [cell for asks, cell in zip(plan.held_out, cells, strict=True) if asks.fitted]
    unfitted = [cell for asks, cell in zip(plan.held_out, cells, strict=True) if not asks.fitted]
    near_full = [cell for cell in fitted if (cell[0].asks.share or 0.0) >= NEAR_FULL]
    off = [abs(_served(cell)) for cell in cells]
    goal = f"<= {GOALS['throughput']}"
    rows = [Row(f"{plan.name}: throughput off by, the most", max(off), "", goal, len(off))]
    for name in PERCENTILES:
        rows.append(_row(f"{plan.name}: {name} off by", name, fitted, GOALS[name]))
        rows.append(_row(f"{plan.name}: {name} off by, at 85 % of saturation", name, near_full, GOALS[name]))
    rows.append(_row(f"{plan.name}: p95 off by, unfitted factor", "p95", unfitted, GOALS["unfitted p95"]))
    if found[0].own_time:
        of_model = [[replace(h, simulated=h.own_time) for h in cell] for cell in fitted]
        for name in PERCENTILES:
            rows.append(_row(f"{plan.name}: {name} off by, in its own machine's time", name, of_model, None))
    for name in PERCENTILES:
        pairs = [both for cell in cells if len(both := halves(cell, name)) == 2]
        apart = [high / low - 1 for both in pairs for low, high in [sorted(_measured(half, name) for half in both)]]
        note = f"median, worst {max(apart):.3g}; the machine's own noise" if apart else _few(cells, name)
        label = f"{plan.name}: A/A, {name} of a setting's two halves apart by"
        rows.append(Row(label, statistics.median(apart) if apart else None, "", None, len(apart), note))
    return rows


def halves(cell: Sequence[Held], name: str) -> list[list[Held]]:
    """A setting's blocks as two runs, every other round of them; none where one has too few answers."""
    found = [[h for h in cell if h.round % 2 == odd] for odd in (0, 1)]
    return found if all(_enough(half, name) for half in found) else []


def _enough(blocks: Sequence[Held], name: str) -> bool:
    return sum(len(h.measured.latency_s) for h in blocks) >= needed(PERCENTILES[name])


def _row(label: str, name: str, cells: Sequence[Sequence[Held]], limit: float | None) -> Row:
    goal = None if limit is None else f"<= {limit}"
    errors = [abs(_error(cell, name)) for cell in cells if _enough(cell, name)]
    if not errors:
        return Row(label, None, "", goal, 0, _few(cells, name))
    return Row(label, statistics.median(errors), "", goal, len(errors), f"median, worst {max(errors):.3g}")


def _error(blocks: Sequence[Held], name: str) -> float:
    """Predicted ÷ measured - 1 of the percentile of all of them."""
    modelled = percentile(np.concatenate([run.latency_s for h in blocks for run in h.simulated]), PERCENTILES[name])
    return (modelled or 0.0) / _measured(blocks, name) - 1


def _measured(blocks: Sequence[Held], name: str) -> float:
    return percentile(np.concatenate([h.measured.latency_s for h in blocks]), PERCENTILES[name]) or float("nan")


def _served(cell: Sequence[Held]) -> float:
    modelled = sum(put_together(h.simulated).throughput_rps for h in cell)
    return modelled / sum(h.measured.summary.throughput_rps or 0.0 for h in cell) - 1


def _told(cell: Sequence[Held]) -> str:
    load = statistics.mean(h.load_fraction for h in cell)
    rate = statistics.mean(h.measured.summary.offered_rps or 0.0 for h in cell)
    off = ", ".join(f"{name} {_both(cell, name)}" for name in PERCENTILES if _enough(cell, name))
    return f"{rate:,.1f} req/s, {load:.0%} of modelled capacity: throughput {_served(cell):+.1%}, {off}"


def _both(cell: Sequence[Held], name: str) -> str:
    """ "-5.0% (halves -9.0% and +2.0%)"."""
    apart = " and ".join(f"{_error(half, name):+.1%}" for half in halves(cell, name))
    return f"{_error(cell, name):+.1%}" + (f" (halves {apart})" if apart else "")


def _few(cells: Sequence[Sequence[Held]], name: str) -> str:
    most = max((sum(len(h.measured.latency_s) for h in cell) for cell in cells), default=0)
    return f"needs {needed(PERCENTILES[name])} answers in a run, has {most}"


if __name__ == "__main__":
    sys.argv = [one for one in sys.argv if one not in ("--short", "--only", ONLY)]
    sys.exit(main(__doc__.splitlines()[0], measure))
