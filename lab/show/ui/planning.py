"""The page Plan: first how far its predictions are off on this machine's own blocks, then what-ifs.

What is predicted is asked for anew at each move of a slider, from a model that is kept for the run; only the fragment
with the sliders runs again.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from lab.errors import LabError
from lab.measure.cost import THIS_MACHINE, Use
from lab.measure.cost_words import commitment_label, format_usd
from lab.measure.planner import answers, limits, plan_words
from lab.measure.planner.answers import Needed, Told
from lab.measure.planner.calibrated import Calibrated
from lab.measure.planner.plan_words import ROUTERS
from lab.measure.planner.setting import Setting
from lab.measure.prices import Price
from lab.measure.words import format_count, format_fraction, format_rate, plural
from lab.run import planning, prices
from lab.run.folder import RunFolder
from lab.run.planning import Plannable
from lab.show.charts import plan as charts
from lab.show.ui import chart, picking, pricing, reads, runs
from lab.show.ui import setting as setting_of
from lab.show.ui.cards import Card, cards
from lab.spec import Slo, parse

VIEWS = ("Replicas and cost", "What breaks first", "Balancing")
ROWS = 12
RUNS_NEEDED = (
    ("batching", "Dynamic batching, quick (about a minute)"),
    ("llm_batching", "Continuous batching of a language model, quick (about two minutes)"),
)


def candidates() -> list[reads.RunLine]:
    """Runs of several blocks, of which a plan may be made; recorded ones where this machine has none."""
    own = [line for line in picking.ended() if line.cells > 1]
    return own or [line for line in reads.comparable_recordings() if line.experiment == "llm_batching"]


def page(folder: RunFolder) -> None:
    """Everything below the choice of a run."""
    status = folder.status()
    try:
        found = _plannable(folder.run_id, status.state, status.heartbeat_ns)
    except LabError as error:
        st.warning(planning.told_needed(error), icon=":material/search_off:")
        runs_needed()
        return
    _held_out(found.model)
    st.subheader("What if …")
    _what_if(found, parse(Slo, folder.document["experiment"]["slo"]), folder)


def runs_needed() -> None:
    """What a plan can be made from, one click away."""
    st.markdown("A plan needs a run of one model in several blocks: at several rates, and in several settings.")
    with st.container(horizontal=True):
        for experiment, label in RUNS_NEEDED:
            if st.button(label, key=f"p_run_{experiment}", icon=":material/play_arrow:"):
                runs.start(experiment, [], True, "pages/live.py", then="plan")


@st.cache_resource(max_entries=8, show_spinner="Leaving out each block of the run and predicting it")
def _plannable(run_id: str, state: str, heartbeat_ns: int) -> Plannable:
    # state and heartbeat are part of the key, as in reads.document. Nobody changes what this returns.
    return planning.plannable(RunFolder.open(run_id))


def _held_out(model: Calibrated) -> None:
    trust = model.trust
    st.markdown(f"#### First, what it says of blocks it had not seen\n{plan_words.trust_sentence(trust)}")
    if any(h.judged and not h.fitted for h in trust.held_out):
        st.caption(f":material/info: {plan_words.trust_sentence(trust, fitted=False)}")
    left, right = st.columns(2, gap="large")
    with left:
        chart.show(charts.held_out(trust.held_out, "latency_p95_s", "p95"), key="p_chart_p95")
    with right:  # long answers are few: then the middle says more than an empty tail
        tail = any(trust.errors("latency_p99_s", fitted=fitted) for fitted in (True, False))
        name = "p99" if tail else "p50"
        chart.show(charts.held_out(trust.held_out, f"latency_{name}_s", name), key=f"p_chart_{name}")


@st.fragment(key="p_what_if")
def _what_if(found: Plannable, own: Slo, folder: RunFolder) -> None:
    model = found.model
    try:
        setting, slo, headroom = setting_of.controls(model, own)
        told = answers.tell(model, setting, slo)
        needed = answers.needed(model, setting, slo, headroom)
    except LabError as error:
        st.warning(str(error), icon=":material/block:")
        return
    st.markdown(f"#### {plan_words.needed_sentence(needed, slo)}")
    st.markdown(plan_words.told_sentence(told, slo))
    for text in told.outside:
        st.caption(f":material/open_in_full: Outside of what was measured: {text}.")
    rows = _prices(setting, model)
    bills = _bills(rows, needed)
    cards(_cards(told, needed, bills, slo))
    metric = answers.metric_of(slo)
    same = model.measured_like(setting)
    asked = charts.Asked(told, setting_of.in_words(setting, model))
    left, right = st.columns(2, gap="large")
    with left:
        line = answers.curve(model, setting, slo, asked=told)
        chart.show(charts.curve(same, model.points, line, asked, slo.latency_s, metric), key="p_chart_curve")
        st.caption(plan_words.curve_caption(model.requests))
    with right:
        view = st.segmented_control("Show", VIEWS, default=VIEWS[0], required=True, key="p_view", bind="query-params")
        if view == VIEWS[0]:
            _costs(needed, bills, folder, model)
        elif view == VIEWS[1]:
            _breaks(found, setting, slo)
        else:
            _balancing(model, setting, slo)


def _cards(told: Told, needed: Needed, bills: list[answers.Bill], slo: Slo) -> list[Card]:
    metric = answers.metric_of(slo)
    value, interval = plan_words.figure(told, metric)
    served, _ = plan_words.figure(told, "throughput_rps")
    count = "n/a" if needed.replicas is None else format_count(needed.replicas)
    spread = "" if needed.low is None else f"{needed.low:,} at best, {needed.high or 'none'} at worst"
    cheapest = bills[0] if bills else None
    return [
        Card(f"{metric.split('_')[1]}, predicted", value, interval),
        Card("Served, predicted", served, f"{format_fraction(told.predicted.slo_attainment_fraction)} in time"),
        Card("Replicas needed, predicted", count, spread, needed.why or None, "no number found"),
        Card(
            "A month, at the lowest price",
            format_usd(cheapest.usd_per_month if cheapest else None),
            cheapest.price.provider if cheapest else "",
            needed.why or "The catalogue has no price for this machine",
            "nothing to price" if needed.replicas is None else "no price known",
        ),
    ]


def _prices(setting: Setting, model: Calibrated) -> list[Price]:
    """Of the accelerator that is asked about; else of this machine, or of machines of its kind."""
    rows = prices.catalogue()
    if setting.accelerator is not None:
        return [row for row in rows if row.accelerator == setting.accelerator.name]
    own = [row for row in rows if row.accelerator == THIS_MACHINE]
    return own or [row for row in rows if "VCPU" in row.accelerator.upper() and model.model.device == "cpu"]


def _bills(rows: list[Price], needed: Needed) -> list[answers.Bill]:
    if needed.replicas is None or needed.at is None:
        return []
    good = needed.at.predicted.goodput_rps
    every = [answers.bill(row, needed.replicas, good) for row in rows]
    return sorted(every, key=lambda one: one.usd_per_month)


def _costs(needed: Needed, bills: list[answers.Bill], folder: RunFolder, model: Calibrated) -> None:
    if not bills:
        st.info(
            needed.why or "The catalogue has no price for this machine; add one on the page Cost.",
            icon=":material/info:",
        )
        return
    today = prices.today()
    table: dict[str, list[Any]] = {
        "USD a month": [b.usd_per_month for b in bills],
        "machine": [f"{b.price.provider}, {b.machines} × {b.price.accelerator}" for b in bills],
        "paid": [commitment_label(b.price) for b in bills],
        "USD a million good": [b.usd_per_million for b in bills],
        "price of": [b.price.as_of + (", old" if b.price.is_stale(today) else "") for b in bills],
        "certainty": [b.price.certainty for b in bills],
        "source": [b.price.source for b in bills],
    }
    st.dataframe(
        pd.DataFrame(table).head(ROWS),
        hide_index=True,
        height=min(300, 40 + 35 * len(bills)),
        column_config={"USD a month": st.column_config.NumberColumn(format="dollar")},
        alt=f"What {plural(needed.replicas or 0, 'predicted replica')} cost a month at each price",
    )
    st.caption(
        f"{plural(needed.replicas or 0, 'replica')}, predicted, on all day; one on each accelerator of a machine, "
        "which is paid whole."
    )
    device = model.model.device
    for text in pricing.caveats(bills[0].price, Use(kept_on=True), folder.document["environment"], device)[:2]:
        st.caption(f":material/info: {text}")


def _breaks(found: Plannable, setting: Setting, slo: Slo) -> None:
    every = limits.limits(found.model, setting, slo, found.around)
    st.markdown(plan_words.limit_sentence(limits.first(every)))
    chart.show(charts.limits(every, setting.rate_rps), key="p_chart_limits")
    for limit in every[1:]:
        st.caption(f"**{limit.name}** ({limit.known}): {limit.text}")


def _balancing(model: Calibrated, setting: Setting, slo: Slo) -> None:
    if setting.replicas < 2:
        st.info("One replica has nothing to be balanced against: move the replicas above 1.", icon=":material/info:")
        return
    found = answers.balancing(model, setting, slo)
    st.markdown(plan_words.balancing_sentence(found))
    chart.show(charts.routers(found), key="p_chart_routers")
    st.caption(
        f"{format_rate(setting.rate_rps)} over {plural(setting.replicas, 'replica')}, the same simulated runs for each "
        "router; whiskers are how far single runs are from each other. The "
        f"number of replicas needed is of {ROUTERS['round_robin']}; the others need no more."
    )
