"""The formats of a run: their weights and quality, found before anything is measured, and what engines said of them.

The runner prepares every format's weights and notes what this machine can do (`prepare`), and has the quality of each
evaluated (`evaluate`, once a format, kept for later runs). `of_run` reads it off the run's own events (told.py).
What a measured block took in memory and time is ledgers.py's and floors.py's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lab import stopping
from lab.errors import LabError
from lab.measure.formats import QualityOf, change_answers, distinct, format_label, is_baseline, without_kernel
from lab.measure.levels import same
from lab.measure.quality import Quality
from lab.measure.words import plural
from lab.run import quality
from lab.run.folder import RunFolder
from lab.run.told import Block, Told
from lab.serve import adapters, weights
from lab.spec import Experiment, plain
from lab.watch.probe import multiplies_bytes, probe

Report = Callable[[str], None]
PROBED_ANEW_S = 120.0
"""A run that measures for longer probes the machine anew: on a shared one, memory may give half of what it gave in
another hour. A shorter one does with what is kept."""
ADAPTER_BYTES = 2
"""Of an element of an adapter's A and B as the compiled engine keeps them."""


def prepare(folder: RunFolder, experiment: Experiment, report: Report) -> None:
    """Weights of every format, made where they are missing; for language models what floors and ledgers need."""
    cells = experiment.cells()
    for model in distinct(cell.model for cell in cells):
        stopping.check()
        weights.prepare(model)
        if note := without_kernel(model, multiplies_bytes()):
            folder.event("problem", text=note)
    models = {cell.model.weights: cell.model for cell in cells if cell.model.family == "llm"}
    if models:
        seconds = experiment.repeats * sum(cell.workload.duration_s for cell in cells)
        here = any(cell.model.family == "llm" and cell.model.device == "cpu" for cell in cells)
        machine = asdict(probe(again=seconds >= PROBED_ANEW_S)) if here else None  # it probes no GPU
    for name, model in models.items():
        folder.event("limits", weights=name, config=weights.model_config(model), machine=machine)
    for model in {cell.model.adapters: cell.model for cell in cells if cell.model.adapters}.values():
        stopping.check()
        own = sum(place is None for place in adapters.named(model).values())
        if own:
            report(f"{plural(own, 'adapter')} of the lab's own: taught where not yet done, which takes seconds each")
        weights.prepare(model)
        for text in adapters.doubts(model):
            folder.event("problem", text=text)
        sizes = adapters.elements(model)
        folder.event("adapters", adapters=list(model.adapters), bytes=ADAPTER_BYTES * sum(sizes.values()))


def evaluate(folder: RunFolder, experiment: Experiment, report: Report) -> None:
    """The quality of every format as an event. An experiment that compares evaluates what is not known yet; a single
    load only tells what is."""
    models = distinct(cell.model for cell in experiment.cells() if cell.model.family in quality.FAMILIES)
    if all(is_baseline(model) for model in models):
        return
    for model in models:
        stopping.check()
        label = format_label(model)
        try:
            found = quality.known(model)
            if found is None and experiment.judge is not None:
                report(f"evaluating the quality of {label}, once")
                found = quality.evaluate(model)
        except LabError as error:
            folder.event("quality", format=label, quality=None, reason=str(error))
            continue
        reason = None if found else f"not evaluated yet; `python -m lab run quantization` does, on {model.name}"
        folder.event("quality", format=label, quality=found and found.to_dict(), reason=reason)


def of_run(experiment: Experiment, told: Told) -> dict[str, dict[str, Any]]:
    """{format in words: {"model", "quality", "reason"}}, one a format; `quality` None has a reason."""
    return {
        (label := format_label(model)): {
            "model": model.model_dump(mode="json"),
            "quality": told.qualities[label].to_dict() if label in told.qualities else None,
            "reason": None if label in told.qualities else told.reasons.get(label, "not evaluated"),
        }
        for model in distinct(cell.model for cell in experiment.cells())
        if model.family in quality.FAMILIES
    }


def quality_of(experiment: Experiment, told: Told) -> QualityOf | None:
    """The quality of a level of the judged factor, where its levels differ in format; None where they answer alike."""
    if experiment.judge is None or not change_answers(experiment):
        return None
    factor = experiment.judge.factor
    labels = [(plain(cell.factors[factor]), format_label(cell.model)) for cell in experiment.cells()]

    def of(level: Any) -> Quality | None:
        label = next((label for found, label in labels if same(found, level)), "")
        return told.qualities.get(label)

    return of


def engine_notes(experiment: Experiment, blocks: Sequence[Block], server: pa.Table) -> list[str]:
    """What engines said of themselves, each once with its format: that it runs without a fast kernel, for one."""
    cells = experiment.cells()
    said = server.filter(pc.and_(pc.equal(server["field"], "engine_note"), pc.is_valid(server["reason"])))
    found: dict[str, None] = {}
    for b in blocks:
        model = cells[b.cell].model
        own = said.filter(
            pc.and_(
                pc.equal(said["model"], model.name),
                pc.and_(
                    pc.greater_equal(said["t_ns"], b.window.start_ns), pc.less_equal(said["t_ns"], b.window.end_ns)
                ),
            )
        )
        found |= {f"{format_label(model)}: {reason}.": None for reason in own["reason"].to_pylist()}
    return list(found)
