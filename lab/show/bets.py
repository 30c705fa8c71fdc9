"""A bet placed before a run, scored after it: which way, and by how much.

A prediction that was written down turns reading a chart into learning from it. Pure.
"""

from __future__ import annotations

from typing import Any

from lab.measure.words import format_ratio

DIRECTIONS = ("more", "about the same", "fewer")
SIZES = ("1.2×", "1.5×", "2×", "3×", "5×", "10×")
CLOSE = 1.5
"""A guess within this factor of what was measured counts as close."""


def measured_direction(effect: dict[str, Any]) -> str | None:
    """The bet's word for what the verdict found; None when nothing could be compared."""
    words = {"higher": "more", "lower": "fewer", "no detectable difference": "about the same"}
    return words.get(effect["verdict"])


def score(direction: str, size: str, effect: dict[str, Any] | None) -> tuple[bool | None, str]:
    """(right, sentence): whether the direction was right, and how far off the size was. None: not decided."""
    if effect is None or measured_direction(effect) is None:
        reason = (effect or {}).get("reason") or "the run has no comparison at this load"
        return None, f"Your bet stays open: {reason.rstrip('.')}."
    found, ratio = measured_direction(effect), effect["ratio"]
    said = f"{direction}, {size}" if direction != DIRECTIONS[1] else direction
    was = found if ratio is None else f"{found}, {format_ratio(ratio)}"
    if direction != found:
        return False, f"You bet on {said}; measured: {was}."
    if direction == DIRECTIONS[1] or ratio is None or ratio <= 0:
        return True, f"You bet on {said}; measured: {was}. Right."
    guess = float(size.removesuffix("×"))
    off = max(guess / max(ratio, 1 / ratio), max(ratio, 1 / ratio) / guess)
    if off <= CLOSE:
        return True, f"You bet on {said}; measured: {was}. Right, and close."
    way = "overestimated" if guess > max(ratio, 1 / ratio) else "underestimated"
    return True, f"You bet on {said}; measured: {was}. Right way, {way} by a factor of {off:.1f}."
