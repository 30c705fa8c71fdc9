"""Pieces of a sentence about one effect: an interval, a change of latency, a delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.measure.compare import Effect
from lab.measure.words import format_range, format_ratio, format_seconds, format_setting_s, join, metric_label

TELLING_SPAN = 100
"""An interval whose ends are further apart than this factor tells one bound, and no size."""


def latency_phrase(effects: Sequence[Effect]) -> str:
    """ "adds 5.1 ms to p50 (4.9 to 5.3 ms) and 5.3 ms to p99 (4.6 to 6.0 ms)"."""
    phrases: list[str] = []
    alike = [e for e in effects if e.verdict == "no detectable difference"]
    for effect in effects:
        label, size = metric_label(effect.metric), effect.difference or 0.0
        low, high = effect.difference_low or 0.0, effect.difference_high or 0.0
        if effect.verdict == "higher":
            verb = "adds " if not any(p.startswith("adds") for p in phrases) else ""
            phrases.append(f"{verb}{_change(effect, size, low, high, f'to {label}')}")
        elif effect.verdict == "lower":
            phrases.append(f"takes {_change(effect, -size, -high, -low, f'off {label}')}")
    if alike:
        phrases.append(f"makes no detectable difference to {join([metric_label(e.metric) for e in alike])}")
    return join(phrases)


def too_wide(effect: Effect) -> bool:
    """Whether the ratio's interval spans more than TELLING_SPAN: then one bound of it is all that is known."""
    return effect.ci_low is not None and effect.ci_high is not None and effect.ci_high > TELLING_SPAN * effect.ci_low


def ratio_phrase(effect: Effect) -> str:
    """ "2.6× (2.4 to 2.8×)", "at least 13×" of an interval that tells no more, "2.6×" without one."""
    return "".join(ratio_and_interval(effect))


def ratio_and_interval(effect: Effect) -> tuple[str, str]:
    """The two parts of ratio_phrase, for a sentence that has words between them."""
    if too_wide(effect) and effect.verdict in ("higher", "lower"):
        return _bound(effect), ""
    return format_ratio(effect.ratio), interval_phrase(effect)


def interval_phrase(effect: Effect) -> str:
    """ " (2.4 to 2.8×)", " (at least 13×)", " (too few samples to bound it)"; "" when there is no interval."""
    if effect.ci_low is None or effect.ci_high is None:
        return ""
    if too_wide(effect):
        return f" ({_bound(effect) if effect.verdict in ('higher', 'lower') else 'too few samples to bound it'})"
    return f" ({format_range(effect.ci_low, effect.ci_high, format_ratio)})"


def _bound(effect: Effect) -> str:
    """The bound nearer to no effect, of a level that is told apart."""
    if effect.verdict == "higher":
        return f"at least {format_ratio(effect.ci_low)}"
    return f"at most {format_ratio(effect.ci_high)}"


def _change(effect: Effect, size: float, low: float, high: float, of: str) -> str:
    """ "5.1 ms to p50 (4.9 to 5.3 ms)", "at least 43.5 ms to p50"."""
    if too_wide(effect):
        return f"at least {format_seconds(low)} {of}"
    return f"{format_seconds(size)} {of} ({format_range(low, high, format_seconds)})"


def delay_us(level: Any) -> float:
    """Triton's queue delay of a batching level; 0 without batching."""
    return float(level.get("max_queue_delay_us") or 0) if isinstance(level, dict) else 0.0


def a_delay(microseconds: float) -> str:
    """ "a 2 ms delay", "an 8 ms delay"."""
    words = format_setting_s(microseconds / 1e6)
    return f"{'an' if words.startswith(('8', '11 ', '18 ')) else 'a'} {words} delay"
