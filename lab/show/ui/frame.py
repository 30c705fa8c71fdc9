"""What frames every page: the name, the style, and one status line (run, Triton, GPU, the load generator's ceiling,
link)."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

from lab.run.folder import RUN_ID
from lab.show import feed
from lab.show.ui import guide, reads, recording
from lab.show.ui.words import badge, told

HERE = Path(__file__).parent
ICON = str(HERE / "icon.svg")  # a file: Streamlit would fetch an icon by name from outside


def with_app() -> None:
    """First line of every page. Until app.py has called st.navigation once, Streamlit 1.67 takes `pages/` for its old
    kind of app and runs a page that is opened by its link alone, without app.py; this starts it over, as it should be.
    """
    if PagesManager.uses_pages_directory:
        PagesManager.uses_pages_directory = False
        st.rerun()


def show(page: str) -> None:
    """The frame of `page`, the name of a file in pages/."""
    st.session_state["recorded"] = None  # until the page shows a recorded run (lab.show.ui.cassettes)
    st.logo((HERE / "logo.svg").read_text(), size="large")
    st.html(HERE / "style.css")
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key="strip"):
        _line([line.run_id for line in reads.active_runs()])
        with st.popover("Link", icon=":material/link:", type="tertiary", help="The link to what you see"):
            st.caption("Opens the same run with the same view; starts nothing.")
            st.code(st.context.url or "", language=None, wrap_lines=True)
            run_id = st.query_params.get("run", "")
            if RUN_ID.fullmatch(run_id):  # anything else in the link is no run, and nobody's command line
                st.caption("The same run in a terminal:")
                st.code(f"python -m lab show {run_id}", language=None, wrap_lines=True)
    guide.bar(page)


@st.fragment(key="strip_line")
def _line(known: list[str]) -> None:
    with told():
        _state_of_the_lab(known)


def _state_of_the_lab(known: list[str]) -> None:
    """Drawn again when the browser finds that the lab's state is another (recording.watch), and not before: a page that
    redraws itself shows in what is measured beside it."""
    token = feed.token()
    going = reads.active_runs()
    if {line.run_id for line in going} != {run_id for run_id, _ in feed.going()}:
        # What was kept is older than the token, and the browser asks for what is newer than that only.
        reads.run_lines.clear()
        going = reads.active_runs()
    if [line.run_id for line in going] != known:
        st.rerun()  # a run began or ended: buttons and lists of the page depend on it
    alive = reads.server()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if going:
            st.markdown(badge("queued" if going[0].state == "queued" else "running"), width="content")
            st.page_link("pages/live.py", label=going[0].what, query_params={"run": going[0].run_id})
            if len(going) > 1:
                st.markdown(f":gray-badge[:material/hourglass_empty: {len(going) - 1} waiting]", width="content")
        else:
            st.markdown(":gray-badge[:material/bedtime: no run]", width="content")
        # Which models it serves only Triton itself knows; the System page asks it.
        triton = "green-badge[:material/dns: Triton runs]" if alive else "orange-badge[:material/dns: no Triton]"
        st.markdown(f":{triton}", width="content")
        st.markdown(f":gray-badge[:material/memory: {reads.gpu()}]", width="content")
        st.markdown(f":gray-badge[:material/speed: {reads.ceiling()}]", width="content")
    recording.watch(token, _forget, key="strip_watch")


def _forget() -> None:
    """What is kept for a moment (lab.show.ui.reads) is older than what the browser saw."""
    reads.run_lines.clear()
    reads.server.clear()
