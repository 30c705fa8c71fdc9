"""Blocks cut into segments whose sums can be resampled: the arithmetic under compare.py.

A metric is a function of sums: a rate is successes over seconds, a mean is seconds over successes, a percentile is
read from counts in bins. So resampling segments is one matrix product, whatever the number of requests.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lab.errors import InputError
from lab.measure.objective import good
from lab.measure.percentile import percentile_of_sorted
from lab.measure.records import OK, Int64s, Requests, Window
from lab.spec import Slo

Block = tuple[Requests, Window]
Floats = npt.NDArray[np.float64]

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
class Measure:
    """Which requests a metric looks at and by which time they belong to a segment; `start` is where a latency begins.

    kind "rate": requests that are `only`, a second; "fraction": their share; "mean", "percentile": of successes."""

    kind: Literal["rate", "fraction", "mean", "percentile"]
    clock: Literal["due_ns", "done_ns"]
    only: Literal["ok", "good", "failed"] = "ok"
    start: Literal["due_ns", "sent_ns"] = "due_ns"
    p: float = 0.5
    slo: Slo | None = None

    @property
    def of_latency(self) -> bool:
        return self.kind in ("mean", "percentile")


RATES_AND_SHARES = {
    "throughput_rps": Measure("rate", "done_ns"),
    "goodput_rps": Measure("rate", "done_ns", "good"),
    "slo_attainment_fraction": Measure("fraction", "due_ns", "good"),
    "error_fraction": Measure("fraction", "done_ns", "failed"),
}


LATENCY = re.compile(r"(latency|service)_(?:mean|p([1-9][0-9]{1,4}))_s")


def is_compared_by_request(metric: str) -> bool:
    """Whether the records behind a Summary field can be compared; other fields exist once a repeat."""
    return metric in RATES_AND_SHARES or LATENCY.fullmatch(metric) is not None


def measure_of(metric: str, slo: Slo | None) -> Measure:
    """The measure behind a Summary field's name; InputError where there is none."""
    if metric in RATES_AND_SHARES:
        found = RATES_AND_SHARES[metric]
        if found.only == "good" and slo is None:
            raise InputError(f"metric {metric!r} needs an objective (slo), none is given")
        return dataclasses.replace(found, slo=slo)
    match = LATENCY.fullmatch(metric)
    if match is None:
        allowed = ", ".join((*RATES_AND_SHARES, "latency_mean_s", "latency_p99_s"))
        raise InputError(f"metric {metric!r} can't be compared request by request; allowed: {allowed} and the like")
    start: Literal["due_ns", "sent_ns"] = "due_ns" if match[1] == "latency" else "sent_ns"
    if match[2] is None:
        return Measure("mean", "due_ns", start=start)
    return Measure("percentile", "due_ns", start=start, p=int(match[2]) / 10 ** len(match[2]))


@dataclass(frozen=True)
class Side:
    """One setting's blocks. `sums` has shape (repeats, segments, k); `estimate` turns sums, added up along any axes
    but the last, into the metric (NaN of nothing). `whole` is the metric of all blocks pooled, exact. `n` counts the
    requests behind it, `failed` is the share of requests that failed. `clumps`: in how many stretches, effectively,
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
    picked = [_pick(requests, window, measure) for requests, window in blocks]
    clumps = None
    ordered = np.sort(np.concatenate([np.zeros(0), *(value for _, value in picked)]))
    ended = failed = 0
    for requests, window in blocks:
        inside = _inside(requests.done_ns, window)
        ended += int(inside.sum())
        failed += int((inside & (requests.outcome != OK)).sum())
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
        estimate, whole = _quotient, float(total[0] / total[1]) if total[1] else None
    return Side(
        sums=np.array(sums, dtype=np.float64),
        estimate=estimate,
        whole=whole,
        n=len(ordered),
        failed=failed / ended if ended else 0.0,
        clumps=clumps,
        sensitivity=_sensitivity(blocks, measure),
    )


def _pick(requests: Requests, window: Window, measure: Measure) -> tuple[Int64s, Floats]:
    """(stretch, value) of the requests that a metric looks at: a latency in seconds, or 1 and 0 for counted or not."""
    ok = requests.outcome == OK
    clock: Int64s = getattr(requests, measure.clock)
    took_s = (requests.done_ns - getattr(requests, measure.start)) / 1e9
    rows = _inside(clock, window)
    if measure.of_latency:
        rows &= ok & (requests.sent_ns >= 0) if measure.start == "sent_ns" else ok
        value = took_s
    else:
        within = good(requests, measure.slo) if measure.slo else ok
        value = {"ok": ok, "good": within, "failed": ~ok}[measure.only].astype(np.float64)
    share = (clock[rows] - window.measured_from_ns) / (window.end_ns - window.measured_from_ns)
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
    successes a latency stretched by that much still leaves within the objective gives the same for goodput."""
    if measure.only == "failed" or (measure.kind == "rate" and measure.only == "ok"):
        return START_SD
    latency = dataclasses.replace(measure, kind="percentile", clock="due_ns")
    took = np.sort(np.concatenate([np.zeros(0), *(_pick(requests, window, latency)[1] for requests, window in blocks)]))
    stretch = START_SD * _amplification(took, blocks)
    if measure.of_latency or measure.slo is None:
        return stretch
    now, slower = (
        sum(
            int((good(requests, measure.slo, slower=factor) & _inside(requests.due_ns, window)).sum())
            for requests, window in blocks
        )
        for factor in (1.0, math.exp(stretch))
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


def _inside(t_ns: Int64s, window: Window) -> npt.NDArray[np.bool_]:
    return (t_ns >= window.measured_from_ns) & (t_ns < window.end_ns)
