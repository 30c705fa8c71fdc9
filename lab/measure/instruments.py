"""What makes a block's figures doubtful and its records do not show: a load generator near its own limits, a server
whose prefix cache had the prompts, a wall clock that was set. The other problems are in problems.py.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.measure.problems import CACHE_WARM, Problem
from lab.measure.words import format_count, format_fraction, format_rate, format_seconds

NEAR_CEILING = 0.7
MOSTLY_CACHED = 0.5
"""Of the prompts' tokens: from here on a prefix cache did most of what the first token waits for."""
CLOCK_STEP_S = 0.05


def near_ceiling(sent_rps: float | None, ceiling_rps: float | None) -> Problem | None:
    """A block that used most of what the load generator can send on this machine; beyond it there is no verdict on what
    the server can take."""
    return _near(sent_rps, ceiling_rps, "sent", format_rate, "latency")


def near_stream_ceiling(chunks_per_s: float | None, ceiling_per_s: float | None) -> Problem | None:
    """The same of a block of streamed answers, by the chunks that were read."""
    return _near(chunks_per_s, ceiling_per_s, "read", lambda rate: f"{format_count(rate)} chunks/s", "times of tokens")


def _near(
    rate: float | None, ceiling: float | None, did: str, written: Callable[[float], str], part: str
) -> Problem | None:
    if not rate or not ceiling or rate <= NEAR_CEILING * ceiling:
        return None
    beyond = rate >= ceiling
    return Problem(
        "near_ceiling",
        f"The load generator {did} {written(rate)}, {format_fraction(rate / ceiling)} of the {written(ceiling)} that "
        "it can on this machine: "
        + ("what limits here may be the client." if beyond else f"part of the {part} may be the client's."),
        "Give the load generator more workers or its own cores.",
        beyond,
    )


def prefix_warm(cached_fraction: float | None) -> Problem | None:
    """A server that says of how many of its prompts' tokens its prefix cache had the keys and values."""
    if cached_fraction is None or cached_fraction < CACHE_WARM:
        return None
    return Problem(
        "cache_warm",
        f"{format_fraction(cached_fraction)} of the prompts' tokens came from the server's prefix cache, by its own "
        "count, the warm-up included: the time to the first token is shorter than for prompts that it has not seen.",
        "Send prompts that were not sent before (another seed), or switch prefix caching off on both sides.",
        cached_fraction >= MOSTLY_CACHED,
    )


def clock_step(stepped_s: float) -> Problem | None:
    """A wall clock that did not go with the monotonic one while a block ran."""
    if abs(stepped_s) < CLOCK_STEP_S:
        return None
    how = "forward" if stepped_s > 0 else "back"
    return Problem(
        "clock_step",
        f"The wall clock was set {how} by {format_seconds(abs(stepped_s))} while the block ran. Durations are from the "
        "monotonic clock and stand; times of day, in logs and on other machines, do not fit them.",
        "Let the clock settle before times are held against another machine's.",
        False,
    )
