"""Presenting a design review: the same words as on its page, one slide at a time, in large type (style.css).

The arrow keys turn the slides, and so do two buttons; which one is shown stands in the link as `v_slide`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from lab.show.ui.chart import script

PRESENT, SLIDE = "v_present", "v_slide"

_KEYS = st.components.v2.component(
    "lab_keys", html="<span hidden></span>", js=script("keys"), isolate_styles=False
)  # fmt: skip

Slide = tuple[str, Callable[[], None]]
"""Its title, and what draws the rest of it."""


def asked() -> bool:
    """The switch, and whether it is on."""
    return st.toggle(
        "Present", key=PRESENT, bind="query-params", help="One slide at a time, in large type; the arrow keys turn them"
    )


def show(slides: Sequence[Slide]) -> None:
    """The slide in the link, and how to turn it."""
    place = _place(len(slides))
    title, draw = slides[place]
    with st.container(border=True, key="slide"):
        st.header(title)
        draw()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Back", key="v_back", icon=":material/arrow_back:", on_click=_turn, args=(-1,), disabled=place == 0)
        st.button(
            "Next", key="v_next", icon=":material/arrow_forward:", on_click=_turn, args=(1,),
            disabled=place + 1 == len(slides),
        )  # fmt: skip
        st.caption(f"Slide {place + 1} of {len(slides)}")
    _KEYS(data={}, key="v_keys", on_next_change=partial(_turn, 1), on_back_change=partial(_turn, -1))


def _place(count: int) -> int:
    """Of the slide in the link, from 0; the nearest there is."""
    said = st.query_params.get(SLIDE, "")
    return min(max(int(said) - 1, 0), count - 1) if said.isdecimal() and len(said) < 4 else 0


def _turn(step: int) -> None:
    said = st.query_params.get(SLIDE, "")
    place = int(said) if said.isdecimal() and len(said) < 4 else 1
    st.query_params[SLIDE] = str(max(place + step, 1))
