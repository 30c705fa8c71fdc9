"""One set of streams, scored as six tools would: the same words stand for different things.

Ten tokens in chunks of 4, 3 and 3 at 100, 200 and 300 ms are 33.3 ms a token here, 22.2 where one token is assumed in
the first chunk, 100 where chunks are taken for tokens, and 0 in the median where tokens of a chunk are spread apart
(MEASUREMENT.md 2.1 and 2.3 name the code). Each is computed from the same successes due in the window and from the
server's token counts, so only the definitions differ. What a tool makes of chunks without text (vLLM starts TTFT at
the first one), and its own tokenizer's count, can't be told from records that hold neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lab.errors import InputError
from lab.measure.figures import inside
from lab.measure.pace import Floats, Mask, Pace, arrivals, gaps, pace
from lab.measure.percentile import percentile
from lab.measure.records import OK, Requests, Streams, Window
from lab.spec import nearest

FIGURES = ("ttft_mean_s", "itl_mean_s", "itl_p50_s", "tpot_mean_s", "tokens_per_s")

WHY = {
    "lab": "Time after the first chunk, over the tokens after it, however many the first held; one value an answer. "
    "Tokens a second are all that came in the window; the others take the answers due in it, from first send to the "
    "last end, so what is still written after the window lowers theirs.",
    "vLLM": "ITL pools the gaps between chunks, so it grows with the tokens in a chunk; TPOT takes the first chunk "
    "for one token.",
    "AIPerf": "ITL takes the first chunk for one token, so an answer in large chunks looks faster than it is.",
    "GuideLLM": "ITL takes the first chunk for one token and weighs answers by their length; its time per output token "
    "includes the wait for the first.",
    "LLMPerf": "ITL is the whole time, the wait for the first included, over the chunks; it never asks how many tokens "
    "they hold.",
    "inference-perf": "ITL is pooled over tokens with 0 between those of one chunk, so its median is 0 wherever chunks "
    "hold several; TPOT takes the first chunk for one token.",
}
"""How each tool's figures come about, in one sentence."""


def rescore(requests: Requests, window: Window, tool: str, *, streamed: bool = True) -> dict[str, float | None]:
    """What `tool`, one of WHY, would print for these answers under the names of FIGURES; None where it prints no such
    figure, or nothing is known. Answers that were not `streamed` have no first token and no time between tokens, only a
    rate. InputError for another tool."""
    if tool not in WHY:
        raise InputError(f"tool {tool!r}: not one whose definitions are known{nearest(tool, WHY)}")
    nothing: dict[str, float | None] = dict.fromkeys(FIGURES)
    found, streams = pace(requests), requests.streams
    if found is None or streams is None:
        return nothing
    rows = inside(requests.due_ns, window) & (requests.outcome == OK) & (requests.sent_ns >= 0) & (found.chunks > 0)
    if not rows.any():
        return nothing
    answers = _Answers(requests, streams, found, rows, window)
    scored = nothing | {"ttft_mean_s": _mean(found.ttft_s(requests.sent_ns)[rows])} | _SCORES[tool](answers)
    return scored if streamed else nothing | {"tokens_per_s": scored["tokens_per_s"]}


@dataclass(frozen=True)
class _Answers:
    """The streamed answers that all tools score: the requests that are `rows`."""

    requests: Requests
    streams: Streams
    found: Pace
    rows: Mask
    window: Window

    @property
    def tokens(self) -> Floats:
        """N of each answer, NaN where the server did not count."""
        tokens = self.found.tokens[self.rows].astype(np.float64)
        return np.where(tokens >= 0, tokens, np.nan)

    @property
    def written_s(self) -> Floats:
        """From the first chunk to the last."""
        return (self.found.last_ns - self.found.first_ns)[self.rows] / 1e9

    @property
    def whole_s(self) -> Floats:
        """From the send to the last chunk."""
        return (self.found.last_ns - self.requests.sent_ns)[self.rows] / 1e9

    @property
    def several(self) -> Mask:
        """Answers of more than one token."""
        return self.tokens > 1

    def by_n_minus_1(self) -> Floats:
        return self.written_s[self.several] / (self.tokens[self.several] - 1)

    def gaps_s(self) -> Floats:
        request, _, gap_ns = gaps(self.streams)
        return gap_ns[self.rows[request]] / 1e9

    def token_gaps_s(self) -> Floats:
        """Gaps between tokens when those of one chunk came at the same moment."""
        gap_s = self.gaps_s()
        apart = int(np.nansum(self.tokens[self.several] - 1))
        return np.concatenate([gap_s, np.zeros(max(apart - len(gap_s), 0))])

    def per_second(self, *, of_all: bool = False) -> float | None:
        """Tokens of these answers over the time from the first send to the last end, of them or of all requests."""
        own = self.requests.sent_ns >= 0 if of_all else self.rows
        took_ns = int(self.requests.done_ns[own].max() - self.requests.sent_ns[own].min())
        total = float(np.nansum(self.tokens))
        return total / (took_ns / 1e9) if took_ns > 0 and total > 0 else None


def _lab(a: _Answers) -> dict[str, float | None]:
    itl_s = a.found.itl_s[a.rows]
    _, tokens = arrivals(a.streams)
    received = float(tokens[inside(a.streams.t_ns, a.window)].sum())
    rate = received / a.window.seconds if received and a.window.seconds > 0 else None
    return {"itl_mean_s": _mean(itl_s), "itl_p50_s": _median(itl_s), "tokens_per_s": rate}


def _vllm(a: _Answers) -> dict[str, float | None]:
    gaps_s = a.gaps_s()
    return {
        "itl_mean_s": _mean(gaps_s),
        "itl_p50_s": _median(gaps_s),
        "tpot_mean_s": _mean(a.by_n_minus_1()),
        "tokens_per_s": a.per_second(),
    }


def _aiperf(a: _Answers) -> dict[str, float | None]:
    itl_s = a.by_n_minus_1()
    return {"itl_mean_s": _mean(itl_s), "itl_p50_s": _median(itl_s), "tokens_per_s": a.per_second()}


def _guidellm(a: _Answers) -> dict[str, float | None]:
    later, counted = a.tokens[a.several] - 1, a.tokens > 0
    tokens = float(a.tokens[counted].sum())
    return {
        "itl_mean_s": float(a.written_s[a.several].sum() / later.sum()) if len(later) else None,
        "itl_p50_s": _median(np.repeat(a.by_n_minus_1(), later.astype(np.int64))),
        "tpot_mean_s": float(a.whole_s[counted].sum()) / tokens if tokens else None,
        "tokens_per_s": a.per_second(),
    }


def _llmperf(a: _Answers) -> dict[str, float | None]:
    itl_s = a.whole_s / a.found.chunks[a.rows]
    return {"itl_mean_s": _mean(itl_s), "itl_p50_s": _median(itl_s), "tokens_per_s": a.per_second(of_all=True)}


def _inference_perf(a: _Answers) -> dict[str, float | None]:
    gaps_s = a.token_gaps_s()
    return {
        "itl_mean_s": _mean(gaps_s),
        "itl_p50_s": _median(gaps_s),
        "tpot_mean_s": _mean(a.by_n_minus_1()),
        "tokens_per_s": a.per_second(),
    }


_SCORES: dict[str, Callable[[_Answers], dict[str, float | None]]] = {
    "lab": _lab,
    "vLLM": _vllm,
    "AIPerf": _aiperf,
    "GuideLLM": _guidellm,
    "LLMPerf": _llmperf,
    "inference-perf": _inference_perf,
}


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _median(values: Floats) -> float | None:
    return percentile(values[~np.isnan(values)], 0.5)
