"""How the state of a run is called and coloured, on every page alike."""

from __future__ import annotations

from typing import Literal

Colour = Literal["green", "blue", "orange", "red", "gray"]

STATES: dict[str, tuple[str, Colour, str]] = {
    # state: word, colour, icon. The word alone tells; colour and icon repeat it.
    "queued": ("queued", "gray", "hourglass_empty"),
    "starting": ("starting", "blue", "rocket_launch"),
    "warm-up": ("warming up", "blue", "trending_up"),
    "running": ("running", "blue", "play_circle"),
    "draining": ("draining", "blue", "pending"),
    "done": ("done", "green", "check_circle"),
    "failed": ("failed", "red", "error"),
    "cancelled": ("stopped", "orange", "stop_circle"),
    "interrupted": ("interrupted", "orange", "link_off"),
    "damaged": ("damaged", "red", "broken_image"),
}


def state_word(state: str) -> str:
    """The one word for a state, on badges and in filters."""
    return STATES.get(state, (state,))[0]
