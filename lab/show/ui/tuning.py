"""The page Sweep & tune: forms that start a search, a sweep or a factorial design, and what such a run found."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pandas as pd
import streamlit as st

from lab.measure.words import format_metric, format_rate, level_label, metric_label, objective_label
from lab.run.folder import RunFolder
from lab.run.lock import who_measures
from lab.show.charts import together, tuning
from lab.show.ui import chart, guide, reads, runs
from lab.show.ui.cards import Card, cards
from lab.show.ui.words import why_ended
from lab.spec import Slo, parse

KINDS = ("search", "sweep", "factorial", "factorial_llm")
TOGETHER = {
    "digits": ("factorial", "Batching, precision and instances", "a minute"),
    "language model": ("factorial_llm", "Scheduler, precision, KV cache and instances", "four minutes"),
}
"""Designs by model: the experiment, what it sets, and how long its quick form takes."""
MODELS = ("digits", "embedder", "sleeper")
BATCHINGS: dict[str, Any] = {
    "off": None,
    "no delay": {"max_batch_size": 32},
    "1 ms": {"max_batch_size": 32, "max_queue_delay_us": 1000},
    "5 ms": {"max_batch_size": 32, "max_queue_delay_us": 5000},
}


def result(folder: RunFolder) -> None:
    """What a run of one of KINDS found, or how far it is."""
    status = folder.status()
    if status.active:
        st.info(f"{status.phase}. The figures are here when it is over.", icon=":material/hourglass_top:")
        st.page_link(
            "pages/live.py", label="Watch it", icon=":material/monitoring:", query_params={"run": folder.run_id}
        )
        return
    document = reads.document(folder)
    if status.state != "done":
        st.warning(why_ended(status, document), icon=":material/incomplete_circle:")
    if document.get("search"):
        _search(folder, document["search"])
    elif document.get("sweep"):
        _sweep(document["sweep"])
    elif document.get("factorial"):
        _factorial(document["factorial"])


def _search(folder: RunFolder, found: dict[str, Any]) -> None:
    slo = parse(Slo, folder.document["experiment"]["slo"])
    guide.finding(found["text"])
    best = [p for p in found["probes"] if p["rate_rps"] == found["highest_rps"] and p["result"] == "met"]
    p99 = best[-1]["latency_p99_s"] if best else None
    cards(
        [
            Card(
                "Highest rate", format_rate(found["highest_rps"]), f"{slo.percentile:.0%} within {objective_label(slo)}"
            ),
            Card("First that fails", format_rate(found["fails_rps"]), "the search stops within 5 %"),
            Card("p99 there", format_metric("latency_p99_s", p99), "from the scheduled arrival"),
            Card("Probes", str(len(found["probes"])), "each rate twice, a third time where they disagree"),
        ]
    )
    chart.show(tuning.probes(found, slo.percentile), key="p_probes")


def _sweep(found: dict[str, Any]) -> None:
    guide.finding(found["text"])
    chart.show(tuning.frontier(found), key="p_frontier")
    left, right = st.columns(2, gap="large")
    with left:
        chart.show(tuning.importance(found), key="p_importance")
    with right:
        chart.show(tuning.heat(found), key="p_heat")
    st.markdown("##### Every setting that was tried")
    names = list(found["better"])
    table: dict[str, list[Any]] = {
        "setting": [],
        "worth having": [],
        **{metric_label(n): [] for n in names},
        "objective": [],
        "why": [],
    }
    for point in sorted(found["points"], key=lambda p: not p["frontier"]):
        table["setting"].append(", ".join(level_label(path, level) for path, level in point["factors"].items()))
        table["worth having"].append("yes" if point["frontier"] else "")
        for name in names:
            table[metric_label(name)].append(format_metric(name, point["figures"][name]))
        table["objective"].append({True: "met", False: "missed", None: "n/a"}[point["met"]])
        table["why"].append(point["why"] or "")
    st.dataframe(pd.DataFrame(table), hide_index=True, alt="Every setting that was tried, those that failed among them")


def _factorial(found: dict[str, Any]) -> None:
    guide.finding(found["text"] or "Not every combination was measured, so there are no effects to tell.")
    if not found["figures"]:
        return
    labels = [metric_label(figure["metric"]) for figure in found["figures"]]
    chosen = st.segmented_control(
        "Figure", labels, default=labels[0], required=True, key="p_metric", bind="query-params"
    )
    figure = found["figures"][labels.index(chosen) if chosen in labels else 0]
    left, right = st.columns(2, gap="large")
    with left:
        chart.show(together.effects(figure), key="p_effects")
    with right:
        pairs = {" and ".join(map(_short, pair)): pair for pair in together.pairs(figure)}
        names = list(pairs)
        pair = st.selectbox("Settings", names, key="p_pair") if len(names) > 1 else names[0]
        chart.show(together.interaction(figure, pairs[pair]), key="p_interaction")


def _short(path: str) -> str:
    return path.rsplit(".", 1)[-1].replace("_", " ")


def start() -> None:
    """Three questions, each a run of its own."""
    holder = who_measures()
    st.subheader("Ask")
    search, sweep, factorial = st.tabs(["Highest rate", "Many settings", "Settings together"])
    with search:
        model, latency, percentile, minutes, batching = st.columns(5, vertical_alignment="bottom")
        name = model.selectbox("Model", MODELS, key="p_model", bind="query-params")
        ms = latency.number_input("Within, ms", 0.1, 60_000.0, 20.0, key="p_ms", bind="query-params")
        share = percentile.selectbox("Share", [0.99, 0.95, 0.9, 0.5], key="p_share", format_func=lambda p: f"{p:.0%}")
        limit = minutes.number_input("Minutes at most", 0.5, 120.0, 3.0, 0.5, key="p_minutes")
        chosen = batching.selectbox("Batching", list(BATCHINGS), index=1, key="p_batching")
        arguments = ["--model", name, "--latency", f"{ms:g}", "--percentile", f"{share:g}", "--minutes", f"{limit:g}"]
        _go("search", [*arguments, "--batching", _typed(BATCHINGS[chosen])], holder)
    with sweep:
        model, rate, latency, minutes = st.columns(4, vertical_alignment="bottom")
        name = model.selectbox("Model", MODELS, key="p_sweep_model")
        offered = rate.number_input("Requests a second", 1.0, 100_000.0, 500.0, key="p_rate")
        ms = latency.number_input("Within, ms", 0.1, 60_000.0, 20.0, key="p_sweep_ms")
        limit = minutes.number_input("Minutes at most", 0.5, 120.0, 3.0, 0.5, key="p_sweep_minutes")
        first, second = st.columns(2)
        batchings = first.multiselect("Batching", list(BATCHINGS), default=list(BATCHINGS), key="p_batchings")
        instances = second.multiselect("Instances", [1, 2, 3, 4], default=[1, 2], key="p_instances")
        levels = [BATCHINGS[label] for label in batchings]
        knobs = [f"model.batching={json.dumps(levels)}"] if len(levels) > 1 else []
        knobs += [f"model.instances={json.dumps(instances)}"] if len(instances) > 1 else []
        arguments = ["--model", name, "--rate", f"{offered:g}", "--latency", f"{ms:g}", "--minutes", f"{limit:g}"]
        if knobs:
            _go("sweep", [*arguments, *(f"--knob={knob}" for knob in knobs)], holder)
        else:
            st.caption("Choose two levels or more of something.")
    with factorial:
        name = st.segmented_control(
            "Model", list(TOGETHER), default="digits", required=True, key="p_together", bind="query-params"
        )
        experiment, what, takes = TOGETHER[name if name in TOGETHER else "digits"]
        st.markdown(f"{what}, every combination of two levels each: what each does, and each pair.")
        quick = st.toggle(f"Quick: {takes}, rough", value=True, key="p_quick")
        if st.button("Measure", key="p_go_factorial", type="primary", disabled=holder is not None):
            runs.start(experiment, [], quick=quick, page="pages/sweep.py")
    if holder is not None:
        st.caption(f"{holder} measures now; one run measures at a time.")


def _typed(batching: dict[str, int] | None) -> str:
    """As `--batching` takes it: "off", "32", "32:1000"."""
    return "off" if batching is None else ":".join(str(value) for value in batching.values())


def _go(command: str, arguments: list[str], holder: str | None) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button(
            "Measure", key=f"p_go_{command}", type="primary", icon=":material/play_arrow:", disabled=holder is not None
        )
        st.code(f"python -m lab {command} {shlex.join(arguments)}", language=None, wrap_lines=True)
    if pressed:
        runs.start_command(command, arguments, page="pages/sweep.py")
