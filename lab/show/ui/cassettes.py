"""Recorded runs on pages: which one stands in where nothing has run, the banner that says so, and playing one.

What is recorded is marked three times: by a banner, on each chart's title, and among the doubts of every document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from lab.errors import FolderError
from lab.run import cassette
from lab.run.folder import RunFolder
from lab.show.ui import reads
from lab.show.ui.words import when

KEY = "recorded"
"""In the session: the words on each chart while the page shows a recorded run, else None."""


def instead(fits: Callable[[reads.RunLine], bool]) -> RunFolder | None:
    """The recording that fits where no run of this machine does, with its banner; None where none is needed."""
    own = any(fits(line) and not line.active and line.state != "damaged" for line in reads.run_lines())
    line = None if own else next((line for line in reads.recorded_lines() if fits(line)), None)
    if line is None:
        return None
    try:
        folder = RunFolder.open(line.run_id)
    except FolderError as error:
        st.warning(str(error), icon=":material/album:")
        return None
    told(folder)
    return folder


def told(*folders: RunFolder) -> None:
    """The banner, and the mark for charts, where one of these runs was recorded."""
    found = [folder.document[KEY] for folder in folders if folder.document.get(KEY)]
    if not found:
        return
    st.session_state[KEY] = "recorded"
    for recorded in found[:1]:
        st.info(_words(recorded), icon=":material/album:", title="Recorded on another machine")


def _words(recorded: Mapping[str, Any]) -> str:
    first = f"{recorded['machine']} · {when(recorded['created_utc'])} · commit {recorded['commit']}."
    return " ".join([first, *recorded["thinned"], "Run it here for figures of your own."])


def watchable(folder: RunFolder) -> bool:
    """Whether its records show a load as it was; tells where to look instead when they do not."""
    recorded = folder.document.get(KEY)
    if not recorded or recorded["whole"]:
        return True
    st.info("Its records were thinned, so its course over time cannot be shown.", icon=":material/album:")
    return False


def players() -> dict[str, str]:
    """{name: words} of the recordings that can be played."""
    return {name: f"{m.title} on {m.model}" for name, m in cassette.shipped().items() if m.whole}
