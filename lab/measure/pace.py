"""When streamed answers began, went on and ended, request by request: what every token figure is made of.

A chunk is one message of the server that held tokens, and may hold several, so chunks and tokens are counted apart
(vllm-project/vllm#27485 took one for the other). Tokens are the server's count and never this side's. What a request
does not say, a field holds as -1 or NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.measure.records import Int64s, Requests, Streams

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

UNKNOWN = -1


@dataclass(frozen=True)
class Pace:
    """One entry a request, in the order of the requests. Stamps are perf_counter_ns.

    chunks        how many chunks arrived
    first_ns      the first of them, reasoning or not; -1: none
    visible_ns    the first that was not reasoning; -1: none
    last_ns       the last; -1: none
    tokens        in all of them: N; -1: the server did not count
    first_tokens  in the first of them: n_1; -1: not known
    """

    chunks: Int64s
    first_ns: Int64s
    visible_ns: Int64s
    last_ns: Int64s
    tokens: Int64s
    first_tokens: Int64s

    @property
    def counts(self) -> bool:
        """Whether the server counted tokens at all; where no chunk arrived there was nothing to count."""
        return bool((self.tokens >= 0).any()) or not self.chunks.any()

    @property
    def itl_s(self) -> Floats:
        """Inter-token latency, (c_last - c_1) / (N - n_1): the pace after the first chunk, whatever it held. NaN where
        all came in the first chunk, or where the server did not say what each chunk held."""
        later = self.tokens - self.first_tokens
        known = (self.first_tokens > 0) & (later > 0)
        return _quotient(self.last_ns - self.first_ns, later, known)

    def ttft_s(self, start_ns: Int64s) -> Floats:
        """Seconds from `start_ns` to the first chunk; NaN where none came."""
        return _quotient(self.first_ns - start_ns, np.ones_like(start_ns), self.chunks > 0)

    def ntpot_s(self, start_ns: Int64s) -> Floats:
        """Normalised time per output token: from `start_ns` to the last chunk, over all tokens; NaN where unknown."""
        return _quotient(self.last_ns - start_ns, self.tokens, (self.chunks > 0) & (self.tokens > 0))


def pace(requests: Requests) -> Pace | None:
    """None where nothing was generated."""
    streams = requests.streams
    if streams is None:
        return None
    begin, end = streams.first[:-1], streams.first[1:]
    chunks = end - begin
    some = chunks > 0
    visible = some & (streams.reasoning_chunks < chunks)
    counted = _sums(streams.tokens, streams.first)
    by_chunk = some & (_sums((streams.tokens < 0).astype(np.int64), streams.first) == 0)
    return Pace(
        chunks=chunks,
        first_ns=_at(streams.t_ns, begin, some),
        visible_ns=_at(streams.t_ns, begin + streams.reasoning_chunks, visible),
        last_ns=_at(streams.t_ns, end - 1, some),
        tokens=np.where(by_chunk, counted, streams.output_tokens),
        first_tokens=_at(streams.tokens, begin, by_chunk),
    )


def gaps(streams: Streams) -> tuple[Int64s, Int64s, Int64s]:
    """(request, chunk, nanoseconds): every wait for a further chunk; `chunk` is the row of `streams` that ended it."""
    request = np.repeat(np.arange(len(streams.first) - 1), np.diff(streams.first))
    if len(request) < 2:
        return request[:0], request[:0], streams.t_ns[:0]
    chunk = np.flatnonzero(request[1:] == request[:-1]) + 1
    return request[chunk], chunk, streams.t_ns[chunk] - streams.t_ns[chunk - 1]


def arrivals(streams: Streams) -> tuple[Int64s, Floats]:
    """(request, tokens) of each chunk. Where the server gave a total only, it is spread evenly over the chunks, which
    is exact for every window that holds the whole answer; where it gave none, 0."""
    chunks = np.diff(streams.first)
    request = np.repeat(np.arange(len(chunks)), chunks)
    spread = np.maximum(streams.output_tokens, 0) / np.maximum(chunks, 1)
    return request, np.where(streams.tokens >= 0, streams.tokens, spread[request])


def _sums(values: Int64s, first: Int64s) -> Int64s:
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    return np.diff(total[first])


def _at(values: Int64s, rows: Int64s, known: Mask) -> Int64s:
    found = np.full(len(rows), UNKNOWN, dtype=np.int64)
    found[known] = values[rows[known]]
    return found


def _quotient(nanoseconds: Int64s, count: Int64s, known: Mask) -> Floats:
    seconds = np.full(len(nanoseconds), np.nan)
    seconds[known] = nanoseconds[known] / 1e9 / count[known]
    return seconds
