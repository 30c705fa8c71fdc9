"""Bets on pages: placing one, its score once the run is over, and the running score of this session and of all runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.measure.words import objective_label
from lab.run import results
from lab.run.folder import RunFolder
from lab.show import bets
from lab.show.bets import Bet, Scored
from lab.show.ui import guide, reads
from lab.show.ui.topic import Topic
from lab.spec import Slo


@dataclass(frozen=True)
class Wager:
    """What a page that is no Topic has to say of a bet, in a Topic's words."""

    prefix: str
    bet: str
    counted: str


OWN = "bets_of_session"
"""In the session: the runs that it started with a bet (lab.show.ui.runs.start)."""
ICONS = {
    "right": ":material/check:",
    "right direction": ":material/adjust:",
    "wrong": ":material/close:",
    "can't tell": ":material/help:",
}


def predict(topic: Topic | Wager, slo: Slo) -> None:
    """The bet on what meets `slo`: which way and how much. Half placed it lives in the link; the run that is then
    started keeps it."""
    st.markdown(topic.bet.format(objective=objective_label(slo)))
    direction = st.segmented_control(
        topic.counted,
        bets.DIRECTIONS,
        key=f"{topic.prefix}_bet",
        bind="query-params",
        label_visibility="collapsed",
    )
    if direction not in (None, bets.SAME):
        st.select_slider(
            "How many times as many, or as few",
            bets.SIZES,
            value="2×",
            key=f"{topic.prefix}_size",
            bind="query-params",
        )
    if not guide.hides("verdicts"):
        _running()


def placed(topic: Topic | Wager) -> Bet | None:
    """What the widgets of this page say now; no bet is needed to run."""
    direction = st.session_state.get(f"{topic.prefix}_bet")
    if direction not in bets.DIRECTIONS:
        return None
    size = st.session_state.get(f"{topic.prefix}_size", "2×")
    return Bet(direction, None if direction == bets.SAME else size)


def told(topic: Topic | Wager, folder: RunFolder, document: dict[str, Any]) -> None:
    """The score of the bet that this run keeps; of one that was placed when the run was there already, what it would
    be."""
    kept, late = Bet.of(folder.document), placed(topic)
    bet = kept or late
    if bet is None:
        return
    scored = bets.score(bet, *bets.judged(document, folder.document["experiment"]))
    after = "" if kept else " *Placed when the run was there already, so it does not count.*"
    st.markdown(f"{ICONS[scored.outcome]} {scored.text}{after}")


def _running() -> None:
    """Both scores in one line, and how they are counted."""
    lines = [line for line in reads.run_lines() if line.bet and not line.active and not line.recorded]
    every = {line.run_id: scored for line in lines if (scored := _scored(line.run_id, line.state)) is not None}
    if not every:
        return
    own = [every[run_id] for run_id in st.session_state.get(OWN, ()) if run_id in every]
    text = f"Your bets on this machine: {bets.tally(list(every.values()))}"
    st.caption(text + (f" In this session: {bets.tally(own)}" if own else ""), help=bets.EXPLAINED)


@st.cache_data(max_entries=2000, show_spinner=False)
def _scored(run_id: str, state: str) -> Scored | None:
    # The state is part of the key: a run that was seen as interrupted may have been continued since.
    try:
        folder = RunFolder.open(run_id)
        bet = Bet.of(folder.document)
        document = results.document(folder)
    except LabError:
        return None
    return None if bet is None else bets.score(bet, *bets.judged(document, folder.document["experiment"]))
