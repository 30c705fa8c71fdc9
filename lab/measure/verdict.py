"""The verdict on an experiment: whether its hypothesis holds, in words, and every effect behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.measure import sentences
from lab.measure.formats import QualityOf
from lab.measure.judgement import CellResult, Saturation, by_load, comparisons, holds
from lab.measure.levels import same, unique
from lab.measure.reach import kept_up, trusted, unreached
from lab.measure.words import join, level_label
from lab.spec import Experiment, Judge, plain

__all__ = ["CellResult", "Verdict", "verdict"]


@dataclass(frozen=True)
class Verdict:
    """`holds`: None when it could not be decided, and the text says what is missing. `effects`: one dict a compared
    level, load and metric, with the fields of compare.Effect and factor, level and at (levels of the other factors).
    `where`: for each load its `at` and the `answer` there ("yes", "no", "open"); `headline`: `level` and `at` of the
    comparison that the text begins with, None where it begins with none."""

    holds: bool | None
    text: str
    effects: list[dict[str, Any]]
    where: tuple[dict[str, Any], ...] = ()
    headline: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def verdict(
    experiment: Experiment,
    cells: Sequence[CellResult],
    saturation: Saturation = (),
    *,
    over: bool = False,
    quality: QualityOf | None = None,
) -> Verdict:
    """`cells` may be those measured so far, or until the end where the run is `over`; `saturation` holds the reference
    runs, one (level of the judged factor, summary) each. InputError when the judge names a metric that is no field of
    a summary."""
    judge = experiment.judge
    if judge is None:
        return Verdict(None, "Nothing is compared here: these are figures, not a verdict.", [])
    missing = _nothing_to_compare(judge, cells, over)
    if missing:
        return Verdict(None, missing, [])
    found = comparisons(experiment, judge, cells)
    answer, complete = None, all(cell.blocks for cell in cells)
    if not ((complete or over) and unreached(experiment, found)):
        known = trusted(experiment, judge, found, saturation)
        answer = holds(experiment, judge, found, known, complete=complete)
    text, first = sentences.text(experiment, judge, cells, found, answer, saturation, over=over, quality=quality)
    effects = [
        {"factor": judge.factor, "level": c.level, "at": c.at, **dataclasses.asdict(effect)}
        for c in found
        for effect in c.effects.values()
    ]
    # What was to exceed saturation and did not says nothing about what happens beyond it.
    told = [dataclasses.replace(c, answer="open") if kept_up(experiment, c) else c for c in found]
    where = tuple({"at": at, "answer": there} for at, there in by_load(told))
    return Verdict(answer, text, effects, where, None if first is None else {"level": first.level, "at": first.at})


def _nothing_to_compare(judge: Judge, cells: Sequence[CellResult], over: bool) -> str:
    """Why there is no comparison at all; "" when there is one to make."""
    levels = unique(plain(cell.factors.get(judge.factor)) for cell in cells if cell.blocks)
    labels = [level_label(judge.factor, level, among=levels) for level in levels]
    baseline = level_label(judge.factor, plain(judge.baseline), among=levels)
    if not levels:
        return "No cell was measured, so nothing is compared." if over else "Nothing was measured yet."
    if not any(same(level, judge.baseline) for level in levels):
        if over and any(same(cell.factors.get(judge.factor), judge.baseline) for cell in cells):
            return f"Not decided: the baseline ({baseline}) was not measured, so there is nothing to compare with."
        return (
            f"Not decided: the baseline ({baseline}) was not measured, so there is nothing to compare "
            f"{join(labels)} with. Add it to the levels of {judge.factor}."
        )
    if len(levels) == 1:
        if over and len(unique(plain(cell.factors.get(judge.factor)) for cell in cells)) > 1:
            return f"Not decided: only {baseline} was measured, and nothing to compare it with."
        return f"Not decided: only {baseline} was measured. Add another level of {judge.factor} to compare it with."
    return ""
