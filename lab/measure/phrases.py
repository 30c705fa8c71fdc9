"""Pieces of a sentence about one effect: an interval, a change of latency, a delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.measure.compare import Effect
from lab.measure.words import format_range, format_ratio, format_seconds, format_setting_s, join, metric_label


def latency_phrase(effects: Sequence[Effect]) -> str:
    """ "adds 5.1 ms to p50 (4.9 to 5.3 ms) and 5.3 ms to p99 (4.6 to 6.0 ms)"."""
    phrases: list[str] = []
    alike = [e for e in effects if e.verdict == "no detectable difference"]
    for effect in effects:
        label, size = metric_label(effect.metric), effect.difference or 0.0
        low, high = effect.difference_low or 0.0, effect.difference_high or 0.0
        if effect.verdict == "higher":
            verb = "adds " if not any(p.startswith("adds") for p in phrases) else ""
            phrases.append(f"{verb}{format_seconds(size)} to {label} ({format_range(low, high, format_seconds)})")
        elif effect.verdict == "lower":
            spared = format_range(-high, -low, format_seconds)
            phrases.append(f"takes {format_seconds(-size)} off {label} ({spared})")
    if alike:
        phrases.append(f"makes no detectable difference to {join([metric_label(e.metric) for e in alike])}")
    return join(phrases)


def interval_phrase(effect: Effect) -> str:
    """ " (2.4 to 2.8×)"; "" when there is no interval."""
    if effect.ci_low is None or effect.ci_high is None:
        return ""
    return f" ({format_range(effect.ci_low, effect.ci_high, format_ratio)})"


def delay_us(level: Any) -> float:
    """Triton's queue delay of a batching level; 0 without batching."""
    return float(level.get("max_queue_delay_us") or 0) if isinstance(level, dict) else 0.0


def a_delay(microseconds: float) -> str:
    """ "a 2 ms delay", "an 8 ms delay"."""
    words = format_setting_s(microseconds / 1e6)
    return f"{'an' if words.startswith(('8', '11 ', '18 ')) else 'a'} {words} delay"
