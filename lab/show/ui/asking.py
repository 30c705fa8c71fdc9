"""The first blocks of an experiment's page: the question, the bet, and the run of A against B."""

from __future__ import annotations

import streamlit as st

from lab.measure.words import objective_label
from lab.run.plan import settle
from lab.show import bets
from lab.show.ui import reads, runs
from lab.show.ui.topic import Topic
from lab.spec import Experiment, Slo, parse_setting


def predict(topic: Topic, slo: Slo) -> tuple[str | None, str]:
    """The bet on how many requests meet `slo`: which way and how much. It lives in the URL, so it stays with the run
    that it was placed on."""
    st.markdown(topic.bet.format(objective=objective_label(slo)))
    direction = st.segmented_control(
        topic.counted,
        bets.DIRECTIONS,
        key=f"{topic.prefix}_bet",
        bind="query-params",
        label_visibility="collapsed",
    )
    if direction in (None, bets.DIRECTIONS[1]):
        return direction, bets.SIZES[0]
    size = st.select_slider(
        "How many times as many, or as few",
        bets.SIZES,
        value="2×",
        key=f"{topic.prefix}_size",
        bind="query-params",
    )
    return direction, size


def run_form(topic: Topic, experiment: Experiment) -> Experiment:
    """The run's own fields and its depth; starts only on the button. Returns the experiment as it is set there."""
    settings = topic.form(experiment)
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
        runs.start(topic.experiment, settings, quick=depth != "whole", page=topic.page)
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
