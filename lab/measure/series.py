"""Records over time: one point a second, for charts. Pure, and incremental so that a page reads only what is new.

Percentiles of a second are taken over the trailing `PERCENTILE_WINDOW_S` seconds of completions and are NaN where
these hold too few requests for the percentile (percentile.needed); they are never averaged from shorter stretches.
NaN, not None, because these are columns for a chart: a gap in the line is how "not measured" is drawn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.measure.percentile import needed
from lab.measure.records import OK, Int64s, Requests

SECOND_NS = 1_000_000_000
PERCENTILE_WINDOW_S = 5
OPEN_S = 3
"""A second may still receive completions for this long: load workers flush once a second, each on its own."""

QUANTILES = {"latency_p50_ms": 0.50, "latency_p95_ms": 0.95, "latency_p99_ms": 0.99}

Floats = npt.NDArray[np.float32]


class RequestSeries:
    """Requests counted into the seconds after `origin_ns`.

    `add` takes finished requests in about the order of completion; `columns` gives arrays of equal length, one entry
    a second: offered_rps (by scheduled arrival), throughput_rps and latency_p50_ms/p95/p99 (by completion, successes
    only), error_fraction (of what finished; NaN where nothing did).
    """

    def __init__(self, origin_ns: int) -> None:
        self.origin_ns = origin_ns
        self._offered = np.zeros(0, dtype=np.int64)
        self._finished = np.zeros(0, dtype=np.int64)
        self._succeeded = np.zeros(0, dtype=np.int64)
        self._quantiles = {name: np.zeros(0) for name in QUANTILES}
        self._recent_done = np.zeros(0, dtype=np.int64)
        self._recent_ms = np.zeros(0)
        self._settled = 0  # seconds whose percentiles can no longer change

    def add(self, requests: Requests) -> None:
        if len(requests) == 0:
            return
        ok = requests.outcome == OK
        done = requests.done_ns[ok]
        self._offered = _count(self._offered, self._second(requests.due_ns))
        self._finished = _count(self._finished, self._second(requests.done_ns))
        self._succeeded = _count(self._succeeded, self._second(done))
        self._recent_done = np.concatenate([self._recent_done, done])
        self._recent_ms = np.concatenate([self._recent_ms, (done - requests.due_ns[ok]) / 1e6])
        self._update_quantiles(len(self._finished))

    def columns(self, seconds: int) -> dict[str, Floats]:
        """The first `seconds` seconds."""
        finished, succeeded = _fit(self._finished, seconds), _fit(self._succeeded, seconds)
        with np.errstate(invalid="ignore", divide="ignore"):
            failed = np.where(finished > 0, (finished - succeeded) / finished, np.nan)
        return {
            "offered_rps": _fit(self._offered, seconds).astype(np.float32),
            "throughput_rps": succeeded.astype(np.float32),
            "error_fraction": failed.astype(np.float32),
            **{name: _fit(column, seconds, np.nan).astype(np.float32) for name, column in self._quantiles.items()},
        }

    @property
    def seconds(self) -> int:
        """How many seconds hold a completion, the last one perhaps not over yet."""
        return len(self._finished)

    def _second(self, t_ns: Int64s) -> Int64s:
        return np.maximum((t_ns - self.origin_ns) // SECOND_NS, 0)

    def _update_quantiles(self, seconds: int) -> None:
        order = np.argsort(self._recent_done, kind="stable")
        done, ms = self._recent_done[order], self._recent_ms[order]
        ends = self.origin_ns + np.arange(self._settled + 1, seconds + 1, dtype=np.int64) * SECOND_NS
        upper = np.searchsorted(done, ends)
        lower = np.searchsorted(done, ends - PERCENTILE_WINDOW_S * SECOND_NS)
        for name, p in QUANTILES.items():
            least = needed(p)
            fresh = [
                np.percentile(ms[low:high], 100 * p) if high - low >= least else np.nan
                for low, high in zip(lower, upper, strict=True)
            ]
            self._quantiles[name] = np.concatenate([self._quantiles[name][: self._settled], np.array(fresh)])
        self._settled = max(self._settled, seconds - OPEN_S)
        oldest = self.origin_ns + (self._settled + 1 - PERCENTILE_WINDOW_S) * SECOND_NS
        keep = done >= oldest
        self._recent_done, self._recent_ms = done[keep], ms[keep]


def growth(t_ns: Int64s, counter: npt.NDArray[np.float64], origin_ns: int, seconds: int) -> npt.NDArray[np.float64]:
    """How much a cumulative counter grew in each of the first `seconds` seconds, shape (seconds,). A fall is a reset:
    what the counter shows after it was counted since. NaN outside the readings."""
    if len(t_ns) < 2:
        return np.full(seconds, np.nan)
    step = np.diff(counter)
    step = np.where(step < 0, counter[1:], step)
    total = np.concatenate([[0.0], np.cumsum(step)])
    edges = origin_ns + np.arange(seconds + 1, dtype=np.int64) * SECOND_NS
    return np.diff(np.interp(edges, t_ns, total, left=np.nan, right=np.nan))


def last_reading(t_ns: Int64s, gauge: npt.NDArray[np.float64], origin_ns: int, seconds: int) -> Floats:
    """The last reading in or before each second, shape (seconds,); NaN before the first and after the last."""
    if len(t_ns) == 0:
        return np.full(seconds, np.nan, dtype=np.float32)
    ends = origin_ns + np.arange(1, seconds + 1, dtype=np.int64) * SECOND_NS
    position = np.searchsorted(t_ns, ends, side="right") - 1
    known = (position >= 0) & (ends - SECOND_NS <= t_ns[-1])
    return np.where(known, gauge[np.maximum(position, 0)], np.nan).astype(np.float32)


def _count(counts: Int64s, seconds: Int64s) -> Int64s:
    if len(seconds) == 0:
        return counts
    fresh = np.bincount(seconds, minlength=len(counts)).astype(np.int64)
    fresh[: len(counts)] += counts
    return fresh


def _fit(column: npt.NDArray[np.generic], seconds: int, fill: float = 0) -> npt.NDArray[np.float64]:
    out = np.full(seconds, fill, dtype=np.float64)
    shared = min(seconds, len(column))
    out[:shared] = column[:shared]
    return out
