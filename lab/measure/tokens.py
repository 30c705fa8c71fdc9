"""The token figures of a summary, from the chunks of streamed answers. Definitions: fields.TokenFields.

Each function adds its fields to a `Figures`, a value or None with the reason, like those of figures.py.
"""

from __future__ import annotations

import numpy as np

from lab.measure.fields import TokenFields
from lab.measure.figures import NO_OBJECTIVE, NO_SUCCESS, NO_WINDOW, Figures, distribution, inside, intervals
from lab.measure.objective import good
from lab.measure.pace import Floats, Mask, Pace, arrivals, gaps, pace
from lab.measure.percentile import needed, ordered_at
from lab.measure.records import CANCELLED, OK, Requests, Streams, Window
from lab.spec import Slo

TTFT = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
ITL = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ICL = {"p50": 0.5, "p99": 0.99}

NOT_STREAMED = "no answer was streamed"
NOT_COUNTED = "the server did not count the tokens of its answers"
ONE_CHUNK = "no answer held tokens after its first chunk, or the server did not say how many each chunk held"
ALL_FAILED = "every answer that wrote tokens failed"
NO_REASONING = "no answer began with reasoning, so this is the time to first token"


def token_figures(figures: Figures, requests: Requests, window: Window, *, slo: Slo | None, live: bool) -> int:
    """Adds the fields of TokenFields; returns how many answers came without the server's count of their tokens."""
    found, streams = pace(requests), requests.streams
    if found is None or streams is None:
        for name in TokenFields.__dataclass_fields__:
            figures.set(name, None, NOT_STREAMED)
        return 0
    _output(figures, requests, streams, found, window, slo=slo, live=live)
    answered = inside(requests.due_ns, window) & (requests.outcome == OK) & (requests.sent_ns >= 0)
    _lengths(figures, streams, found, answered)
    _first_token(figures, requests, found, answered, window)
    _pace(figures, requests, streams, found, answered)
    return int(((found.chunks > 0) & (found.tokens < 0)).sum())


def _output(
    figures: Figures,
    requests: Requests,
    streams: Streams,
    found: Pace,
    window: Window,
    *,
    slo: Slo | None,
    live: bool,
) -> None:
    """Tokens by arrival. A live window's last answers are still being written, and counted when they end."""
    request, tokens = arrivals(streams)
    counts = inside(requests.done_ns, window)[request] if live else inside(streams.t_ns, window)
    incomplete = counts & (requests.outcome != OK)[request]
    total = round(float(tokens[counts].sum())) if found.counts else None
    broken = round(float(tokens[incomplete].sum())) if found.counts else None
    figures.set("output_tokens", total, NOT_COUNTED)
    figures.set("output_tokens_incomplete", broken, NOT_COUNTED)
    rate = total / window.seconds if total is not None and window.seconds > 0 else None
    why_none = NO_WINDOW if found.counts else NOT_COUNTED
    writing = requests.outcome[request[counts]]
    if len(writing) and not ((writing == OK) | (writing == CANCELLED)).any():  # no throughput of failures alone
        rate, why_none = None, ALL_FAILED
    figures.set("output_tokens_per_s", rate, why_none)
    in_time = None if rate is None or slo is None else float(tokens[counts & good(requests, slo)[request]].sum())
    why = NO_OBJECTIVE if slo is None else why_none
    figures.set("good_tokens_per_s", None if in_time is None else in_time / window.seconds, why)


def _lengths(figures: Figures, streams: Streams, found: Pace, answered: Mask) -> None:
    for name, tokens in (("prompt_tokens_mean", streams.prompt_tokens), ("output_tokens_mean", found.tokens)):
        known = answered & (tokens >= 0)
        why = NOT_COUNTED if answered.any() else NO_SUCCESS
        figures.set(name, float(tokens[known].mean()) if known.any() else None, why)


def _first_token(figures: Figures, requests: Requests, found: Pace, answered: Mask, window: Window) -> None:
    begun = answered & (found.chunks > 0)
    took_ns = found.first_ns[begun] - requests.sent_ns[begun]
    ordered = np.sort(took_ns)
    why = NOT_STREAMED if answered.any() else NO_SUCCESS
    distribution(figures, "ttft", ordered, TTFT, why, largest=False)
    intervals(figures, "ttft", requests.due_ns[begun], took_ns, ordered, window)
    visible = answered & (found.visible_ns >= 0)
    reasoned = bool((found.visible_ns[visible] > found.first_ns[visible]).any())
    waits_ns = (found.visible_ns - requests.sent_ns)[visible]
    enough = reasoned and len(waits_ns) >= needed(0.5)
    why = f"needs {needed(0.5)} successes, has {len(waits_ns)}" if reasoned else NO_REASONING
    figures.set("ttfo_p50_s", float(np.median(waits_ns)) / 1e9 if enough else None, why)


def _pace(figures: Figures, requests: Requests, streams: Streams, found: Pace, answered: Mask) -> None:
    nothing = ONE_CHUNK if answered.any() else NO_SUCCESS
    itl_ns = _known(found.itl_s[answered]) * 1e9
    distribution(figures, "itl", np.sort(itl_ns), ITL, nothing, largest=False, of="answers with several chunks")
    request, _, gap_ns = gaps(streams)
    pooled = ordered_at(gap_ns[answered[request]], ICL.values())
    distribution(figures, "icl", pooled, ICL, "no answer came in more than one chunk", largest=False, of="gaps")
    ntpot_s = _known(found.ntpot_s(requests.sent_ns)[answered])
    figures.set("ntpot_mean_s", float(ntpot_s.mean()) if len(ntpot_s) else None, NOT_COUNTED)
    itl_s = figures.values["itl_mean_s"]
    figures.set("decode_tokens_per_s_user", 1 / itl_s if itl_s else None, nothing)


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]
