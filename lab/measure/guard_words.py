"""One comparison of the guard, challenger beside champion, and how it is told in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from lab.measure.sequential import Floats

Name = Literal["errors", "latency_p95", "latency_p99", "quality"]
Standing = Literal["worse", "fine", "undecided"]

AT_ONE = 46
GRID: Floats = np.exp(0.015 * np.arange(-AT_ONE, 75))
"""Ratios of percentiles that are tried, 1.5 % apart, from a half to three; what is slower still is told as three times
as slow. The one at AT_ONE is 1."""
MOST_TOLD = 1_000_000

Pair = tuple[int, int]
"""The champion's and the challenger's."""


@dataclass(frozen=True)
class Comparison:
    """`effect` is challenger minus champion for rates and challenger ÷ champion for percentiles, `low` and `high` hold
    it at every look with probability 1 - alpha. `evidence`: how many times likelier the counts of the whole rollout are
    where the challenger is worse; `decides_at`: what rolls back. None: not measured yet, and `lacks` says what is
    missing."""

    name: Name
    champion: float | None
    challenger: float | None
    effect: float | None
    low: float | None
    high: float | None
    evidence: float
    tolerated: float
    standing: Standing
    n_champion: int
    n_challenger: int
    lacks: str = ""
    decides_at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def told(c: Comparison) -> str:
    """A comparison in words: "p95 is 1.21 times the champion's (1.12 to 1.34)"."""
    if c.effect is None:
        return missing(c)
    if c.name in ("errors", "quality"):
        what = "errors" if c.name == "errors" else "bad answers"
        assert c.champion is not None and c.challenger is not None  # noqa: S101  an effect is of both
        rates = f"{what} are {100 * c.challenger:.2f} %, the champion's {100 * c.champion:.2f} %"
        if c.standing == "worse":
            # The interval is of this step and of each rate alone; what decided is the whole rollout's evidence.
            return f"{rates}, {100 * c.tolerated:g} points more are tolerated{_decided(c)}"
        return f"{rates} (difference {100 * (c.low or 0):+.2f} to {100 * (c.high or 0):+.2f} points)"
    if c.low is None or c.high is None:
        at_least, at_most = f"at least {c.low or 0:.2f}", f"at most {c.high or 0:.2f}"
        between = at_least if c.low is not None else at_most if c.high is not None else "no bounds yet"
    else:
        between = f"{c.low:.2f} to {c.high:.2f}"
    if c.low is not None and c.low >= GRID[-1]:
        return f"{_percentile(c)} is {between} times the champion's"
    if c.high is not None and c.high <= GRID[0]:
        return f"{_percentile(c)} is {between} times the champion's"
    return f"{_percentile(c)} is {c.effect:.2f} times the champion's ({between})"


def _decided(c: Comparison) -> str:
    """ "; such counts are 310 times likelier from a worse version (80 decide)"."""
    if c.decides_at is None:
        return ""
    times = f"{c.evidence:,.0f}" if c.evidence < MOST_TOLD else f"more than {MOST_TOLD:,}"
    return f"; such counts are {times} times likelier from a worse version ({c.decides_at:,.0f} decide)"


def missing(c: Comparison) -> str:
    """What it still takes: "p95 is perhaps 1.40 times the champion's, tolerated is 1.1"."""
    if c.lacks:
        return f"{_percentile(c)}: there are no {c.lacks}"
    if c.name in ("errors", "quality"):
        return (
            f"{_percentile(c)} may still be {100 * (c.high or 0):.2f} points more, tolerated are {100 * c.tolerated:g}"
        )
    most = "not bounded yet" if c.high is None else f"perhaps {c.high:.2f} times the champion's"
    return f"{_percentile(c)} is {most}, tolerated is {c.tolerated:g}"


def _percentile(c: Comparison) -> str:
    return {"errors": "errors", "quality": "bad answers", "latency_p95": "p95", "latency_p99": "p99"}[c.name]
