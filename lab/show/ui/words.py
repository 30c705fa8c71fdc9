"""Small pieces of text and colour that all pages share: a run's state as a badge, an error as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Literal

import streamlit as st

from lab.errors import LabError
from lab.run.status import Status

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


def badge(state: str) -> str:
    """Markdown for a state."""
    word, colour, icon = STATES.get(state, (state, "gray", "help"))
    return f":{colour}-badge[:material/{icon}: {word}]"


def when(created_utc: str) -> str:
    """ "30 Nov 03:25 UTC" from an ISO time; the text itself when it is none."""
    try:
        return f"{datetime.fromisoformat(created_utc):%-d %b %H:%M} UTC"
    except ValueError:
        return created_utc


def why_ended(status: Status) -> str:
    """Why a run is not done, as the end of a sentence."""
    if status.state == "interrupted":
        return "the process of this run is gone without a word"
    word = {"failed": "the run failed", "cancelled": "the run was stopped"}.get(
        status.state, f"the run is {status.state}"
    )
    said = status.message.strip().rstrip(".")
    return f"{word}: {said}" if said and said != "stopped by the user" else word


@contextmanager
def told() -> Iterator[None]:
    """An error of the lab is one line on the page, never a traceback."""
    try:
        yield
    except LabError as error:
        st.error(str(error), icon=":material/error:")
