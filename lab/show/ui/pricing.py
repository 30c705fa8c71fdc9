"""The price that costs on a page are counted with: its choice, and what it costs in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from lab.measure import cost
from lab.measure.cost import Use
from lab.measure.cost_words import price_label, sentence
from lab.measure.prices import Price
from lab.run import prices
from lab.spec import Slo

KEY = "x_price"
"""Of the link: a price's id."""
BOX = "price_box"


def choose(environment: Mapping[str, Any], device: str) -> Price:
    """A choice among all prices, kept in the link and for the session; at first the price of the machine that was
    measured, or the nearest thing to it."""
    rows = {price.id: price for price in prices.catalogue()}
    likely = prices.nearest(environment, device).id
    asked = st.query_params.get(KEY)
    if asked is not None and asked not in rows:
        st.caption(f":material/info: There is no price `{asked[:80]}` in this list; this is another one.")
    wanted = (asked, st.session_state.get("price"), likely)
    st.session_state[BOX] = next(price_id for price_id in wanted if price_id in rows)

    def keep() -> None:
        st.session_state["price"] = st.query_params[KEY] = st.session_state[BOX]

    chosen = st.selectbox(
        "Price of the machine",
        list(rows),
        key=BOX,
        format_func=lambda price_id: price_label(rows[price_id]),
        on_change=keep,
        help="Each is a fact with a source and a date. Edit the list, or add this machine's own, on the page Cost.",
    )
    return rows[chosen]


def chosen() -> Price | None:
    """The price that this session chose; None while it chose none, or when the list has it no more."""
    price_id = st.session_state.get("price")
    return next((price for price in prices.catalogue() if price.id == price_id), None)


def told(
    summary: Mapping[str, Any], price: Price, use: Use, slo: Slo, environment: Mapping[str, Any], device: str
) -> None:
    """What these figures cost at that price, and what the sentence must be read with."""
    st.markdown(sentence(cost.cost(summary, price, use), slo, summary.get("slo_attainment_fraction")))
    for caveat in caveats(price, use, environment, device):
        st.caption(f":material/info: {caveat}")


def caveats(price: Price, use: Use, environment: Mapping[str, Any], device: str) -> tuple[str, ...]:
    return cost.caveats(price, use, cost.fit(price, environment, device), today=prices.today())
