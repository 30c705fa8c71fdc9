"""The track that is followed, in one bar on every page, and what the link hides.

`?track=` and `?hide=` stand in the link and, once given, stay for the session: a page that is opened from the menu
keeps them. Hiding is a teacher's courtesy and no secret: whoever changes the link sees all. What can be hidden: pages,
"answers", "verdicts", and "settings".
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import streamlit as st

from lab.measure.words import join, plural
from lab.show import told, tracks
from lab.show.tracks import HIDEABLE, Halt, Track
from lab.show.ui.words import plain

TRACK, HIDE, STEP = "track", "hide", "step"
BEGAN = "track_began"
CLOCK_S = 30.0
UNTOLD = "What was found is hidden by this link (hide=verdicts): read the charts, and say it yourself."
PAGES = [path.stem for path in (Path(__file__).parents[3] / "pages").glob("*.py")]


def read_link() -> None:
    """What the link says of track and hiding, kept for the session and written back."""
    for name in (TRACK, HIDE):
        if (given := st.query_params.get(name)) is not None:
            if given != st.session_state.get(name) and name == TRACK:
                st.session_state[BEGAN] = time.monotonic()
            st.session_state[name] = given
        elif st.session_state.get(name):
            st.query_params[name] = st.session_state[name]
    found, strangers = tracks.hidden(st.session_state.get(HIDE) or "", PAGES)
    st.session_state["hidden"] = found
    st.session_state["hide_strangers"] = strangers


def hides(what: str) -> bool:
    """Whether the link hides "answers", "verdicts", "settings" or a page."""
    return what in st.session_state.get("hidden", frozenset())


def finding(text: str) -> None:
    """What was found, as `headline` says it; where the link hides verdicts, a word in its place."""
    if hides("verdicts"):
        st.caption(UNTOLD)
    else:
        headline(text)


def headline(text: str) -> None:
    """The first sentence large; what follows it below, as a list where that is long."""
    first, rest = told.laid_out(text)
    st.markdown(f"#### {plain(first)}")
    if rest:
        st.markdown(plain(rest[0] if len(rest) == 1 else "\n".join(f"- {one}" for one in rest)))


def visibility(page: str) -> Literal["visible", "hidden"]:
    """Whether the menu shows this page."""
    return "hidden" if hides(page) else "visible"


def bar(page: str) -> None:
    """The bar of the track that is followed, on its pages and beside them; what the link asks to hide that is not
    there."""
    if strangers := st.session_state.get("hide_strangers"):
        allowed = f"allowed: {join(HIDEABLE)}, and each page but Start"
        st.caption(f"hide={', '.join(strangers)}: nothing of that name can be hidden; {allowed}.")
    key = st.session_state.get(TRACK)
    if not key:
        return
    if key not in tracks.BY_KEY:
        st.caption(f"track={key}: there is none; allowed: {', '.join(tracks.BY_KEY)}.")
        return
    track = tracks.BY_KEY[key].without(st.session_state.get("hidden", frozenset()))
    place = _place(track, page)
    with st.container(border=True, key="track"):
        if place is None:
            _beside(track)
        else:
            _at(track, place)


def chooser() -> None:
    """The tracks there are, each a link to its first stop."""
    for track in tracks.TRACKS:
        first = track.halts[0]
        st.page_link(
            first.file,
            label=f"**{track.title}**, {track.minutes} min · {track.about}",
            icon=":material/route:",
            query_params={TRACK: track.key, STEP: "1", **dict(first.params)},
        )


def _place(track: Track, page: str) -> int | None:
    step = st.query_params.get(STEP, "")
    asked = int(step) - 1 if step.isdecimal() and len(step) < 3 else None
    if asked is not None and 0 <= asked < len(track.halts) and track.halts[asked].page == page:
        place: int | None = asked
    else:
        place = track.place(page, st.session_state.get("track_at"))
    if place is not None:
        st.session_state["track_at"] = place
    return place


def _at(track: Track, place: int) -> None:
    halt = track.halts[place]
    st.markdown(
        f":material/route: **{track.title}** · stop {place + 1} of {len(track.halts)}: **{halt.title}**, "
        f"{halt.minutes} min · {halt.does}"
    )
    before = sum(h.minutes for h in track.halts[:place])
    st.progress(before / track.minutes, text=f"{before} of {track.minutes} min are behind you by the plan")
    with st.container(horizontal=True, vertical_alignment="center"):
        if place > 0:
            _link(track, place - 1, "Back", ":material/arrow_back:")
        if place + 1 < len(track.halts):
            _link(track, place + 1, f"Next: {track.halts[place + 1].title}", ":material/arrow_forward:")
        else:
            st.markdown(":material/flag: The last stop.", width="content")
        _leave()
        _clock(track, before + halt.minutes)


def _beside(track: Track) -> None:
    at = min(st.session_state.get("track_at", 0), len(track.halts) - 1)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f":material/route: **{track.title}** waits while you look around.", width="content")
        _link(track, at, f"Back to {track.halts[at].title}", ":material/arrow_back:")
        _leave()


def _link(track: Track, place: int, label: str, icon: str) -> None:
    halt: Halt = track.halts[place]
    params = {TRACK: track.key, STEP: str(place + 1), **dict(halt.params)}
    st.page_link(halt.file, label=label, icon=icon, query_params=params)


def _leave() -> None:
    def leave() -> None:
        for name in (TRACK, "track_at", BEGAN):
            st.session_state.pop(name, None)
        for name in (TRACK, STEP):
            st.query_params.pop(name, None)

    st.button("Leave the track", key="track_leave", type="tertiary", on_click=leave)


@st.fragment(run_every=CLOCK_S, key="track_clock")
def _clock(track: Track, due_min: int) -> None:
    """How long it has gone on; late is said in words."""
    began = st.session_state.get(BEGAN)
    if began is None:
        return
    gone = int((time.monotonic() - began) / 60)
    late = f", {plural(gone - due_min, 'minute')} over the plan" if gone > due_min else ""
    st.markdown(f":small[:material/timer: {gone} min since you began{late}]", width="content")
