"""Recorded runs on pages: which one stands in where nothing has run, the banner that says so, and playing one.

What is recorded is marked three times: by a banner, on each chart's title, and among the doubts of every document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
    found = [folder.document[KEY] for folder in folders if is_recorded(folder)]
    if not found:
        return
    st.session_state[KEY] = "recorded"
    for recorded in found[:1]:
        st.info(_words(recorded), icon=":material/album:", title="Recorded on another machine")


def _words(recorded: Mapping[str, Any]) -> str:
    """Where and when; what was thinned stands among the doubts and in the list of recordings (`listed`)."""
    place = f"{recorded['machine']} · {when(recorded['created_utc'])} · commit {recorded['commit']}"
    return f"{place}. Run it here for figures of your own."


def others(kinds: Collection[str], folder: RunFolder) -> None:
    """Links to the other recordings of these experiments, where the page shows one of them."""
    from lab.show.ui import runs  # which asks this module what stands in where nothing has run

    if not is_recorded(folder):
        return
    with st.container(horizontal=True):
        st.markdown("Recorded too:", width="content")
        for line in reads.recorded_lines():
            if line.experiment in kinds and line.run_id != folder.run_id:
                runs.link(line.run_id, line.experiment, line.what.removesuffix(", recorded"))


def is_recorded(folder: RunFolder) -> bool:
    return bool(folder.document.get(KEY))


def watchable(folder: RunFolder) -> bool:
    """Whether its records show a load as it was; tells that they do not, and why."""
    recorded = folder.document.get(KEY)
    if not recorded or recorded["whole"]:
        return True
    text = "Its records were thinned when it was recorded, so its course over time cannot be shown."
    st.info(text, icon=":material/album:")
    return False


def player() -> None:
    """A choice of the recordings that play with their own timing, and the button."""
    some = {name: manifest for name, manifest in cassette.shipped().items() if manifest.plays}
    # First what was made to be watched.
    found = dict(sorted(some.items(), key=lambda item: item[1].experiment != "load"))
    if not found:
        return
    st.caption("Recorded runs play on the live page with their own timing; no server and no model is needed.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Recorded run",
            list(found),
            key="play_name",
            format_func=lambda name: f"{found[name].title} on {found[name].model}, {when(found[name].created_utc)}",
        )
        going = bool(reads.active_runs())
        help_text = "A run goes on: drawing a replay would disturb it." if going else None
        if st.button("Play it", key="play", icon=":material/play_arrow:", disabled=going, help=help_text):
            from lab.show.ui import runs  # which asks this module what stands in where nothing has run

            runs.replay(name)


def listed(*, opened: bool = False) -> None:
    """Every recording that comes with the lab, folded up unless `opened`, each with a link to its page."""
    from lab.show.ui import runs

    found = cassette.shipped()
    title = f"{len(found)} recorded runs come with the lab"
    with st.expander(title, icon=":material/album:", type="compact", expanded=opened):
        for manifest in found.values():
            runs.link(manifest.run, manifest.experiment, f"{manifest.title} on {manifest.model}, recorded")
            st.caption(f"{manifest.machine} · {when(manifest.created_utc)} · {' '.join(manifest.thinned)}")
