"""Did the load and the server stay the same over the measured window?

The rule of perf_analyzer: three stretches in a row agree within 10 % in throughput and in mean latency. A difference
that chance alone explains does not count: 50 Poisson arrivals in a third vary by 14 % with nothing wrong, so a
difference must also exceed three of its standard errors. For latency chance excuses a factor of 1.5 at most: one long
stall makes a third's mean uncertain, yet the block was not steady.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lab.measure.records import OK, Requests, Window

THIRDS = 3
PARTS = 5  # stretches of a third, whose spread tells how much its mean may move by chance
TOLERANCE = 0.10
ERRORS = 3.0
LATENCY_CHANCE = 0.5
FEWEST = 30
"""Fewer successes than this say nothing about steadiness."""


@dataclass(frozen=True)
class Steadiness:
    """Successes per second (by end) and their mean latency (by scheduled arrival) in each third of the window."""

    steady: bool
    throughput_rps: tuple[float, ...]
    latency_mean_s: tuple[float, ...]

    @property
    def backlog_grows(self) -> bool:
        """Latency rises from third to third and throughput does not: arrivals outrun the server."""
        first, second, third = self.latency_mean_s
        return not self.steady and first < second < third and third > (1 + TOLERANCE) * first


def steadiness(requests: Requests, window: Window) -> Steadiness | None:
    """None when there are fewer than 30 successes or a third has none."""
    ok = requests.outcome == OK
    cells = THIRDS * PARTS
    ended = np.bincount(_part(requests.done_ns[ok], window, cells), minlength=cells + 1)[:cells]
    due_part = _part(requests.due_ns[ok], window, cells)
    count = np.bincount(due_part, minlength=cells + 1)[:cells]
    latency_s = (requests.done_ns[ok] - requests.due_ns[ok]) / 1e9
    total_s = np.bincount(due_part, weights=latency_s, minlength=cells + 1)[:cells]
    by_third = count.reshape(THIRDS, PARTS).sum(axis=1)
    if count.sum() < FEWEST or not by_third.all():
        return None
    ended_by_third = ended.reshape(THIRDS, PARTS).sum(axis=1)
    mean_s = total_s.reshape(THIRDS, PARTS).sum(axis=1) / by_third
    third_s = window.seconds / THIRDS
    # Standard error of a third's mean from the spread of its parts about it (a ratio estimate, parts weighted by n).
    spread = total_s.reshape(THIRDS, PARTS) - mean_s[:, None] * count.reshape(THIRDS, PARTS)
    error_s = np.sqrt((spread**2).sum(axis=1) * PARTS / (PARTS - 1)) / by_third
    rate_rps, rate_error = ended_by_third / third_s, np.sqrt(np.maximum(ended_by_third, 1)) / third_s
    steady = _agree(rate_rps, rate_error) and _agree(mean_s, error_s, LATENCY_CHANCE)
    return Steadiness(steady, tuple(rate_rps.tolist()), tuple(mean_s.tolist()))


def _agree(values: np.ndarray, errors: np.ndarray, most: float = math.inf) -> bool:
    """Whether largest and smallest differ by no more than 10 %, or than chance explains (at most the share `most`)."""
    low, high = int(values.argmin()), int(values.argmax())
    gap = float(values[high] - values[low])
    chance = ERRORS * math.hypot(float(errors[low]), float(errors[high]))
    smallest = float(values[low])
    return gap <= max(TOLERANCE * smallest, min(chance, most * smallest))


def _part(t_ns: np.ndarray, window: Window, parts: int) -> np.ndarray:
    """Which of `parts` equal stretches of the window each time falls in; `parts` for those outside."""
    scale = parts / max(window.end_ns - window.measured_from_ns, 1)
    # Plus one before truncation and minus one after: what lies just before the window must not truncate to 0.
    part = ((t_ns - window.measured_from_ns) * scale + 1).astype(np.int64) - 1
    part[(part < 0) | (part > parts)] = parts
    return part
