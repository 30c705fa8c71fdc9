"""The System page's parts: the managed server, its models one by one, and its log. Changes nothing but that a model
which does not serve can be loaded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from lab.errors import LabError, ModelError
from lab.home import home
from lab.measure.words import format_bytes, format_fraction, join
from lab.serve import record
from lab.serve.process import last_lines
from lab.serve.repository import config_pbtxt
from lab.serve.triton import Server
from lab.show.ui import chore, reads
from lab.spec import Batching, ModelSpec, parse
from lab.watch.reading import Reading

LOG_LINES = 40
GPU_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "utilization_fraction": ("utilization", format_fraction),
    "power_w": ("power", lambda watts: f"{watts:,.0f} W"),
    "memory_used_bytes": ("memory in use", format_bytes),
    "temperature_c": ("temperature", lambda celsius: f"{celsius:.0f} °C"),
}


def server() -> None:
    """Whether the managed Triton lives, where it answers, and each model's own health."""
    attached = Server.attach()
    if attached is None:
        st.info(
            "No managed Triton lives. A run starts its own and stops it afterwards; the pages Try it and Live run "
            "begin sooner with one that stays.",
            icon=":material/dns:",
        )
        chore.offer("serve", "Start Triton", ["serve"], icon=":material/dns:", with_owner=True, done=reads.server.clear)
        return
    try:
        st.markdown(
            f":green-badge[:material/check: alive] process {attached.pid} · gRPC `{attached.grpc_url}` · "
            f"HTTP `{attached.http_url}`" + (f" · metrics `{attached.metrics_url}`" if attached.metrics_url else "")
        )
        _models(attached)
    finally:
        attached.client.close()


def _models(attached: Server) -> None:
    # Health is asked of each model: Triton's own "ready" says nothing of a single one.
    states = attached.states()
    if not states:
        st.caption("It serves no model yet; a run loads what it needs.")
    for state in states:
        if state.ready:
            st.markdown(f":green-badge[:material/check: ready] **{state.name}**")
        else:
            st.markdown(
                f":orange-badge[:material/pause: not serving] **{state.name}** · {state.reason or 'no reason given'}"
            )
            _offer_again(attached, state.name)
    ready = [state.name for state in states if state.ready]
    if not ready:
        return
    name = st.selectbox("Configuration in force of", ready, key="y_model", bind="query-params")
    try:
        with st.expander(f"What Triton says it runs for {name}", icon=":material/data_object:"):
            st.json(attached.config(name), expanded=2)
    except ModelError as error:
        st.caption(str(error))


def _offer_again(attached: Server, name: str) -> None:
    """A button that loads the model anew; not while somebody measures."""
    going = reads.active_runs()
    pressed = st.button(
        f"Load {name} again",
        icon=":material/refresh:",
        key=f"load_again_{name}",
        disabled=bool(going),
        help=f"{going[0].what} is measuring; it loads what it needs." if going else None,
    )
    if not pressed:
        return
    try:
        with st.spinner(f"Loading {name}"):
            attached.load_again(name)
    except LabError as error:
        st.error(str(error), icon=":material/error:")
        return
    reads.server.clear()
    st.rerun()


def gpus() -> None:
    """What NVML says of each GPU now; what it does not say, with the reason."""
    for line in gpu_lines(reads.gpus()):
        st.markdown(line)


def gpu_lines(readings: Sequence[Reading]) -> list[str]:
    """A line a GPU, "**gpu:0** · utilization 35 % · power 312 W · memory in use n/a: no permission to read it"; a
    reason that several have in common once."""
    lines = []
    for subject in dict.fromkeys(reading.subject for reading in readings):
        known = {r.field: r for r in readings if r.subject == subject}
        shown = [(words, known[field], write) for field, (words, write) in GPU_FIGURES.items() if field in known]
        reasons: dict[str, list[str]] = {}
        parts = []
        for words, reading, write in shown:
            if reading.value is None:
                reasons.setdefault(reading.reason or "no reason given", []).append(words)
            else:
                parts.append(f"{words} {write(reading.value)}")
        parts += [f"{join(fields)} n/a: {reason}" for reason, fields in reasons.items()]
        name = "GPU" if subject == "gpu:none" else subject
        lines.append(f"**{name}** · {' · '.join(parts)}")
    return lines


def config_viewer() -> None:
    """config.pbtxt as the lab writes it for what is chosen here: a pure function of the model."""
    family, on, delay, size = st.columns([3, 2, 3, 3], vertical_alignment="bottom")
    models = ["digits", "embedder", "llm", "sleeper", "null"]
    name = family.selectbox("Model", models, key="y_family", bind="query-params")
    if name == "llm":  # it batches token by token, in its engine
        st.code(config_pbtxt(ModelSpec(name=name)), language=None)
        return
    batching = on.toggle("Batching", value=True, key="y_on", bind="query-params")
    delay_us = delay.number_input("Queue delay, µs", 0, 1_000_000, 2000, 500, key="y_delay", bind="query-params")
    most = size.number_input("Largest batch", 1, 1024, 32, key="y_size", bind="query-params")
    value = {"max_batch_size": most, "max_queue_delay_us": delay_us} if batching else None
    try:
        spec = ModelSpec(name=name, batching=None if value is None else parse(Batching, value))
        st.code(config_pbtxt(spec), language=None)  # the syntax colours are too faint to read
    except LabError as error:
        st.error(str(error), icon=":material/error:")


def logs() -> None:
    """The last lines of the managed server's log, and of a run's when one is chosen."""
    managed = record.read()
    choices = {"Triton": Path(managed.log) if managed else home() / "triton.log"}
    for line in reads.run_lines()[:5]:
        path = home() / "runs" / line.run_id / "log.txt"
        if path.exists():
            choices[line.run_id] = path
    chosen = st.selectbox("Log of", list(choices), key="y_log", bind="query-params")
    lines = last_lines(choices[chosen], LOG_LINES)
    if not lines:
        st.caption("This log is empty: nothing was started under it yet.")
        return
    # The newest lines are at the end; all are shown, since a box that scrolls is out of a keyboard's reach.
    st.code("\n".join(lines), language=None, wrap_lines=True)
