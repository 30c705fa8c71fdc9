"""Which runs a page compares or counts with, chosen from all that ended; the choice stands in the link.

run    the one run of a page, or on Compare the others, one after the other
base   the baseline of Compare
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from lab.errors import LabError
from lab.measure.sides import LETTERS, MOST
from lab.run.folder import RunFolder
from lab.run.sides import Name, cells
from lab.show.grid import Grid
from lab.show.ui import cassettes, reads, runs
from lab.show.ui.words import when

MOST_LISTED = 500


def run(label: str, key: str, lines: Sequence[reads.RunLine] | None = None) -> RunFolder | None:
    """The run in the link, else the newest of `lines` that was measured (of all that ended unless given), with a choice
    of another; None when there is none."""
    lines = lines if lines is not None else ended() or reads.recorded_lines()
    folder = runs.chosen(lambda line: line in lines)
    newest = reads.newest_measured(lines) if folder is None else None
    if folder is None and newest is None:
        return None
    known = {line.run_id: _words(line) for line in lines}
    chosen = folder.run_id if folder is not None else newest.run_id if newest is not None else ""
    if folder is not None:
        known.setdefault(chosen, chosen)
    st.session_state[key] = chosen  # the link decides; a choice changes the link

    def go() -> None:
        runs.remember(st.session_state[key])

    st.selectbox(label, list(known), key=key, format_func=known.__getitem__, on_change=go)
    if folder is None:
        folder = RunFolder.open(chosen)
        cassettes.told(folder)
    return folder


def names() -> list[Name]:
    """The baseline and the others, as the link has them and as the two choices below change them. Those that lead
    nowhere are told, and left out; a link whose baseline leads nowhere has none, and no other is taken in its place.
    Empty, with a word and a way on, where there is no baseline."""
    lines = ended() or reads.comparable_recordings()
    known = {line.run_id: _words(line) for line in lines}
    base, others = _asked(lines)
    what = {line.run_id: line.what for line in lines}
    listed = {**known, **{str(name): _named(name, what) for name in (*filter(None, [base]), *others)}}
    if not listed:
        st.info("Nothing was measured yet, so there is nothing to compare.", icon=":material/info:")
        st.page_link("pages/start.py", label="Go to Start", icon=":material/home:")
        return []
    options = list(listed)
    left, right = st.columns(2)
    st.session_state["c_base"] = None if base is None else str(base)
    st.session_state["c_runs"] = [str(name) for name in others]
    left.selectbox(
        "Baseline",
        options,
        key="c_base",
        format_func=listed.__getitem__,
        on_change=_write,
        placeholder="Choose what the others are compared with",
    )
    right.multiselect(
        "Against (up to five)",
        options,
        key="c_runs",
        format_func=listed.__getitem__,
        max_selections=MOST - 1,
        on_change=_write,
        placeholder="Choose runs to compare with the baseline",
    )
    if base is None:
        st.info("Choose a baseline above, or find one among the runs there are.", icon=":material/info:")
        st.page_link("pages/runs.py", label="See the runs there are", icon=":material/list:")
        return []
    chosen = [base, *others]
    cassettes.told(*(RunFolder.open(name.run_id) for name in chosen))
    return chosen


def cell(name: Name, place: int, levels: Sequence[str], chosen: int) -> None:
    """A choice among the cells of a run of many; it is written into the link. `place` 0 is the baseline."""
    key = f"c_cell_{place}"
    st.session_state[key] = chosen
    label = f"Cell of {LETTERS[place]}"

    def write() -> None:
        _put(place, str(Name(name.run_id, st.session_state[key])))

    st.selectbox(label, range(len(levels)), key=key, format_func=levels.__getitem__, on_change=write)


def _asked(lines: Sequence[reads.RunLine]) -> tuple[Name | None, list[Name]]:
    """What the link asks for; where it asks for no baseline, the newest run that was measured, and where that judges
    something, the two cells that its verdict begins with. None for a baseline that leads nowhere."""
    asked = st.query_params.get("base", "")
    base = _name(asked)
    runs_asked = st.query_params.get_all("run")
    others = [name for text in runs_asked if (name := _name(text)) is not None]
    if not asked and (newest := reads.newest_measured(lines)) is not None:
        base, first = _judged(newest.run_id)
        others = others if runs_asked else first
    if len(others) > MOST - 1:
        st.warning(f"The link names {len(others)} runs; the first {MOST - 1} are compared.", icon=":material/filter_5:")
    return base, list({str(name): name for name in others[: MOST - 1]}.values())


def _judged(run_id: str) -> tuple[Name, list[Name]]:
    """The baseline and the level of the verdict's headline, each as a cell; the run alone where it judges nothing."""
    folder = RunFolder.open(run_id)
    judge = folder.document["experiment"].get("judge")
    document = reads.document(folder) if judge else {}
    grid = Grid.of(document, judge["factor"], judge["baseline"]) if judge else None
    if grid is None or not grid.others():
        return Name(run_id), []
    level, load = grid.headline(document, judge)
    declared = cells(folder)
    pair = [grid.cells_at(name, load) for name in (grid.baseline, level)]
    if not all(pair) or any(found[0]["factors"] not in declared for found in pair):
        return Name(run_id), []
    base, other = (Name(run_id, declared.index(found[0]["factors"])) for found in pair)
    return base, [other]


def _name(text: str) -> Name | None:
    if not text:
        return None
    try:
        name = Name.read(text)
        RunFolder.open(name.run_id)
    except LabError as error:
        st.warning(str(error), icon=":material/search_off:")
        return None
    return name


def ended() -> list[reads.RunLine]:
    return [line for line in reads.run_lines() if not line.active and line.state != "damaged"][:MOST_LISTED]


def _words(line: reads.RunLine) -> str:
    return f"{line.what} · {when(line.created_utc)} · {line.run_id[-4:]}"


def _named(name: Name, what: dict[str, str]) -> str:
    """Short, as several stand in one field; the run's last letters and the cell as a command takes them."""
    if name.run_id not in what:
        return str(name)
    return f"{what[name.run_id]} · {name.run_id[-4:]}{'' if name.cell is None else f'.{name.cell}'}"


def _write() -> None:
    if (base := st.session_state["c_base"]) is not None:
        st.query_params["base"] = base
    st.query_params["run"] = st.session_state["c_runs"]


def _put(place: int, name: str) -> None:
    """Replace the baseline (place 0) or one of the others."""
    if place == 0:
        st.query_params["base"] = name
        return
    others = st.query_params.get_all("run")
    others[place - 1] = name
    st.query_params["run"] = others
