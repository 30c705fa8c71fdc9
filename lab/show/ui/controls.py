"""Rate and model settings of a load that runs, to be changed by hand.

The widgets show what is in force, whichever browser or terminal changed it last; run.json only says how it began.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from lab.errors import LabError
from lab.measure.formats import format_label
from lab.run import control
from lab.run.folder import RunFolder
from lab.show.in_force import InForce, in_force
from lab.show.ui import formats, reads
from lab.spec import Batching, ModelSpec, parse

DELAYS_MS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
MAX_BATCH_SIZE = 32
SCHEDULERS = ("one", "static", "continuous")

Place = DeltaGenerator


def show(folder: RunFolder) -> None:
    """Rate and model settings, to be changed while the load runs; only for a run of one cell."""
    run_id = folder.run_id
    now = in_force(folder.document, reads.look(folder))
    if now is None:
        st.caption("An experiment compares its cells, so its settings stay as declared while it runs.")
        return
    _follow(run_id, now)
    with st.container(border=True):
        model = parse(ModelSpec, now.model)
        writes, chooses = model.family == "llm", len(formats.offered(model)) > 1
        load, first, second, *third = st.columns([3, 2, 4, 2] if chooses else [3, 2, 4], vertical_alignment="bottom")
        with load:
            _load(run_id, now)
        if writes:
            _engine(run_id, first, second)
        else:
            _batching(run_id, now, first, second)
        if chooses:
            formats.choose(model, third[0], key=f"l_format_{run_id}", send=partial(_send, run_id))
    if refused := st.session_state.pop(f"refused_{run_id}", None):
        st.error(refused, icon=":material/error:")


def _load(run_id: str, now: InForce) -> None:
    if now.load is None:
        st.caption("Its arrivals are given one by one, so there is no rate to change.")
        return
    users = now.field == "concurrency"
    key = f"l_{now.field}_{run_id}"
    coarse = now.model["family"] != "llm"
    st.number_input(
        "Users in a closed loop" if users else "Rate, requests a second",
        min_value=1 if users else 1.0 if coarse else 0.1,
        step=1 if users else 10.0 if coarse else 0.5,
        format="%d" if users else "%g",
        key=key,
        on_change=_send_load,
        args=(run_id, now.field, key),
        persist_state="session",
        help="Applied at once; the moment is marked in the chart",
    )


def _batching(run_id: str, now: InForce, first: Place, second: Place) -> None:
    """On or off, and the longest delay."""
    keys = (f"l_batching_{run_id}", f"l_delay_{run_id}")
    batches = first.toggle(
        "Dynamic batching",
        key=keys[0],
        on_change=_send_batching,
        args=(run_id, keys, now.batching),
        persist_state="session",
        help="Reloads the model under load, in under two seconds",
    )
    if batches:
        second.select_slider(
            "Longest queue delay, ms",
            sorted({*DELAYS_MS, now.delay_ms}),
            key=keys[1],
            on_change=_send_batching,
            args=(run_id, keys, now.batching),
            persist_state="session",
            format_func=lambda ms: f"{ms:g}",
        )


def _engine(run_id: str, first: Place, second: Place) -> None:
    """A language model's cache and scheduler."""
    for place, field in ((first, "kv_cache"), (second, "scheduler")):
        key = f"l_{field}_{run_id}"
        more: dict[str, Any] = {"key": key, "on_change": _send_field, "args": (run_id, field, key)}
        if field == "kv_cache":
            place.toggle("KV cache", help="Reloads the model under load", persist_state="session", **more)
        else:
            place.segmented_control("Scheduler", SCHEDULERS, required=True, persist_state="session", **more)


def _send_load(run_id: str, field: str, key: str) -> None:
    _send(run_id, {field: st.session_state[key]})


def _send_field(run_id: str, field: str, key: str) -> None:
    _send(run_id, {field: st.session_state[key]})


def _send_batching(run_id: str, keys: tuple[str, str], before: dict[str, Any] | None) -> None:
    """Only the delay is chosen here; the rest of a batching in force stays as it is."""
    on, delay_ms = st.session_state[keys[0]], st.session_state.get(keys[1], 0.0)
    asked = {"max_batch_size": MAX_BATCH_SIZE, **(before or {}), "max_queue_delay_us": round(delay_ms * 1000)}
    _send(run_id, {"batching": parse(Batching, asked).model_dump(mode="json") if on else None})


def _send(run_id: str, change: dict[str, Any]) -> None:
    try:
        control.send(run_id, change)
    except LabError as error:
        st.session_state[f"refused_{run_id}"] = str(error)


def _follow(run_id: str, now: InForce) -> None:
    """Set the widgets to what is in force when that has changed. Between a click and its effect it has not, and the
    widget keeps what was asked."""
    state = st.session_state
    if state.get(f"in_force_{run_id}") != now:
        state[f"in_force_{run_id}"] = now
        state[f"l_batching_{run_id}"] = now.batching is not None
        for field in ("kv_cache", "scheduler"):
            state[f"l_{field}_{run_id}"] = now.model.get(field)
        state[f"l_format_{run_id}"] = format_label(parse(ModelSpec, now.model))
        if now.batching is not None:
            state[f"l_delay_{run_id}"] = now.delay_ms
        if now.load is not None:
            state[f"l_{now.field}_{run_id}"] = now.load
