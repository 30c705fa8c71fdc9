"""What makes a summary doubtful, in one sentence each, with what to do about it.

A problem never removes a figure: it stands beside it. `forbids_verdict` marks those under which a comparison would
compare something else than its two sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.measure.percentile import needed
from lab.measure.words import (
    format_count,
    format_fraction,
    format_rate,
    format_seconds,
    join,
    plural,
)

if TYPE_CHECKING:
    from lab.measure.figures import Failures
    from lab.measure.steady import Steadiness
    from lab.measure.summary import Summary

LAG_S = 0.010
LAG_FRACTION = 0.05
ACHIEVED = 0.99
CACHE_WARM = 0.01
LONGER = 1.1
"""Triton's counters are read around a window, not at its edges: means within this ratio may be of the same requests."""
FAILURE_KINDS = ("refused", "timeout", "cancelled", "truncated", "error")


@dataclass(frozen=True)
class Problem:
    """`code` is stable and for programs; `text` and `remedy` are for people."""

    code: str
    text: str
    remedy: str
    forbids_verdict: bool


@dataclass(frozen=True)
class Facts:
    """What the problems need beyond the summary's own fields. `recorded` counts all rows, `due` and `sent` the
    requests that were due and were sent in the window, `failures` those that failed in it, `uncounted` the answers
    whose tokens the server did not count, `waited_in_vain` the requests that were not sent within their timeout, and
    `queue_not_full` those that were refused for another reason than a full queue; `expected_success` is
    the fewest and the most that the server can have counted, `p` the percentile that the objective is about."""

    live: bool
    recorded: int
    due: int
    sent: int
    failures: Failures
    uncounted: int
    waited_in_vain: int
    queue_not_full: int
    steadiness: Steadiness | None
    expected_success: tuple[int, int] | None
    resets: int
    closed_loop: bool
    p: float


def lag_limit_s(s: Summary) -> float:
    """The largest send lag (p99) that is not the client's fault: 10 ms, or 5 % of the median latency if more, of the
    median time to first token where answers are streamed."""
    return max(LAG_S, LAG_FRACTION * (s.ttft_p50_s or s.latency_p50_s or 0.0))


def problems(summary: Summary, facts: Facts) -> tuple[Problem, ...]:
    """The worst first: those that forbid a verdict, then the others, each kind at most once."""
    return tuple(sorted(_all(summary, facts), key=lambda problem: not problem.forbids_verdict))


def _all(s: Summary, facts: Facts) -> Iterator[Problem]:
    cut = not facts.live and bool(s.cancelled or (s.planned or 0) > facts.recorded)
    if cut:
        yield _cut_short(s, facts)
    # That it was stopped says all where nothing came of it: the server and the length of the window are not at fault.
    if not (cut and (s.window_s is None or s.cancelled == facts.recorded)):
        if s.ok == 0 and not (facts.live and s.sent == 0):
            yield _no_success(s, facts)
        elif s.latency_n < needed(facts.p):
            yield _too_few(s, facts)
    yield from _client_limited(s, facts)
    # What was not sent because the run was stopped, or its server died, is no reason to ask for less.
    dropped = facts.waited_in_vain if cut else s.dropped
    if dropped and s.ok:  # where nothing succeeded, the failure comes first
        yield Problem(
            "dropped",
            f"{plural(dropped, 'planned request')} {'was' if dropped == 1 else 'were'} never sent.",
            "Lower the rate, or raise max_in_flight or the number of load workers.",
            False,
        )
    if s.ok and any(facts.failures.by_kind.values()):
        yield _failures(s, facts)
    if facts.uncounted:
        yield Problem(
            "tokens_uncounted",
            f"{plural(facts.uncounted, 'answer')} came without the server's own count of tokens: "
            "token figures are those of the others.",
            "Ask the server to send counts (stream_options.include_usage); counting again here would be a guess.",
            False,
        )
    if facts.steadiness is not None and not facts.steadiness.steady:
        yield _unsteady(facts.steadiness, facts.closed_loop)
    if s.cache_hit_fraction is not None and s.cache_hit_fraction >= CACHE_WARM:
        yield Problem(
            "cache_warm",
            f"{format_fraction(s.cache_hit_fraction)} of the answers came from the response cache: "
            "part of this measures the cache, not the model.",
            "Switch the response cache off, or send inputs that were not sent before.",
            True,
        )
    if facts.resets:
        yield Problem(
            "counters_reset",
            f"The model was reloaded {'once' if facts.resets == 1 else plural(facts.resets, 'time')} in the window: "
            "queue, compute and batch figures miss what Triton counted just before.",
            "For server figures of one setting, measure without a reload in between.",
            False,
        )
    yield from _server_mismatch(s, facts)
    if not facts.live and not facts.resets and longer_than_waited(s.server_mean_s, s.service_mean_s):
        yield Problem(
            "server_longer",
            f"By Triton's counters a request took {format_seconds(s.server_mean_s)} there, and the client waited "
            f"{format_seconds(s.service_mean_s)} for one: the counters are of other requests too, before and after the "
            "window or given up by the client.",
            "Read its queue and compute as those of a longer stretch; measure longer, so that the edges weigh less.",
            False,
        )
    if facts.closed_loop:
        yield Problem(
            "closed_loop",
            "Closed loop: each user waits for an answer before asking again, so a slow server is asked less "
            "and its latency looks better than independent users would find it.",
            "Use Poisson arrivals to judge latency; read throughput here.",
            False,
        )


def longer_than_waited(server_s: float | None, client_s: float | None) -> bool:
    """Whether the server's mean cannot be that of the requests whose mean the client measured."""
    return server_s is not None and client_s is not None and server_s > LONGER * client_s


def _cut_short(s: Summary, facts: Facts) -> Problem:
    never = max((s.planned or 0) - facts.recorded, 0)
    given_up = f"{plural(s.cancelled, 'request')} under way {'was' if s.cancelled == 1 else 'were'} given up"
    left = f"{given_up}, {format_count(never)} never begun" if never else given_up
    nothing = "" if s.window_s is not None else " Its warm-up was not over, so nothing of it counts."
    if not nothing and not s.ok:
        nothing = f" None had ended; {format_count(s.output_tokens)} tokens had come." if s.output_tokens else ""
        nothing = nothing or " None had ended."
    return Problem("cut_short", f"Cut short: {left}.{nothing}", "Let it run to its end before comparing.", True)


def _no_success(s: Summary, facts: Facts) -> Problem:
    if not facts.recorded:
        return Problem("no_success", "No request finished.", "Check that the server answers at all.", True)
    kinds = [f"{format_count(getattr(s, kind))} {kind}" for kind in FAILURE_KINDS if getattr(s, kind)]
    text = f"No request succeeded: {join(kinds) if kinds else 'none was sent'}{_detail(facts)}."
    return Problem("no_success", text, "Fix the failure first; there is nothing to measure.", True)


def _too_few(s: Summary, facts: Facts) -> Problem:
    need = needed(facts.p)
    if s.latency_n and s.window_s:
        remedy = f"For it, measure {format_seconds(s.window_s * need / s.latency_n)} or more at this rate."
    else:
        remedy = "Measure longer, or at a higher rate."
    # Few long answers may still hold many tokens, whose rate can be compared; a percentile says itself what it lacks.
    nothing_to_compare = s.latency_n < needed(0.5) and (s.output_tokens or 0) < needed(0.9)
    return Problem(
        "too_few_samples",
        f"{format_count(s.latency_n)} success{'' if s.latency_n == 1 else 'es'} in the window: "
        f"too few for p{facts.p * 100:g}, which needs {format_count(need)}.",
        remedy,
        nothing_to_compare,
    )


def _client_limited(s: Summary, facts: Facts) -> Iterator[Problem]:
    remedy = "Lower the rate, or give the load generator more workers or its own cores."
    # Two requests at the window's edges may fall on either side of it; that is no missing load.
    missing = facts.due - facts.sent
    if missing > max((1 - ACHIEVED) * facts.due, 2):
        yield Problem(
            "client_limited",
            f"The load generator sent {format_rate(s.sent_rps)} of the {format_rate(s.offered_rps)} that were due: "
            "this measures the client, not the server.",
            remedy,
            True,
        )
    elif s.send_lag_p99_s is not None and s.send_lag_p99_s > lag_limit_s(s):
        median_too = (s.send_lag_p50_s or 0.0) > lag_limit_s(s)
        yield Problem(
            "client_limited",
            f"The load generator sent late (median {format_seconds(s.send_lag_p50_s)}, "
            f"p99 {format_seconds(s.send_lag_p99_s)}): that wait is the client's own and is part of the latency.",
            remedy,
            median_too,
        )


def _failures(s: Summary, facts: Facts) -> Problem:
    kinds = [f"{format_count(count)} {kind}" for kind, count in facts.failures.by_kind.items() if count]
    return Problem(
        "failures",
        f"{format_fraction(s.error_fraction)} of the requests failed ({join(kinds)}{_detail(facts)}). "
        f"Latency is that of the successes alone.{_refused_unseen(s, facts)}",
        "Read goodput, which counts a failure as not served.",
        False,
    )


def _refused_unseen(s: Summary, facts: Facts) -> str:
    """Why Triton's own figures know nothing of the refused (triton 2.51); "" where there are neither."""
    if s.refused <= facts.queue_not_full or s.server_success_delta is None:
        return ""
    return (
        " Triton itself counts 0 of the refused: it turns a request away at a full queue before it counts one, so only "
        "the client knows of them."
    )


def _unsteady(found: Steadiness, closed_loop: bool) -> Problem:
    first, last = found.latency_mean_s[0], found.latency_mean_s[-1]
    if found.backlog_grows and not closed_loop:  # users who wait for their answers leave no backlog
        return Problem(
            "unsteady",
            f"The backlog grew: mean latency went from {format_seconds(first)} in the first third to "
            f"{format_seconds(last)} in the last. More arrives than is served: latency depends on how long you look.",
            "Read throughput and goodput here; for latency, offer less.",
            False,
        )
    rates, means = found.throughput_rps, found.latency_mean_s
    return Problem(
        "unsteady",
        f"Not steady: over the thirds of the window throughput ran from {format_rate(min(rates))} to "
        f"{format_rate(max(rates))}, mean latency from {format_seconds(min(means))} to {format_seconds(max(means))}.",
        "Warm up longer, measure longer, and look for other work on this machine.",
        False,
    )


def _server_mismatch(s: Summary, facts: Facts) -> Iterator[Problem]:
    if facts.expected_success is None or s.server_success_delta is None or facts.resets:
        return
    low, high = facts.expected_success
    counted = s.server_success_delta
    if low <= counted <= high:
        return
    if counted > high:
        text = (
            f"In the measured window Triton answered {format_count(counted)} requests, of which the client sent at "
            f"most {format_count(high)}."
        )
        remedy = "Somebody else uses this model: measure on a server of your own."
    else:
        text = (
            f"In the measured window Triton counted {format_count(counted)} successes, the client at least "
            f"{format_count(low)}."
        )
        remedy = "Read the server's figures with care: they miss requests, or belong to another model."
    yield Problem("server_count_mismatch", text, remedy, False)


def _detail(facts: Facts) -> str:
    return f"; most often: {facts.failures.detail}" if facts.failures.detail else ""
