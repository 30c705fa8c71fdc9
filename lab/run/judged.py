"""What the blocks of a run are judged to be, before anything that only some kinds of run have (lab/run/results.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.measure import noise
from lab.measure.answers import unequal
from lab.measure.compare import Effect
from lab.measure.ending import Course
from lab.measure.noise import Noise
from lab.measure.verdict import CellResult, Verdict, verdict
from lab.run import formats
from lab.run.blocks import BlockResult
from lab.run.plan import cell_blocks, level_blocks
from lab.run.told import Told
from lab.spec import Experiment


def course(experiment: Experiment, events: list[dict[str, Any]], blocks: list[BlockResult]) -> Course:
    """How far the run came of what was planned."""
    starts = {e["block"]: e for e in events if e["kind"] == "block_start"}
    ends = {e["block"]: e for e in events if e["kind"] == "block_end"}
    whole = sum(number in ends and ends[number]["end_ns"] >= start["end_ns"] for number, start in starts.items())
    first = level_blocks(experiment) if experiment.reference else []
    latest = starts[max(starts)] if starts else None
    return Course(
        planned=len(first) + len(cell_blocks(experiment)),
        whole=whole,
        begun=len(starts) > whole,
        lasted_s=(blocks[-1].window.end_ns - blocks[-1].window.start_ns) / 1e9 if blocks else 0.0,
        asked_s=(latest["end_ns"] - latest["start_ns"]) / 1e9 if latest else 0.0,
        answered=sum(block.summary.ok for block in blocks),
    )


def judged(
    experiment: Experiment, blocks: list[BlockResult], told: Told, passport: Noise | None, *, over: bool
) -> Verdict:
    """The verdict on what was measured so far, with what this machine's noise (None without a passport) says to it."""
    cells = experiment.cells()
    grouped = []
    for index, cell in enumerate(cells):
        own = [b for b in blocks if b.role == "cell" and b.cell == index]
        grouped.append(CellResult(cell.factors, [(b.requests, b.window) for b in own], [b.summary for b in own]))
    factor = experiment.judge.factor if experiment.judge else None
    saturation = [
        (cells[b.cell].factors.get(factor) if factor else None, b.summary) for b in blocks if b.role == "saturation"
    ]
    found = verdict(experiment, grouped, saturation, over=over, quality=formats.quality_of(experiment, told))
    return replace(found, text=f"{found.text} {_noise(experiment, found, blocks, passport)}".rstrip())


def _noise(experiment: Experiment, found: Verdict, blocks: list[BlockResult], passport: Noise | None) -> str:
    """Where a difference was told that is no larger than what equals differ by on this machine."""
    if passport is None or experiment.judge is None:
        return ""
    repeats = 1 + max((block.repeat for block in blocks if block.role == "cell"), default=0)
    names = Effect.__dataclass_fields__
    told = (
        noise.told(Effect(**{name: effect[name] for name in names}), passport, repeats)
        for effect in found.effects
        if effect["metric"] == experiment.judge.primary
    )
    return next((text for text in told if text), "")


def unequal_answers(experiment: Experiment, answers: dict[str, Any]) -> str:
    """Why no speed-up is told when some level gives other answers than the baseline; "" when all agree."""
    judge = experiment.judge
    differ = None if judge is None else unequal(answers, judge.factor, judge.baseline)
    return "" if differ is None else f"No verdict: {differ}, so a speed-up would compare two different things."
