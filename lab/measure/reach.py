"""Did the loads that were set as shares of saturation reach it?

Saturation is measured once, in a closed loop; every load that is a share of it is too small where that came out too
low. An open loop that was served beyond it shows that: then no load may have been near what the server can take, the
figure is known to be wrong, and nothing is concluded from either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.measure.judgement import SATURATED_IN, Comparison, Saturation, saturated_alike
from lab.measure.levels import same
from lab.measure.summary import Summary
from lab.spec import Experiment, Judge

BEYOND, KEPT_UP = 1.1, 0.97
"""A load of at least this share of saturation is meant to exceed it; who serves this share of it was not saturated."""


def kept_up(experiment: Experiment, c: Comparison) -> bool:
    """Whether the baseline served, in every repeat that counts, all of a load that was to exceed its saturation."""
    fit = [s for s in c.base.summaries if not any(problem.forbids_verdict for problem in s.problems)]
    served = [s.throughput_rps / s.offered_rps for s in fit if s.offered_rps and s.throughput_rps]
    return share(c) >= BEYOND and saturated_alike(experiment, c) and bool(served) and min(served) >= KEPT_UP


def share(c: Comparison) -> float:
    """The load as a share of saturation; 0 where it is none."""
    return next((float(level) for path, level in c.at.items() if path.endswith("saturation_fraction")), 0.0)


def unreached(experiment: Experiment, found: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons at the highest of the loads that were to exceed saturation, when none of those did."""
    beyond = [c for c in found if share(c) >= BEYOND and saturated_alike(experiment, c)]
    if not all(kept_up(experiment, c) for c in beyond):
        return []
    return [c for c in beyond if share(c) == max(map(share, beyond))]


def trusted(experiment: Experiment, judge: Judge, found: Sequence[Comparison], saturation: Saturation) -> Saturation:
    """The reference runs without those that an open loop of the same requests was served beyond."""
    alike = [c for c in found if saturated_alike(experiment, c)]
    wrong = [judge.baseline] if any(kept_up(experiment, c) for c in alike) else []
    wrong += [
        level
        for level, most in saturation
        if any(
            same(level, own) and _exceeds(side.summaries, most)
            for c in alike
            for own, side in ((judge.baseline, c.base), (c.level, c.cell))
        )
    ]
    return [(level, most) for level, most in saturation if not any(same(level, other) for other in wrong)]


def served_and_most(c: Comparison, saturation: Saturation, baseline: Any) -> tuple[str, float, float] | None:
    """(field, what the baseline served there, what was measured as the most it can); None where either is unknown."""
    most = next((s for level, s in saturation if same(level, baseline)), None)
    for field in SATURATED_IN if most is not None else ():
        served, limit = _mean(c.base.summaries, field), getattr(most, field)
        if served and limit:
            return field, served, limit
    return None


def _exceeds(summaries: Sequence[Summary], most: Summary) -> bool:
    for field in SATURATED_IN:
        served, limit = _mean(summaries, field), getattr(most, field)
        if served and limit:
            return bool(served >= BEYOND * limit)
    return False


def _mean(summaries: Sequence[Summary], field: str) -> float | None:
    known = [value for s in summaries if (value := getattr(s, field)) is not None]
    return sum(known) / len(known) if known else None
