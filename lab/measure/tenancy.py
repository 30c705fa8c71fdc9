"""Who was loaded when, and what all of them took: a run's events and telemetry on one clock. Pure.

Memory is that of GPUs where some model has any, all GPUs together, else the host's: what a budget is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Event = Mapping[str, Any]
MODEL = "model:"
HOST_FIELD, GPU_FIELD = "memory_bytes", "gpu_memory_bytes:"


@dataclass(frozen=True)
class Stay:
    """One stay of a model: it began to load at `asked_s`, was there from `from_s` on, began to go at `to_s` and was
    gone at `gone_s`, in seconds; the last two None while it is there. `why` it went: evicted, asked, budget, broken,
    too large."""

    model: str
    asked_s: float
    from_s: float
    to_s: float | None = None
    gone_s: float | None = None
    why: str | None = None


@dataclass(frozen=True)
class Held:
    """Memory of one model's processes in bytes: before anything was asked of it (`base`), most (`peak`) and last
    (`now`, 0 once it is unloaded). None with a `reason` where it was not measured."""

    model: str
    base_bytes: float | None
    peak_bytes: float | None
    now_bytes: float | None
    reason: str | None = None


def stays(events: Sequence[Event], origin_ns: int) -> list[Stay]:
    """Every stay, in order of its begin."""
    found: list[Stay] = []
    open_stays: dict[str, Stay] = {}
    for event in events:
        if event["kind"] not in ("model_loaded", "model_unloaded"):
            continue
        at_s = (event["t_ns"] - origin_ns) / 1e9
        name, before_s = event["model"], at_s - event["seconds"]
        if event["kind"] == "model_loaded":
            open_stays[name] = Stay(name, before_s, at_s)
        elif name in open_stays:
            stay = open_stays.pop(name)
            found.append(Stay(name, stay.asked_s, stay.from_s, before_s, at_s, event["why"]))
    return sorted([*found, *open_stays.values()], key=lambda stay: stay.asked_s)


def total(telemetry: pa.Table, origin_ns: int, period_s: float = 0.5) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(seconds, bytes of all models together) every `period_s`; a model counts from its first reading to its last,
    which the sampler makes less often than that when they are dear."""
    rows = _summed(_memory(telemetry))
    if rows.num_rows == 0:
        return np.zeros(0), np.zeros(0)
    t_s = (rows["t_ns"].to_numpy() - origin_ns) / 1e9
    subject = np.asarray(rows["subject"].to_pylist(), dtype=object)
    value = rows["value"].to_numpy()
    grid = np.arange(np.floor(t_s.min()), t_s.max() + period_s, period_s)
    whole = np.zeros(len(grid))
    looks = np.unique(t_s)
    for name in np.unique(subject):
        own_t, own = t_s[subject == name], value[subject == name]
        at = np.searchsorted(own_t, grid, side="right") - 1
        seen = at >= 0
        # It is still there if the look of all models that follows its last reading has not come yet.
        following = np.searchsorted(looks, own_t, side="right")
        until = np.append(looks, np.inf)[following]
        there = seen & (grid < until[np.maximum(at, 0)])
        whole[there] += own[at[there]]
    return grid, whole


def held(telemetry: pa.Table, events: Sequence[Event]) -> list[Held]:
    """Each model that telemetry knows, in order of first appearance."""
    rows = _memory(telemetry)
    gone = {e["model"]: e["t_ns"] for e in events if e["kind"] == "model_unloaded"}
    back = {e["model"]: e["t_ns"] for e in events if e["kind"] == "model_loaded"}
    found = []
    for subject in pc.unique(rows["subject"]).to_pylist():
        name = subject.removeprefix(MODEL)
        own = rows.filter(pc.equal(rows["subject"], subject))
        known = _summed(own)
        if known.num_rows == 0:
            found.append(Held(name, None, None, None, own["reason"].to_pylist()[-1]))
            continue
        values = known["value"].to_numpy()
        left = name in gone and gone[name] > back.get(name, 0)
        found.append(Held(name, float(values[0]), float(values.max()), 0.0 if left else float(values[-1])))
    return found


def is_on_gpu(telemetry: pa.Table) -> bool:
    """Whether some model has memory of a GPU, told or not."""
    ours = pc.and_(pc.starts_with(telemetry["subject"], MODEL), pc.starts_with(telemetry["field"], GPU_FIELD))
    return bool(pc.any(ours).as_py())


def _memory(telemetry: pa.Table) -> pa.Table:
    """Every reading of a model's memory, value or reason."""
    is_memory = pc.starts_with if is_on_gpu(telemetry) else pc.equal
    wanted = is_memory(telemetry["field"], GPU_FIELD if is_on_gpu(telemetry) else HOST_FIELD)
    return telemetry.filter(pc.and_(pc.starts_with(telemetry["subject"], MODEL), wanted))


def _summed(rows: pa.Table) -> pa.Table:
    """t_ns, subject, value: what a model has on all GPUs at a time; nothing of a time at which one was not told."""
    whole = rows.group_by(["t_ns", "subject"]).aggregate([("value", "sum"), ("reason", "count")])
    told = whole.filter(pc.equal(whole["reason_count"], 0)).sort_by("t_ns")
    return pa.table({"t_ns": told["t_ns"], "subject": told["subject"], "value": told["value_sum"]})
