"""Lists of checks and of runs, as rows of plain widgets: readable by a screen reader, usable by keyboard alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import streamlit as st

from lab.errors import LabError
from lab.home import home
from lab.run import folder, results
from lab.run.folder import RunFolder
from lab.show.ui import chore, reads, runs
from lab.show.ui.words import LOG, UNREADABLE, badge, cannot_be_shown, when

PAGE_SIZE = 12
COLUMNS = (3.2, 1.5, 1.8, 3.2, 3.0)


def readiness() -> None:
    """What this machine has and lacks, with what to do about it."""
    slot = st.empty()
    with slot.skeleton(height=220):
        checks = reads.readiness()
    with slot.container():
        missing = [check for check in checks if not check.ok]
        if not missing:
            st.markdown(":material/check_circle: **Everything a run needs is here.**")
        for check in missing:
            st.markdown(f":orange-badge[:material/build: {check.name}] {check.found}")
            if check.remedy and not check.fetch:
                st.caption(check.remedy)
        if fetched := [check.fetch for check in missing if check.fetch]:
            st.caption("Each is fetched when it is first used; or now, so that nobody waits later.")
            chore.offer("fetch", "Fetch what is missing", ["fetch", *fetched], icon=":material/download:", done=forget)
        present = [check for check in checks if check.ok]
        with st.expander(f"{len(present)} checks passed", type="compact"):
            for check in present:
                st.markdown(f":green[:material/check:] **{check.name}** · {check.found}")


def forget() -> None:
    reads.readiness.clear()


def recent(count: int) -> None:
    """The newest runs, each a link to what it found."""
    lines = reads.run_lines()
    if not lines:
        st.info("Nothing has run yet. The button above makes the first one.", icon=":material/info:")
        return
    for line in lines[:count]:
        link, state = st.columns([1, 1], vertical_alignment="center")
        with link:
            _link(line)
        state.markdown(f"{badge(line.state)} :small[{when(line.created_utc)}]")
    if len(lines) > count:
        st.page_link("pages/runs.py", label=f"All {len(lines)} runs", icon=":material/list:")


def table(lines: Sequence[reads.RunLine]) -> None:
    """Runs with their state, figures to take away, and deletion."""
    header = st.container(key="runs_header").columns(COLUMNS, vertical_alignment="center", gap="small")
    for column, title in zip(header, ("Run", "State", "Started", "Id", ""), strict=True):
        column.markdown(f":small[:gray[**{title}**]]" if title else "")
    for line in lines:
        run, state, started, run_id, actions = st.columns(COLUMNS, vertical_alignment="center", gap="small")
        with run:
            _link(line)
        state.markdown(badge(line.state))
        started.markdown(f":small[{when(line.created_utc)}]")
        run_id.markdown(f":small[`{line.run_id}`]")
        with actions.container(horizontal=True, wrap=False, gap="xsmall", horizontal_alignment="right"):
            st.download_button(
                "JSON",
                data=partial(_figures, line.run_id),
                file_name=f"{line.run_id}.json",
                mime="application/json",
                key=f"figures_{line.run_id}",
                icon=":material/download:",
                type="tertiary",
                on_click="ignore",
                disabled=line.state == "damaged",
                help="The run's figures as JSON, built when you click",
            )
            if st.button(
                "Delete",
                key=f"delete_{line.run_id}",
                icon=":material/delete:",
                type="tertiary",
                disabled=line.active,
                help="Stop it first" if line.active else "Asks before it deletes",
            ):
                _confirm_delete(line.run_id, line.what)
        if line.state == "damaged":
            st.caption(line.message.replace(f"{home()}/", ""))


def _link(line: reads.RunLine) -> None:
    damaged = line.state == "damaged"
    label = "unreadable" if damaged else line.what
    runs.link(line.run_id, line.experiment, label, active=line.active, disabled=damaged)


def matching(lines: Sequence[reads.RunLine], words: str | None, state: str | None) -> list[reads.RunLine]:
    """The runs that hold every word of the search and are in the state, where one is chosen."""
    wanted = (words or "").lower().split()
    return [
        line
        for line in lines
        if (state is None or line.state == state)
        and all(word in f"{line.run_id} {line.what}".lower() for word in wanted)
    ]


def one_page(lines: Sequence[reads.RunLine], key: str) -> Sequence[reads.RunLine]:
    """As many as fit one screen; a stepper chooses which, when there are more."""
    pages = max(1, -(-len(lines) // PAGE_SIZE))
    if pages == 1:
        return lines
    page = st.number_input(f"Page of {pages}", 1, pages, 1, key=key, bind="query-params", width=160)
    return lines[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]


@st.dialog("Delete this run?")
def _confirm_delete(run_id: str, what: str) -> None:
    st.markdown(f"**{what}** and its records go for good: `{run_id}`")
    with st.container(horizontal=True):
        st.button("Delete it", key="confirm_delete", type="primary", on_click=delete, args=(run_id,))
        st.button("Keep it", key="keep")


def delete(run_id: str) -> None:
    """Remove a run; a refusal is told on the page."""
    try:
        folder.delete(run_id)
    except LabError as error:
        st.session_state["runs_said"] = str(error)
    reads.run_lines.clear()


def _figures(run_id: str) -> str:
    """The document; where there is none, why. A download that fails has no other place to say so."""
    try:
        return json.dumps(results.document(RunFolder.open(run_id)), indent=1)
    except LabError as error:
        why = str(error)
    except UNREADABLE as error:
        LOG.exception("run %s has no figures", run_id)
        why = cannot_be_shown(error, run_id)
    return json.dumps({"run": run_id, "error": why}, indent=1)
