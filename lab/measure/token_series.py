"""What language models write over time: one point a second, for charts. Pure.

A request is recorded when it ends, so the last seconds fill up later, once the answers that run now are whole. What
the engine itself has written until now is known at once, from its counters (see lab/run/live.py).
"""

from __future__ import annotations

import numpy as np

from lab.measure.pace import Floats as Column
from lab.measure.pace import arrivals, pace
from lab.measure.percentile import needed
from lab.measure.records import OK, Int64s, Requests
from lab.measure.series import SECOND_NS, Floats

MEDIAN_WINDOW_S = 10
"""Answers take seconds, so a median needs a longer look back than that of short requests."""


class TokenSeries:
    """Tokens and first tokens counted into the seconds after `origin_ns`.

    `columns`: output_tokens_per_s (by arrival), ttft_p50_ms (from the send, by arrival of the first token) and
    itl_p50_ms (per answer, by arrival of its last token), medians over the trailing MEDIAN_WINDOW_S, NaN where these
    hold too few answers.
    """

    def __init__(self, origin_ns: int) -> None:
        self.origin_ns = origin_ns
        self._tokens: Column = np.zeros(0)
        self._first: list[tuple[Int64s, Column]] = []
        self._gap: list[tuple[Int64s, Column]] = []

    def add(self, requests: Requests) -> None:
        found, streams = pace(requests), requests.streams
        if found is None or streams is None:
            return
        _, tokens = arrivals(streams)
        second = np.maximum((streams.t_ns - self.origin_ns) // SECOND_NS, 0)
        if len(second):
            fresh = np.bincount(second, weights=tokens, minlength=len(self._tokens)).astype(np.float64)
            fresh[: len(self._tokens)] += self._tokens
            self._tokens = fresh
        answered = (found.chunks > 0) & (requests.outcome == OK)
        self._first.append((found.first_ns[answered], found.ttft_s(requests.sent_ns)[answered] * 1e3))
        several = answered & ~np.isnan(found.itl_s)
        self._gap.append((found.last_ns[several], found.itl_s[several] * 1e3))

    def columns(self, seconds: int) -> dict[str, Floats]:
        tokens = np.zeros(seconds)
        shared = min(seconds, len(self._tokens))
        tokens[:shared] = self._tokens[:shared]
        return {
            "output_tokens_per_s": tokens.astype(np.float32),
            "ttft_p50_ms": self._medians(self._first, seconds),
            "itl_p50_ms": self._medians(self._gap, seconds),
        }

    def _medians(self, parts: list[tuple[Int64s, Column]], seconds: int) -> Floats:
        at = np.concatenate([np.zeros(0, np.int64), *(t_ns for t_ns, _ in parts)])
        value = np.concatenate([np.zeros(0), *(values for _, values in parts)])
        order = np.argsort(at, kind="stable")
        at, value = at[order], value[order]
        ends = self.origin_ns + np.arange(1, seconds + 1, dtype=np.int64) * SECOND_NS
        upper, lower = np.searchsorted(at, ends), np.searchsorted(at, ends - MEDIAN_WINDOW_S * SECOND_NS)
        least = needed(0.5)
        return np.array(
            [
                np.median(value[low:high]) if high - low >= least else np.nan
                for low, high in zip(lower, upper, strict=True)
            ],
            dtype=np.float32,
        )
