"""The form of an experiment's page: the run of A against B."""

from __future__ import annotations

import streamlit as st

from lab.run.plan import settle
from lab.show.ui import betting, guide, reads, runs
from lab.show.ui.topic import Topic
from lab.spec import Experiment, parse_setting


def run_form(topic: Topic, experiment: Experiment) -> Experiment:
    """The run's own fields, unless the link hides them, and its depth; starts only on the button. Returns the
    experiment as it is set there."""
    settings = [] if guide.hides("settings") else topic.form(experiment)
    depth = st.segmented_control(
        "Depth",
        ["quick", "whole"],
        default="quick",
        required=True,
        key=f"{topic.prefix}_depth",
        bind="query-params",
        help=topic.depths,
    )
    going = reads.active_runs()
    if going:
        st.caption(f"{going[0].what} is measuring; a second run would disturb it.")
    if st.button(
        "Run A against B",
        type="primary",
        icon=":material/play_arrow:",
        key="run_ab",
        disabled=bool(going),
        width="stretch",
    ):
        bet = betting.placed(topic)
        runs.start(topic.experiment, settings, quick=depth != "whole", page=topic.page, bet=bet)
    return settle(experiment, [parse_setting(setting) for setting in settings], quick=depth != "whole")


def batching_form(experiment: Experiment) -> list[str]:
    """Model and objective."""
    left, right = st.columns(2, vertical_alignment="bottom")
    model = left.selectbox(
        "Model",
        ["digits", "embedder"],
        key="b_model",
        bind="query-params",
        help="digits: a small network, where a call costs more than its arithmetic. embedder: a sentence encoder.",
    )
    limit_ms = (experiment.slo.latency_s or 0.0) * 1e3
    slo_ms = right.number_input(
        "Objective, ms", 1.0, 10_000.0, limit_ms or 20.0, 5.0, "%g", key="b_slo", bind="query-params"
    )
    settings = [f"model.name={model}"] if model != experiment.model.name else []
    return settings + ([f"slo.latency_s={slo_ms / 1e3:g}"] if slo_ms != limit_ms else [])


def kv_cache_form(experiment: Experiment) -> list[str]:
    """How many users ask at a time."""
    declared = experiment.workload.arrival.concurrency  # type: ignore[union-attr]  # a closed loop
    users = st.number_input(
        "Users at a time", 1, 16, declared, key="k_users", bind="query-params", help="Each waits for its answer"
    )
    return [f"workload.arrival.concurrency={users}"] if users != declared else []


def scheduling_form(experiment: Experiment) -> list[str]:
    """How many requests may share a step."""
    declared = experiment.model.max_batch_size
    size = st.select_slider(
        "Largest batch, requests", [2, 4, 8, 16, 32], value=declared, key="s_batch", bind="query-params"
    )
    return [f"model.max_batch_size={size}"] if size != declared else []
