"""Small pieces of text and colour that all pages share: a run's state as a badge, an error as one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.run.status import Status
from lab.show.states import STATES, state_word

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError)

LOG = logging.getLogger(__name__)


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


def title_of(experiment: Mapping[str, Any]) -> str:
    """What an experiment is called, from a run's document; "Load" for a load on one model."""
    return str(experiment.get("title") or experiment["id"].replace("_", " ").capitalize())


def why_ended(status: Status, document: Mapping[str, Any]) -> str:
    """How a run ended that is not done, in sentences: what its document says, or for one that an older version wrote,
    its last word."""
    said = str(document.get("ending") or status.message or f"The run is {state_word(status.state)}").rstrip(".")
    return f"{said[0].upper()}{said[1:]}."


def plain(text: str) -> str:
    """Text as it is: dollars and tildes mean something to Markdown."""
    return text.replace("$", "\\$").replace("~", "\\~")


@contextmanager
def told() -> Iterator[None]:
    """An error of the lab is one line on the page, never a traceback. So is whatever else goes wrong while a page is
    drawn, be it a run whose files are whole and yet make no sense, or a fault of the page: the log has the traceback.
    """
    try:
        yield
    except LabError as error:
        st.error(str(error), icon=":material/error:")
    except UNREADABLE as error:
        LOG.exception("a page cannot be shown")
        st.error(cannot_be_shown(error, st.query_params.get("run")), icon=":material/error:")


def cannot_be_shown(error: Exception, run_id: str | None) -> str:
    """One line for what was raised while run `run_id` was read or drawn, or a page that is about none. Which of the
    two is at fault does not show from the error."""
    said = " ".join(str(error).split())
    what = f"{said} is missing" if isinstance(error, KeyError) else said or type(error).__name__
    if run_id is None:
        return f"this page cannot be shown: {what}; that is a fault of the page, and the log has more"
    return f"run {run_id!r} cannot be shown: {what}; its files or the lab are at fault, and the log has more"
