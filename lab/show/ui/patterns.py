"""The parts of the page Serving patterns: online, streaming and batch beside each other; instances that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from lab.errors import InputError
from lab.measure import autoscale_words
from lab.measure.words import format_fraction, format_seconds
from lab.run import scaled
from lab.run.blocks import block_results
from lab.run.folder import RunFolder
from lab.show.charts import autoscale, patterns
from lab.show.charts.figure import Chart
from lab.show.ui import chart, parts, pricing
from lab.show.ui.topic import Link, Seen, Topic
from lab.spec import Experiment, Scaling, parse

PARTS = {"patterns": "Online, streaming, batch", "autoscaling": "Autoscaling"}
METRICS = {"concurrency": "requests in the system", "queue": "requests that wait", "rps": "arrivals a second"}


def part() -> str:
    return parts.chosen(PARTS, "p_part")


# --- online, streaming, batch -------------------------------------------------------------------------------------


def form(experiment: Experiment) -> list[str]:
    """How many requests the engine takes together."""
    declared = experiment.model.max_batch_size
    size = st.select_slider(
        "Largest batch, requests", [8, 16, 32, 64], value=declared, key="p_batch", bind="query-params"
    )
    return [f"model.max_batch_size={size}"] if size != declared else []


def happened(seen: Seen) -> list[Chart]:
    found = seen.document["patterns"]
    return [] if found is None else [patterns.made(found), patterns.waits(found), patterns.promises(found)]


def cause(seen: Seen) -> str:
    return (
        "A step of the engine reads all weights whoever shares it, so the machine makes the most when the batch is "
        "always full. Online it must not be: at saturation a queue grows, and the promise goes with it. The distance "
        "between the load that keeps the promise and saturation is what a batch job gains. Streaming moves the wait to "
        "where the reader is, and costs a send a token."
    )


def why(seen: Seen) -> list[Chart]:
    found = seen.document["patterns"]
    return [] if found is None else [patterns.costs(found)]


def _next(model: str) -> list[Link]:
    return [
        Link("pages/scheduling.py", "Who shares a step: the scheduler behind all three", ":material/view_timeline:"),
        Link("pages/cost.py", "Every load at a price, idle hours and commitments", ":material/payments:"),
        Link("pages/drills.py", "Drills on serving patterns", ":material/school:", (("d_deck", "Serving"),)),
    ]


WAYS = Topic(
    experiment="patterns",
    page="pages/patterns.py",
    prefix="p",
    title="Online, streaming or batch?",
    bet=(
        "A batch job keeps the machine full, online serving at half of saturation keeps its promise: how many tokens a "
        "second will the batch job make, compared to that?"
    ),
    counted="Tokens",
    form=form,
    depths="quick: about two minutes, rough. whole: about eight, two loads and two repeats.",
    figures={
        "output_tokens_per_s": "Tokens a second",
        "latency_p50_s": "Whole answer, p50",
        "ttft_p50_s": "To the first token, p50",
        "slo_attainment_fraction": "Kept its own promise",
    },
    happened=happened,
    cause=cause,
    why=why,
    compared=("output_tokens_per_s", "throughput_rps", "latency_p50_s"),
    next=_next,
)


# --- autoscaling --------------------------------------------------------------------------------------------------


def _scaling_form(experiment: Experiment) -> list[str]:
    """How long a request keeps an instance: with it the work changes, and so what the rules' targets mean."""
    seconds = st.select_slider(
        "Seconds of service, on average", [0.1, 0.2, 0.3], value=0.2, key="a_service", bind="query-params"
    )
    if seconds == 0.2:
        return []
    return [f"workload.sleep_s=[{0.75 * seconds:g},{seconds:g},{1.25 * seconds:g}]"]


def scaling_happened(seen: Seen) -> list[Chart]:
    found = seen.document["autoscaling"]
    if found is None:
        return []
    ways = autoscale_words.ways(found)
    own = next((way for way in ways if way["label"] == seen.level), ways[-1])
    return [autoscale.over_time(own), autoscale.price(ways), autoscale.tail(ways)]


def scaling_cause(seen: Seen) -> str:
    return (
        "A rule sees a mean over a window, so it learns of a burst late by about that window; then an instance has to "
        "start. Requests that come in between wait. A short panic window learns sooner, a long stabilisation keeps "
        "instances for the next burst, and both are paid for in instance-seconds."
    )


def what_if(seen: Seen) -> None:
    """Other rules on the same arrivals, modelled at once."""
    found = seen.document["autoscaling"]
    if found is None:
        return
    st.subheader("Other rules, modelled")
    st.caption("The simulator on this run's own arrivals, service times and starts. Nothing is measured here.")
    first, second, third, fourth = st.columns(4)
    metric = first.selectbox(
        "Scale by", list(METRICS), key="a_metric", bind="query-params", format_func=METRICS.__getitem__
    )
    target = second.number_input("Target an instance", 0.1, 100.0, 0.7, 0.1, "%g", key="a_target", bind="query-params")
    window = third.number_input("Window, s", 1.0, 120.0, 10.0, 1.0, "%g", key="a_window", bind="query-params")
    hold = fourth.number_input("Down after, s", 0.0, 600.0, 0.0, 5.0, "%g", key="a_down", bind="query-params")
    panic = first.number_input(
        "Panic window, s (0: none)", 0.0, 60.0, 1.0, 1.0, "%g", key="a_panic", bind="query-params"
    )
    least = second.number_input("At least", 1, 16, 1, key="a_least", bind="query-params")
    most = third.number_input("At most", 1, 16, 5, key="a_most", bind="query-params")
    cool = fourth.number_input("Cool-down, s", 0.0, 600.0, 0.0, 1.0, "%g", key="a_cool", bind="query-params")
    start_s = first.number_input(
        "A start takes, s", 0.1, 600.0, None, 1.0, "%g", key="a_start", bind="query-params", placeholder="as measured",
        help="Other models take longer to come up: the page Cold start & serverless has their times.",
    )  # fmt: skip
    try:
        rules = parse(
            Scaling,
            {
                "metric": metric,
                "target": target,
                "window_s": window,
                "panic_window_s": panic or None,
                "down_after_s": hold,
                "cooldown_s": cool,
                "least": least,
                "most": most,
            },
        )
    except InputError as error:
        st.info(str(error), icon=":material/info:")
        return
    block = autoscale_words.ways(found)[-1]
    figures = _modelled(seen.folder.run_id, block["number"], rules.model_dump_json(), start_s)
    st.markdown(":gray-badge[:material/calculate: Modelled]")
    told = {
        "In time": format_fraction(figures["share"]),
        "p95": format_seconds(figures["p95_s"]),
        "Instances, mean": f"{figures['instances_mean']:.2f}",
        "Changes": str(figures["changes"]),
    }
    for column, (name, value) in zip(st.columns(4), told.items(), strict=True):
        column.metric(name, value, border=True)
    st.caption(
        f"Paid are {figures['instance_s']:,.0f} instance-seconds; {most} instances all the time would be "
        f"{most * block['seconds']:,.0f}."
    )
    chart.show(autoscale.over_time(block, figures, real=False), key="a_what_if")


@st.cache_data(max_entries=64, show_spinner=False)
def _modelled(run_id: str, number: int, rules: str, start_s: float | None) -> dict[str, Any]:
    """The figures of these rules (as JSON) on that block's arrivals; `start_s` None: starts as the run had them."""
    folder = RunFolder.open(run_id)
    experiment = parse(Experiment, folder.document["experiment"])
    seen = scaled.read(experiment, folder.events(), block_results(folder, experiment))
    one = next(block for block in seen if block.number == number)
    asked = Scaling.model_validate_json(rules)
    how = scaled.starts(seen)
    how = how if start_s is None else replace(how, up_s=[start_s])
    found = scaled.simulated(one, asked, how, first=asked.least)
    figures: dict[str, Any] = scaled.modelled(one, found)
    return figures


def scaling_cost(seen: Seen) -> None:
    """Each way at one price: by its instances, where the machine that was measured always is the same one."""
    found = seen.document["autoscaling"]
    if found is None:
        return
    st.subheader("What it costs")
    price = pricing.choose(seen.document["environment"], seen.spec.device)
    table = pd.DataFrame(autoscale_words.costs(found, price.usd_per_hour))
    st.dataframe(table, hide_index=True, alt="What each way of having instances costs at this price")
    st.caption("An instance is counted as one machine of that price, paid from when it was asked for until it is gone.")
    if price.billing == "committed":
        st.caption("A commitment is paid whether instances are up or not: scaling saves none of it.")


def _scaling_next(model: str) -> list[Link]:
    return [
        Link("pages/plan.py", "A fixed number of replicas for a target instead", ":material/query_stats:"),
        Link("pages/cost.py", "What idle hours cost", ":material/payments:"),
    ]


SCALING = Topic(
    experiment="autoscaling",
    page="pages/patterns.py",
    prefix="a",
    title="Instances that come and go",
    bet=(
        "Instances are added as users come, seconds late. How many requests will be answered within {objective}, "
        "compared to as many instances as the peak needs?"
    ),
    counted="Requests in time",
    form=_scaling_form,
    depths="quick: about three minutes. whole: about ten, with one instance alone and a third rule.",
    figures={
        "slo_attainment_fraction": "Served in time",
        "latency_p50_s": "p50 latency",
        "latency_p95_s": "p95 latency",
        "throughput_rps": "Requests a second",
    },
    happened=scaling_happened,
    cause=scaling_cause,
    why=lambda seen: [],
    beside=what_if,
    cost=scaling_cost,
    compared=("slo_attainment_fraction", "latency_p50_s"),
    next=_scaling_next,
)
