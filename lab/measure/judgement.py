"""Does the experiment's hypothesis hold? Levels of the judged factor against its baseline, load by load.

A level counts when it moves the primary metric in the expected direction by at least the least effect that matters,
with its whole interval beyond that. The hypothesis holds (True) when some level does so at some load, and it is always
said with it at which loads one does and at which none; it does not (False) when every interval rules that out, or when
a rate was to rise and saturation throughput does not; else it is not decided (None), and the text says what more is
needed. Repeats with a problem that forbids a verdict are left out, and named. Which words say so is decided in
sentences.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.errors import InputError
from lab.measure.compare import Effect, compare, compare_figures
from lab.measure.levels import key, same, unique
from lab.measure.problems import Problem
from lab.measure.samples import is_compared_by_sample
from lab.measure.segments import Block
from lab.measure.summary import Summary
from lab.spec import Experiment, Judge, plain

TRIVIAL_FRACTION = 0.01
"""A gain of less than this share of the offered load is no gain, however large the ratio: 3 req/s in time are not
worth a sentence more than 1 when 1,000 are asked for."""
SAME_WARMTH = 0.05
SATURATED_IN = ("output_tokens_per_s", "throughput_rps")
"""The summary's field that says what a server does at saturation, the first that is there: a language model's in
tokens, since a short window holds many of them, and so few whole answers that their rate is off by what one counts."""
Answer = Literal["yes", "no", "open"]


@dataclass(frozen=True)
class CellResult:
    """One combination of levels (plain values by path) with its blocks and their summaries, repeat by repeat."""

    factors: dict[str, Any]
    blocks: list[Block]
    summaries: list[Summary]


@dataclass(frozen=True)
class Comparison:
    """One level against the baseline at one load. `answer`: does it pass ("open": not decided)? `left_out`: problems
    of the repeats that could not be used."""

    level: Any
    at: dict[str, Any]
    base: CellResult
    cell: CellResult
    effects: dict[str, Effect]
    answer: Answer
    left_out: tuple[Problem, ...]
    repeats: int

    @property
    def offered_rps(self) -> float | None:
        rates = [s.offered_rps for s in (*self.base.summaries, *self.cell.summaries) if s.offered_rps is not None]
        return sum(rates) / len(rates) if rates else None


Saturation = Sequence[tuple[Any, Summary]]


def comparisons(experiment: Experiment, judge: Judge, cells: Sequence[CellResult]) -> list[Comparison]:
    """Every level that was measured against the baseline at the same levels of the other factors."""
    measured = [cell for cell in cells if cell.blocks]
    return [
        _compared(experiment, judge, base, cell)
        for base in measured
        if same(base.factors.get(judge.factor), judge.baseline)
        for cell in measured
        if not same(cell.factors.get(judge.factor), judge.baseline) and same(_others(cell, judge), _others(base, judge))
    ]


def _compared(experiment: Experiment, judge: Judge, base: CellResult, cell: CellResult) -> Comparison:
    pairs = list(zip(base.blocks, cell.blocks, base.summaries, cell.summaries, strict=False))
    usable = []
    left_out: list[Problem] = []
    for block_a, block_b, a, b in pairs:
        forbidding = _forbidding(a, b)
        left_out.extend(forbidding)
        if not forbidding:
            usable.append((block_a, block_b, a, b))
    metrics = unique((judge.primary, *judge.metrics))
    if usable:
        blocks_a, blocks_b, of_a, of_b = (list(side) for side in zip(*usable, strict=True))
        effects = {metric: _effect(experiment, metric, blocks_a, blocks_b, of_a, of_b) for metric in metrics}
    else:
        why = left_out[0].text if left_out else "no repeat of both sides was measured"
        nothing = (None,) * 8
        effects = {metric: Effect(metric, *nothing, verdict="not comparable", reason=why) for metric in metrics}
    asked = [s.offered_rps for s in base.summaries if s.offered_rps]
    answer = _answer(effects[judge.primary], judge, sum(asked) / len(asked) if asked else 0.0)
    level = plain(cell.factors[judge.factor])
    return Comparison(level, _others(cell, judge), base, cell, effects, answer, tuple(left_out), len(usable))


def _effect(
    experiment: Experiment,
    metric: str,
    a: Sequence[Block],
    b: Sequence[Block],
    of_a: Sequence[Summary],
    of_b: Sequence[Summary],
) -> Effect:
    if is_compared_by_sample(metric):
        return compare(a, b, metric, experiment.slo)
    if metric not in {f.name for f in dataclasses.fields(Summary)}:
        raise InputError(f"judge: metric {metric!r} is no field of a summary")
    return compare_figures([getattr(s, metric) for s in of_a], [getattr(s, metric) for s in of_b], metric)


def _forbidding(a: Summary, b: Summary) -> list[Problem]:
    """Problems of either side that forbid comparing them. Two caches that are equally warm are a fair pair."""
    found = [problem for summary in (a, b) for problem in summary.problems if problem.forbids_verdict]
    caches = ("cache_hit_fraction", "prompt_cached_fraction")
    if all(abs((getattr(a, name) or 0.0) - (getattr(b, name) or 0.0)) <= SAME_WARMTH for name in caches):
        found = [problem for problem in found if problem.code != "cache_warm"]
    return found


def _answer(effect: Effect, judge: Judge, offered_rps: float) -> Answer:
    """Whether the primary effect is at least the least that matters: yes, ruled out, or open."""
    if effect.verdict == "not comparable" or effect.difference_low is None or effect.difference_high is None:
        return "open"
    up = judge.expect == "higher"
    is_rate = effect.metric.endswith("_rps")
    trivial = TRIVIAL_FRACTION * offered_rps if is_rate else 0.0
    low, high = effect.difference_low, effect.difference_high
    worst, best = (low, high) if up else (-high, -low)
    # From zero every gain is beyond any ratio.
    least = max(judge.min_effect_fraction * effect.a, trivial) if effect.a and effect.ci_low is not None else trivial
    if worst >= least and worst > 0:
        return "yes"
    # Nothing can be gained where the baseline serves all that is asked.
    headroom = offered_rps - (effect.a or 0.0) if is_rate and up and effect.metric != "offered_rps" else None
    return "no" if best < least or best <= 0 or (headroom is not None and headroom < least) else "open"


def holds(
    experiment: Experiment, judge: Judge, found: Sequence[Comparison], saturation: Saturation, *, complete: bool
) -> bool | None:
    """The answer over all comparisons; None when it is not decided. `complete`: every cell was measured."""
    answers = {c.answer for c in found}
    if "yes" in answers:
        return True
    if not complete or not found:
        return None
    if answers == {"no"}:
        return False
    # Where capacity does not grow, nothing more is served in time, however wide a single interval.
    capacity = [
        saturation_ratio(saturation, judge.baseline, c.level) if saturated_alike(experiment, c) else None for c in found
    ]
    flat = all(ratio is not None and ratio < 1 + judge.min_effect_fraction for ratio in capacity)
    compared = any(c.effects[judge.primary].verdict != "not comparable" for c in found)
    return (
        False if flat and compared and judge.primary.endswith(("_rps", "_per_s")) and judge.expect == "higher" else None
    )


def by_load(found: Sequence[Comparison]) -> list[tuple[dict[str, Any], Answer]]:
    """(levels of the other factors, whether some level passes there) of each load, in the order of the cells: "no" when
    every level is ruled out, "open" when neither is known."""
    loads: dict[str, list[Comparison]] = {}
    for c in found:
        loads.setdefault(key(c.at), []).append(c)
    told: list[tuple[dict[str, Any], Answer]] = []
    for there in loads.values():
        answers = {c.answer for c in there}
        told.append((there[0].at, "yes" if "yes" in answers else "no" if answers == {"no"} else "open"))
    return told


@dataclass(frozen=True)
class Saturated:
    """What two levels do under the reference load: `field` names the summaries' figure, `window_s` is the shorter of
    their windows."""

    field: str
    base: float
    level: float
    window_s: float

    @property
    def ratio(self) -> float:
        return self.level / self.base


def saturated(saturation: Saturation, baseline: Any, level: Any) -> Saturated | None:
    """The baseline and a level at saturation; None unless both were measured there."""
    of_base, of_level = (next((s for found, s in saturation if same(found, of)), None) for of in (baseline, level))
    if of_base is None or of_level is None:
        return None
    for field in SATURATED_IN:
        base, other = getattr(of_base, field), getattr(of_level, field)
        if base and other is not None:
            return Saturated(field, base, other, min(of_base.window_s or 0.0, of_level.window_s or 0.0))
    return None


def saturation_ratio(saturation: Saturation, baseline: Any, level: Any) -> float | None:
    """What a level does at saturation over what the baseline does; None unless both were measured."""
    found = saturated(saturation, baseline, level)
    return None if found is None else found.ratio


def saturated_alike(experiment: Experiment, c: Comparison) -> bool:
    """Whether the requests compared are those that saturation was measured with, whatever their arrivals: the
    reference load takes the first level of every factor, and longer answers saturate a server earlier. Levels that
    bring loads of their own are compared at these, of which saturation says nothing."""
    if experiment.judge is not None and own_loads(experiment, experiment.judge.factor):
        return False
    return all(
        path.startswith("workload.arrival") or same(level, experiment.factors[path][0]) for path, level in c.at.items()
    )


def own_loads(experiment: Experiment, factor: str) -> bool:
    """Whether `factor` is, or sets, how requests arrive."""
    levels = (plain(level) for level in experiment.factors.get(factor, ()))
    return factor.startswith("workload.arrival") or any(
        factor == "workload" and isinstance(level, dict) and level.get("arrival") for level in levels
    )


def _others(cell: CellResult, judge: Judge) -> dict[str, Any]:
    return {path: plain(level) for path, level in cell.factors.items() if path != judge.factor}
