"""At most four figures in a row, each with what it is compared to and, where it is missing, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

MOST = 4


@dataclass(frozen=True)
class Card:
    """`beside` is the line under the figure, `missing` that under one that is "n/a", and `why` explains that one."""

    label: str
    value: str
    beside: str = ""
    why: str | None = None
    missing: str = "withheld"


def cards(figures: Sequence[Card]) -> None:
    row = st.container(key="cards").columns(min(MOST, len(figures)))  # the key: style.css wraps them two by two
    for column, card in zip(row, figures[:MOST], strict=False):
        missing = card.value == "n/a"
        column.metric(
            card.label,
            card.value,
            delta=(card.missing if missing else card.beside) or None,
            delta_color="off",
            delta_arrow="off",
            help=card.why if missing else None,
            border=True,
            height="stretch",  # as its neighbours, whose words may take a second line
        )
