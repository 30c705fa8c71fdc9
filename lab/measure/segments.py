"""Blocks cut into segments whose sums can be resampled: the arithmetic under compare.py.

A metric is a function of sums: a rate is successes over seconds, a mean is seconds over successes, a percentile is
read from counts in bins. So resampling segments is one matrix product, whatever the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.measure.figures import inside
from lab.measure.objective import good
from lab.measure.pace import Floats
from lab.measure.percentile import percentile_of_sorted
from lab.measure.records import OK, Int64s, Requests, Window
from lab.measure.samples import Measure, Sample, latency

Block = tuple[Requests, Window]

SEGMENTS = 5
"""Stretches of a window that are taken as independent. Few, so that a queue forgets within one: with ten, simulated
pairs of equal settings were called different a quarter more often."""
STRETCHES = 4 * SEGMENTS
"""Finer ones, to see in how many places the slow requests came."""
BINS = 250
START_SD = 0.014
"""How much the speed of a server differs from one start to the next (relative standard deviation) before repeats have
shown it: memory layout, clock, neighbours. With it, two starts differ by 2 %."""
MOST_AMPLIFIED = 20.0


@dataclass(frozen=True)
class Side:
    """One setting's blocks. `sums` has shape (repeats, segments, k); `estimate` turns sums, added up along any axes
    but the last, into the metric (NaN of nothing). `whole` is the metric of all blocks pooled, exact. `n` counts the
    samples behind it, `failed` is the share of requests that failed. `clumps`: in how many stretches, effectively,
    the requests from a percentile up came (None for other metrics), since one stall slows hundreds together.
    `sensitivity`: by how much, relatively, the metric would move had this server started one START_SD slower."""

    sums: Floats
    estimate: Callable[[Floats], Floats]
    whole: float | None
    n: int
    failed: float
    clumps: float | None
    sensitivity: float


def cut(blocks: Sequence[Block], measure: Measure) -> Side:
    """Blocks of one setting as sums by segment."""
    picked = [_pick(requests, window, measure.sample) for requests, window in blocks]
    clumps = None
    ordered = np.sort(np.concatenate([np.zeros(0), *(value for _, value in picked)]))
    ended = failed = 0
    for requests, window in blocks:
        own = inside(requests.done_ns, window)
        ended += int(own.sum())
        failed += int((own & (requests.outcome != OK)).sum())
    if measure.kind == "percentile":
        edges = _edges(ordered, measure.p)
        sums = [_binned(_segment(stretch), value, edges) for stretch, value in picked]
        estimate, whole = _quantile(edges, measure.p), percentile_of_sorted(ordered, measure.p)
        clumps = _clumps(picked, whole)
    else:
        sums = [
            _quotient_sums(_segment(stretch), value, window.seconds if measure.kind == "rate" else None)
            for (stretch, value), (_, window) in zip(picked, blocks, strict=True)
        ]
        total = np.sum(sums, axis=(0, 1)) if sums else np.zeros(2)
        known = bool(total[1]) and all(measure.measured(requests) for requests, _ in blocks)
        estimate, whole = _quotient, float(total[0] / total[1]) if known else None
    return Side(
        sums=np.array(sums, dtype=np.float64),
        estimate=estimate,
        whole=whole,
        n=len(ordered),
        failed=failed / ended if ended else 0.0,
        clumps=clumps,
        sensitivity=_sensitivity(blocks, measure),
    )


def _pick(requests: Requests, window: Window, sample: Callable[[Requests], Sample]) -> tuple[Int64s, Floats]:
    """(stretch, value) of the samples in the window."""
    t_ns, value = sample(requests)
    rows = inside(t_ns, window)
    share = (t_ns[rows] - window.measured_from_ns) / (window.end_ns - window.measured_from_ns)
    return np.minimum((share * STRETCHES).astype(np.int64), STRETCHES - 1), value[rows]


def _segment(stretch: Int64s) -> Int64s:
    return stretch // (STRETCHES // SEGMENTS)


def _clumps(picked: Sequence[tuple[Int64s, Floats]], threshold: float | None) -> float | None:
    """(Σ n)² / Σ n² of the values from the threshold up in each stretch: k when they spread evenly over k of them."""
    if threshold is None:
        return None
    above = np.array([np.bincount(stretch[value >= threshold], minlength=STRETCHES) for stretch, value in picked])
    return float(above.sum() ** 2 / (above**2).sum()) if above.any() else None


def _sensitivity(blocks: Sequence[Block], measure: Measure) -> float:
    """A queue amplifies: on a server slower by x, latency is longer by about x / (1 - load). Counting how many
    successes are still within the objective when every time is stretched by that much gives the same for goodput."""
    slo = measure.slo
    if slo is None and not measure.of_time:
        return START_SD
    sample = measure.sample if slo is None else latency
    took = np.sort(np.concatenate([np.zeros(0), *(_pick(requests, window, sample)[1] for requests, window in blocks)]))
    stretch = START_SD * _amplification(took, blocks)
    if slo is None:
        return stretch
    now, slower = (
        sum(
            int((good(requests, slo, slower=by) & inside(requests.due_ns, window)).sum()) for requests, window in blocks
        )
        for by in (1.0, math.exp(stretch))
    )
    return max(START_SD, math.log(now / slower) if slower else 1.0 if now else 0.0)


def _amplification(ordered: Floats, blocks: Sequence[Block]) -> float:
    """1 / (1 - load), from the outside. A single server idles 1 - load of the time; a batching one may be busy always
    and yet have room, but then its latency is short: in an M/D/1 queue 1 / (1 - load) = 2 median / service - 1, the
    fastest percent standing for the service time. The smaller of the two."""
    median, fastest = percentile_of_sorted(ordered, 0.5), percentile_of_sorted(ordered, 0.01)
    if median is None or not fastest or fastest <= 0:
        return 1.0
    idle = float(np.mean([_idle(requests, window) for requests, window in blocks]))
    return max(1.0, min(2 * median / fastest - 1, 1 / max(idle, 1 / MOST_AMPLIFIED)))


def _idle(requests: Requests, window: Window) -> float:
    """Share of the window in which no request was unanswered."""
    order = np.argsort(requests.due_ns, kind="stable")
    start = np.clip(requests.due_ns[order], window.measured_from_ns, window.end_ns)
    last_end = np.maximum.accumulate(np.clip(requests.done_ns[order], window.measured_from_ns, window.end_ns))
    start = np.append(start, window.end_ns)
    last_end = np.append(window.measured_from_ns, last_end)
    return float(np.maximum(start - last_end, 0).sum()) / (window.end_ns - window.measured_from_ns)


def _quotient_sums(segment: Int64s, value: Floats, seconds: float | None) -> Floats:
    """(numerator, denominator) of each segment: what was counted, over seconds or over the number of requests."""
    below = np.bincount(segment, minlength=SEGMENTS) if seconds is None else np.full(SEGMENTS, seconds / SEGMENTS)
    return np.stack([np.bincount(segment, weights=value, minlength=SEGMENTS), below], axis=-1)


def _quotient(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)


def _edges(ordered: Floats, p: float) -> Floats:
    """Bounds of bins for a percentile: BINS with equally many values each, and as many again around `p`, where the
    percentile of a resample is likely to lie."""
    if not len(ordered):
        return np.zeros(2)
    around = np.linspace(p - (1 - p) / 2, p + (1 - p) / 2, BINS + 1)
    ranks = np.concatenate([np.linspace(0, 1, BINS + 1), around]) * (len(ordered) - 1)
    edges = np.unique(ordered[ranks.astype(np.int64)])
    return edges if len(edges) > 1 else np.repeat(edges, 2)


def _binned(segment: Int64s, value: Floats, edges: Floats) -> Floats:
    bins = len(edges) - 1
    position = segment * bins + np.searchsorted(edges[1:-1], value, side="left")
    return np.bincount(position, minlength=SEGMENTS * bins).reshape(SEGMENTS, bins).astype(np.float64)


def _quantile(edges: Floats, p: float) -> Callable[[Floats], Floats]:
    def estimate(sums: Floats) -> Floats:
        filled = np.cumsum(sums, axis=-1)
        wanted = p * filled[..., -1:]
        index = np.minimum((filled < wanted).sum(axis=-1, keepdims=True), sums.shape[-1] - 1)
        inside = np.take_along_axis(sums, index, -1)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = (wanted - (np.take_along_axis(filled, index, -1) - inside)) / inside
        found = edges[index] + np.clip(np.nan_to_num(share), 0, 1) * (edges[index + 1] - edges[index])
        return np.where(filled[..., -1] > 0, found[..., 0], np.nan)

    return estimate
