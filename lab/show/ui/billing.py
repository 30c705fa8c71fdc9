"""Whose bill: a price by the second with its rule, and the machine that is always on, chosen on a page and told."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from lab.measure.billing import Billing
from lab.measure.cost import stale_words
from lab.measure.cost_words import price_label
from lab.measure.prices import Price
from lab.run import billing, prices

LIKELY = {"second": "replicate-any-cpu-4vcpu-8gib-x1-on-demand-per-second", "hour": "lambda-us-east-1-cpu-4vcpu-16gib"}
FORMS = {
    "openai": "an OpenAI-compatible server: `--url openai+https://…/v1`, the key in LAB_API_KEY",
    "replicate": "predictions, polled or streamed: `--url replicate+https://api.replicate.com`, the key in LAB_API_KEY",
}


@dataclass(frozen=True)
class Bill:
    by_second: Price
    rule: Billing
    always: Price


def choose() -> Bill:
    """All three stand in the link."""
    rows = prices.catalogue()
    by_second = [row for row in rows if row.billing == "second" and billing.of_provider(row.provider) is not None]
    always = [row for row in rows if row.billing in ("hour", "committed")]
    first, second, third = st.columns(3, vertical_alignment="bottom")
    price = first.selectbox(
        "By the second", by_second, _place(by_second, LIKELY["second"]), key="n_second", format_func=price_label
    )
    rules = sorted((r for r in billing.rules() if r.provider == price.provider), key=lambda r: not r.bills_start)
    rule = second.selectbox("Whose seconds", rules, key="n_rule", format_func=lambda one: one.what.replace("-", " "))
    machine = third.selectbox(
        "Always on", always, _place(always, LIKELY["hour"]), key="n_always", format_func=price_label
    )
    return Bill(price, rule, machine)


def told(bill: Bill) -> None:
    """The rule in words, with its source, and how requests would be made to that provider."""
    rule, price = bill.rule, bill.by_second
    st.markdown(f"##### How {rule.provider} bills")
    st.markdown(rule.rule)
    st.caption(f":material/source: {rule.source}, {rule.as_of}. Price: {price.source}, {price.as_of}.")
    for row in (price, bill.always):
        if row.is_stale(prices.today()):
            st.caption(f":material/history: The price of {row.provider} is {stale_words(row, prices.today())}.")
    st.markdown(f"Its deployments are asked as {FORMS[rule.form]}.")
    st.caption(":material/report: Not verified against the live service: tested against its public description only.")


def _place(rows: list[Price], wanted: str) -> int:
    return next((number for number, row in enumerate(rows) if row.id.startswith(wanted)), 0)
