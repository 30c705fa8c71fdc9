"""A sceptic's questions on the page Design review: the open ones with a place to waive each, then those answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.measure.redteam import Question
from lab.measure.words import plural
from lab.run import waivers
from lab.run.folder import RunFolder
from lab.show.ui.words import plain


def questions(folder: RunFolder, asked: Sequence[Question]) -> None:
    """The open questions, each with a place to waive it or what it was waived for, then those that are answered."""
    kept = waivers.kept(folder)
    if refused := st.session_state.pop("v_refused", None):
        st.error(refused, icon=":material/error:")
    for question in asked:
        if question.status != "open":
            continue
        waiver = kept.get(question.code)
        icon = ":material/help:" if waiver is None else ":material/gavel:"
        label = question.question if waiver is None else f"{question.question} (waived by {plain(waiver.who)})"
        with st.expander(label, icon=icon, key=f"v_q_{question.code}"):
            st.markdown(plain(question.answer))
            if waiver is None:
                _waive(folder, asked, question)
                continue
            st.markdown(f":gray-badge[:material/gavel: waived] {plain(str(waiver))}")
            st.button(
                "Take it back",
                key=f"v_back_{question.code}",
                icon=":material/undo:",
                on_click=_written,
                args=(waivers.take_back, folder.run_id, question.code, waiver.who),
            )
    answered = [question for question in asked if question.status == "answered"]
    if answered:
        with st.expander(f"{plural(len(answered), 'question')} that the run answers", icon=":material/check:"):
            for question in answered:
                st.markdown(f"- **{question.question}** {plain(question.answer)}")


def _waive(folder: RunFolder, asked: Sequence[Question], question: Question) -> None:
    """A name and a reason, kept with the run once both are there."""
    names = (f"v_who_{question.code}", f"v_why_{question.code}")

    def keep() -> None:
        who, why = (st.session_state.get(name) or "" for name in names)
        _written(waivers.waive, folder.run_id, asked, question.code, who, why)

    with st.form(f"v_form_{question.code}", border=False):
        left, middle, right = st.columns([2, 5, 2], vertical_alignment="bottom")
        left.text_input("Waived by", key=names[0], placeholder="your name")
        middle.text_input("Because", key=names[1], placeholder="what makes it acceptable")
        right.form_submit_button("Waive it", icon=":material/gavel:", on_click=keep, width="stretch")
    st.caption("Kept with the run: every report, this page in any browser and `lab review` show it by name.")


def _written(write: Callable[..., object], *arguments: Any) -> None:
    try:
        write(*arguments)
    except LabError as error:
        st.session_state["v_refused"] = str(error)
