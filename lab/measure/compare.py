"""Two settings under the same load: is one better, by how much, or can't it be told?

Both sides were measured in n repeats with the same scheduled arrivals. Two things make a ratio uncertain:

- Within a repeat, requests share queues and stalls, so a thousand of them are far fewer independent samples. Each
  window is cut into segments; a bootstrap resamples whole segments, the same ones on both sides (what the schedule did
  to one side it did to the other), and the spread of the log ratio over the draws is the first part.
- Between repeats, a server started again is never quite as fast as before, and a queue amplifies that. The spread of
  the ratio over repeats, beyond the first part, is the second. Two or three repeats can't tell a spread, so it is
  moderated: pooled with an expected one (segments.START_SD), as in moderated t statistics (Smyth 2004, "Linear models
  and empirical Bayes methods", section 3). With a single repeat the expected one is all there is.

The interval is Student's t on the log ratio, degrees of freedom by Satterthwaite. On simulated queues with stalls,
whose starts differ by 1 %, 200 pairs of equal settings each at 10, 80, 95 and 120 % load, a metric was called
different in 0 to 2.5 % of them, p50 above saturation in 5 %, p99 at 95 % load in 6.5 %. A 20 % slowdown was found in at
least 39 of 40 on p50, and always on throughput above saturation. tests/measure/test_compare.py repeats a part of that.
On a simulated engine of eight slots (answers of 8 to 128 tokens, 40 s, two repeats), 60 such pairs each at 50, 80 and
130 % load and with one and eight users: 9 of 3,000 comparisons of ten metrics, at most
3 of 60 of any. There a 20 % slowdown was found in 15 of 15 on ITL, in 11 to 15 on TTFT below saturation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from lab.measure.pace import Floats
from lab.measure.percentile import needed
from lab.measure.samples import measure_of
from lab.measure.segments import SEGMENTS, START_SD, Block, Side, cut
from lab.measure.words import format_count, format_fraction, metric_label
from lab.spec import Slo

Finding = Literal["higher", "lower", "no detectable difference", "not comparable"]

DRAWS = 500
CONFIDENCE = 0.95
EXPECTED_WEIGHT = 3
"""The expected spread between starts counts as much as this many repeats."""
UNEQUAL = 0.01
"""Shares of failures that differ by more than this are unequal completed load."""
FEW_CLUMPS = 4


@dataclass(frozen=True)
class Effect:
    """What going from a to b does to a metric. `a` and `b` are pooled over repeats; `ratio` = b / a with its 95 %
    interval, None where a side is zero or missing; `difference` = b - a in the metric's unit. `verdict` speaks of b:
    "higher" than a, "lower", or not to be told; `reason` is "" unless something is to be said."""

    metric: str
    a: float | None
    b: float | None
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    verdict: Finding
    reason: str


def compare(a: Sequence[Block], b: Sequence[Block], metric: str, slo: Slo | None = None, *, seed: int = 0) -> Effect:
    """The effect on `metric`, the name of a Summary field, of going from a to b; the i-th blocks of both are a pair.

    Metrics: throughput_rps, goodput_rps, output_tokens_per_s, slo_attainment_fraction, error_fraction, and the mean and
    any percentile of latency, service, ttft, itl, icl and ntpot (itl_mean_s, latency_p95_s, service_p999_s). InputError
    for another, or for one that needs an objective when `slo` is None."""
    measure = measure_of(metric, slo)
    pairs = min(len(a), len(b))
    side_a, side_b = cut(a[:pairs], measure), cut(b[:pairs], measure)
    if side_a.whole is None or side_b.whole is None:
        return _effect(metric, side_a.whole, side_b.whole, None, "not comparable", _nothing(metric, side_a, side_b))
    if measure.kind == "percentile" and min(side_a.n, side_b.n) < needed(measure.p):
        counts = f"has {format_count(side_a.n)} and {format_count(side_b.n)}"
        reason = f"{metric_label(metric)} needs {format_count(needed(measure.p))} successes on each side, {counts}"
        return _effect(metric, None, None, None, "not comparable", reason)
    reason = _unequal_load(side_a, side_b)
    interval = _ratio_interval(side_a, side_b, seed)
    if interval is None:
        return _without_ratio(metric, side_a, side_b, seed, reason)
    found = finding(interval[0] - 1, interval[1] - 1)
    if reason and measure.of_time and _survivors_only(found, side_a, side_b):
        found = "not comparable"
    if not reason and found == "no detectable difference" and _in_few_clumps(side_a, side_b):
        reason = f"the slowest requests came in a few clumps, so {metric_label(metric)} is hardly known; measure longer"
    return _effect(metric, side_a.whole, side_b.whole, interval, found, reason)


def compare_figures(a: Sequence[float | None], b: Sequence[float | None], metric: str) -> Effect:
    """The same for a figure that exists once a repeat, such as peak memory: only the spread between repeats counts."""
    pairs = [(x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None]
    if not pairs:
        return _effect(metric, None, None, None, "not comparable", f"there is no {metric_label(metric)} on both sides")
    mean_a, mean_b = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    if min(min(pair) for pair in pairs) <= 0:
        found: Finding = "no detectable difference" if mean_a == mean_b else "not comparable"
        reason = "" if mean_a == mean_b else f"a {metric_label(metric)} of zero has no ratio"
        return _effect(metric, mean_a, mean_b, None, found, reason)
    by_repeat = np.log([y / x for x, y in pairs])
    interval = _interval(math.log(mean_b / mean_a), by_repeat, expected=2 * START_SD**2)
    return _effect(metric, mean_a, mean_b, interval, finding(interval[0] - 1, interval[1] - 1), "")


def _ratio_interval(a: Side, b: Side, seed: int) -> tuple[float, float] | None:
    """The interval of b / a; None when either can be zero, or is too often of nothing."""
    drawn = np.array([_drawn(side, seed) for side in (a, b)])
    drawn = drawn[:, ~np.isnan(drawn).any(axis=0)]  # a mean of a draw that holds no answer
    by_repeat = [side.estimate(side.sums.sum(axis=1)) for side in (a, b)]
    positive = all(bool((values > 0).all()) for values in (drawn, *by_repeat))
    if not (a.whole and b.whole and positive and drawn.shape[1] >= DRAWS / 2):
        return None
    # Drawing 5 of 5 underrates the variance of independent segments by 4 / 5.
    within = float(np.var(np.log(drawn[1] / drawn[0]))) * SEGMENTS / (SEGMENTS - 1)
    expected = a.sensitivity**2 + b.sensitivity**2
    # A tail that came in three clumps is known no better than from three samples.
    freedom = min(len(a.sums) * (SEGMENTS - 1), *(side.clumps - 1 for side in (a, b) if side.clumps is not None), 1e9)
    middle = math.log(b.whole / a.whole)
    return _interval(middle, np.log(by_repeat[1] / by_repeat[0]), expected, within, max(freedom, 1.0))


def _interval(
    middle: float, by_repeat: Floats, expected: float, within: float = 0.0, within_freedom: float = 1.0
) -> tuple[float, float]:
    """exp(middle ± t × error). `by_repeat`: the log ratio in each repeat; `expected`: its variance between two starts;
    `within`: the variance that segments explain, known with `within_freedom` degrees of freedom."""
    repeats = len(by_repeat)
    seen = float(np.var(by_repeat, ddof=1)) if repeats > 1 else 0.0
    # One repeat holds a repeats-th of the segments, so `repeats` times the variance that all of them explain.
    beyond = seen - repeats * within
    freedom = EXPECTED_WEIGHT + repeats - 1
    between = max(0.0, (EXPECTED_WEIGHT * expected + (repeats - 1) * beyond) / freedom) / repeats
    spread = within**2 / within_freedom + between**2 / freedom
    half = student((within + between) ** 2 / spread) * math.sqrt(within + between) if spread else 0.0
    return math.exp(middle - half), math.exp(middle + half)


def _without_ratio(metric: str, a: Side, b: Side, seed: int, reason: str) -> Effect:
    """One side is or may be zero, so there is no ratio: the plain difference decides."""
    difference = (b.whole or 0.0) - (a.whole or 0.0)
    drawn = _drawn(b, seed) - _drawn(a, seed)
    half = float(np.nanstd(drawn)) * math.sqrt(SEGMENTS / (SEGMENTS - 1)) * student(len(a.sums) * (SEGMENTS - 1))
    low, high = difference - half, difference + half
    return Effect(metric, a.whole, b.whole, None, None, None, difference, low, high, finding(low, high), reason)


def _drawn(side: Side, seed: int) -> Floats:
    """The metric in each draw. Equal seeds draw equal segments, which is what pairs the two sides."""
    repeats, _, k = side.sums.shape
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(SEGMENTS, np.full(SEGMENTS, 1 / SEGMENTS), size=(DRAWS, repeats))
    # Not `@`: BLAS would start a thread a core for a product this small, on a machine that may be measuring.
    return side.estimate(np.einsum("ds,sk->dk", counts.reshape(DRAWS, -1).astype(np.float64), side.sums.reshape(-1, k)))


def student(freedom: float) -> float:
    """Two-sided quantile of Student's t, by Fisher's expansion in 1 / freedom (0.2 % off at 3, 1 % at 2, 11 % at 1)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def finding(low: float, high: float) -> Finding:
    return "higher" if low > 0 else "lower" if high < 0 else "no detectable difference"


def _effect(
    metric: str,
    a: float | None,
    b: float | None,
    interval: tuple[float, float] | None,
    finding: Finding,
    reason: str,
) -> Effect:
    low, high = interval or (None, None)
    return Effect(
        metric=metric,
        a=a,
        b=b,
        ratio=b / a if a and b is not None else None,
        ci_low=low,
        ci_high=high,
        difference=None if a is None or b is None else b - a,
        difference_low=None if a is None or low is None else a * (low - 1),
        difference_high=None if a is None or high is None else a * (high - 1),
        verdict=finding,
        reason=reason,
    )


def _nothing(metric: str, a: Side, b: Side) -> str:
    missing = "either side" if a.whole is None and b.whole is None else "the first side"
    return f"there is no {metric_label(metric)} on {missing if a.whole is None else 'the second side'}"


def _survivors_only(finding: Finding, a: Side, b: Side) -> bool:
    """Whoever was refused or timed out is missing from a side's latency, so it may be low for that alone: whether the
    side that failed more is the faster one, or as fast."""
    return {"higher": a.failed > b.failed, "lower": b.failed > a.failed}.get(finding, True)


def _in_few_clumps(a: Side, b: Side) -> bool:
    return any(side.clumps is not None and side.clumps < FEW_CLUMPS for side in (a, b))


def _unequal_load(a: Side, b: Side) -> str:
    if abs(a.failed - b.failed) <= UNEQUAL:
        return ""
    shares = f"{format_fraction(a.failed)} of the requests failed against {format_fraction(b.failed)}"
    return f"unequal completed load: {shares}"
