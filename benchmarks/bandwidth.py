"""A decode step beside what memory gives in the same moment.

A shared machine reads at 68 GB/s in one hour and at 38 in another, so a floor by a bandwidth that was probed at another
time is off by as much. Here both take turns in one process, within a second: memory is read by as many threads as
decode, and an answer is written. A pair of neighbours gives a fraction, the bytes of a step ÷ bandwidth ÷ the time
between two tokens, each the median within its turn; what counts is the median of all pairs, with its interval.

Reading is what lab/watch/probe.py does: the sum of more float32 than any cache holds. The weights of a small format lie
partly in the last cache (a third of int4's in 32 MB), so a fraction above 1 would be no error there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measuring import in_turns, median
from benchmarks.table import Row, say
from lab.measure.percentile import interval
from lab.watch.probe import BUFFER_BYTES

PAIRS = 12
READS = 7
"""Of the whole buffer in a turn: about a tenth of a second."""


class Memory:
    """What is read. `threads` do it, as many as decode."""

    def __init__(self, threads: int) -> None:
        import torch

        self._threads = threads
        # numpy asks for large pages where they are for the asking; without them reading is half as fast.
        self._buffer: Any = torch.from_numpy(np.ones(BUFFER_BYTES // 4, np.float32))

    def bandwidth(self) -> float:
        """Bytes a second, now: the median of READS."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        taken_s = [self._read_s() for _ in range(READS)]
        torch.set_num_threads(before)
        return BUFFER_BYTES / statistics.median(taken_s)

    def _read_s(self) -> float:
        began = time.perf_counter_ns()
        self._buffer.sum()
        return (time.perf_counter_ns() - began) / 1e9


@dataclass(frozen=True)
class Moments:
    """Neighbours in time: bytes a second that memory gave, seconds between two tokens, and the bytes of a step."""

    bandwidths: list[float]
    gaps_s: list[float]
    step_bytes: float

    @property
    def fractions(self) -> list[float]:
        """Of its floor, a pair."""
        return [self.step_bytes / b / g for b, g in zip(self.bandwidths, self.gaps_s, strict=True)]

    @property
    def gap_s(self) -> float:
        return statistics.median(self.gaps_s)

    def rows(self, of: str, goal: str | None) -> list[Row]:
        """`of`: what was measured, to go on a row's name."""
        gb_s, fractions = [b / 1e9 for b in self.bandwidths], self.fractions
        low, high = interval(np.sort(fractions), 0.5)
        between = "too few pairs for an interval" if low is None or high is None else f"{low:.2f} to {high:.2f}, 95 %"
        n, met = len(fractions), f"{min(gb_s):.1f} to {max(gb_s):.1f}"
        return [
            Row(f"bytes read by a step, {of}", self.step_bytes / 1e6, "MB", None, 1),
            Row(f"memory bandwidth meanwhile, {of}", median(gb_s), "GB/s", None, n, met),
            Row(f"fraction of the bandwidth floor, {of}", median(fractions), "", goal, n, between),
        ]


def moments(memory: Memory, gap_s: Callable[[], float], step_bytes: float) -> Moments:
    """PAIRS of both, the first one of each thrown away."""
    memory.bandwidth(), gap_s()
    found = in_turns({"memory": memory.bandwidth, "step": gap_s}, PAIRS)
    result = Moments(found["memory"], found["step"], step_bytes)
    say(f"fractions of the floor: {[round(f, 3) for f in result.fractions]}")
    return result
