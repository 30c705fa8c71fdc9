"""Rate and batching of a load that runs, to be changed by hand.

The widgets show what is in force, whichever browser or terminal changed it last; run.json only says how it began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.run import control
from lab.run.folder import RunFolder
from lab.run.live import LiveView
from lab.show.ui import reads
from lab.spec import Batching, parse

DELAYS_MS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
MAX_BATCH_SIZE = 32


def show(folder: RunFolder) -> None:
    """Rate and batching, to be changed while the load runs; only for a run of one cell."""
    cells = folder.document["cells"]
    if len(cells) != 1:
        st.caption("An experiment compares its cells, so its settings stay as declared while it runs.")
        return
    run_id = folder.run_id
    now = _in_force(folder, reads.look(folder))
    _follow(run_id, now)
    with st.container(border=True):
        load, on, delay = st.columns([3, 2, 4], vertical_alignment="bottom")
        if now.load is None:
            load.caption("Its arrivals are given one by one, so there is no rate to change.")
        else:
            users = now.field == "concurrency"
            key = f"l_{now.field}_{run_id}"
            load.number_input(
                "Users in a closed loop" if users else "Rate, requests a second",
                min_value=type(now.load)(1),
                step=type(now.load)(1 if users else 10),
                format="%d" if users else "%g",
                key=key,
                on_change=_send_load,
                args=(run_id, now.field, key),
                persist_state="session",
                help="Applied at once; the moment is marked in the chart",
            )
        keys = (f"l_batching_{run_id}", f"l_delay_{run_id}")
        batches = on.toggle(
            "Dynamic batching",
            key=keys[0],
            on_change=_send_batching,
            args=(run_id, keys, now.batching),
            persist_state="session",
            help="Reloads the model under load, in under two seconds",
        )
        if batches:
            delay.select_slider(
                "Longest queue delay, ms",
                sorted({*DELAYS_MS, now.delay_ms}),
                key=keys[1],
                on_change=_send_batching,
                args=(run_id, keys, now.batching),
                persist_state="session",
                format_func=lambda ms: f"{ms:g}",
            )
    if refused := st.session_state.pop(f"refused_{run_id}", None):
        st.error(refused, icon=":material/error:")


def _send_load(run_id: str, field: str, key: str) -> None:
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


@dataclass(frozen=True)
class InForce:
    """What a run of one cell does at the moment, in the terms of the controls. `load`: None when it has no rate."""

    field: str
    load: float | int | None
    batching: dict[str, Any] | None

    @property
    def delay_ms(self) -> float:
        return float((self.batching or {}).get("max_queue_delay_us") or 0) / 1000


def _in_force(folder: RunFolder, view: LiveView) -> InForce:
    """As declared until the load begins, then as last changed, by whichever browser or terminal."""
    cell = folder.document["cells"][0]
    arrival = (view.workload or cell["workload"])["arrival"]
    batching = (view.model or cell["model"])["batching"]
    if arrival["kind"] == "closed":
        return InForce("concurrency", int(arrival["concurrency"]), batching)
    rate_rps = arrival.get("rate_rps")
    return InForce("rate_rps", None if rate_rps is None else float(rate_rps), batching)


def _follow(run_id: str, now: InForce) -> None:
    """Set the widgets to what is in force when that has changed. Between a click and its effect it has not, and the
    widget keeps what was asked."""
    state = st.session_state
    if state.get(f"in_force_{run_id}") != now:
        state[f"in_force_{run_id}"] = now
        state[f"l_batching_{run_id}"] = now.batching is not None
        if now.batching is not None:
            state[f"l_delay_{run_id}"] = now.delay_ms
        if now.load is not None:
            state[f"l_{now.field}_{run_id}"] = now.load


def changed_elsewhere(folder: RunFolder, view: LiveView) -> bool:
    shown = st.session_state.get(f"in_force_{folder.run_id}")
    return shown is not None and shown != _in_force(folder, view)
