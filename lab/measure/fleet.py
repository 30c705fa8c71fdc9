"""Many models behind one budget, made sense of: what fitted, who slows whom, and where swapping ruins it. Pure.

From a run's events and tables to plain values: `fleet` is the part of a run's document that only a fleet has.

A hit is a request whose model was loaded when it came; a miss waited for its load, and for whoever had to go first.
Latency is the client's, from the scheduled arrival, so that of a miss holds all of its wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.percentile import needed, percentile
from lab.measure.records import OK

Event = Mapping[str, Any]
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LOADED, UNLOADED = "model_loaded", "model_unloaded"
CLIFF_FRACTION = 0.5
"""Less than this of the throughput with one model less is a cliff."""


@dataclass(frozen=True)
class Joined:
    """The answered requests of a block that were due in its window, each with its model and what it waited for it.
    `waited_ns` is -1 where the proxy told nothing of it."""

    latency_s: npt.NDArray[np.float64]
    waited_ns: npt.NDArray[np.int64]
    model: npt.NDArray[np.object_]


def fleet(events: Sequence[Event], requests: pa.Table, waits: pa.Table) -> dict[str, Any]:
    """Everything, from the run's events and its tables "requests" and "waits"."""
    starts = [e for e in events if e["kind"] in ("block_start", "pair")]
    known = next((e for e in events if e["kind"] == "fleet"), None)
    filled = [dict(e) for e in events if e["kind"] == "filled"]
    full = next((e["text"] for e in events if e["kind"] == "full"), None)
    blocks = [(e, joined(e, starts, requests, waits)) for e in starts if e["kind"] == "block_start"]
    cells = [_cell(e, found, starts, events, waits) for e, found in blocks]
    pairs = [_pair(e, starts, requests, waits) for e in starts if e["kind"] == "pair"]
    emptied = next((e for e in events if e["kind"] == "emptied"), None)
    return {
        "budget_bytes": known and known["budget_bytes"],
        "stated": known and known["stated"],
        "filled": [_plain(e) for e in filled],
        "full": full,
        "pairs": pairs,
        "cells": cells,
        "waited": _waited(blocks),
        "residue_fraction": _residue(emptied),
        "fit_error_fraction": fit_error(filled),
    }


def fit_error(filled: Sequence[Event]) -> float | None:
    """Predicted ÷ measured - 1 of all models together: planned from earlier runs or, where these lack a kind, from the
    first copy of each kind in this one. None when that came to nothing."""
    if len(filled) < 2 or filled[-1]["planned_bytes"] is None:
        return None
    return float(filled[-1]["planned_bytes"]) / float(filled[-1]["total_bytes"]) - 1


def _residue(emptied: Event | None) -> float | None:
    if emptied is None or emptied["left_bytes"] is None or not emptied["before_bytes"]:
        return None
    return float(emptied["left_bytes"]) / float(emptied["before_bytes"])


def _plain(event: Event) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("kind", "t_ns")}


def joined(start: Event, starts: Sequence[Event], requests: pa.Table, waits: pa.Table) -> Joined:
    """The requests of the block that begins with `start`, one of `starts`, with what the proxy noted of them."""
    until = min((s["start_ns"] for s in starts if s["start_ns"] > start["start_ns"]), default=2**63 - 1)
    noted = _between(waits, start["start_ns"], until)
    own = requests.filter(pc.equal(requests["block"], start["block"]))
    keep = pc.and_(
        pc.equal(own["outcome"], OK),
        pc.and_(pc.greater_equal(own["due_ns"], start["measured_from_ns"]), pc.less(own["due_ns"], start["end_ns"])),
    )
    own = own.filter(keep)
    numbers = own["request"].to_numpy()
    size = int(max(numbers.max(initial=-1), pc.max(noted["request"]).as_py() or -1)) + 1
    waited = np.full(size, -1, dtype=np.int64)
    model = np.full(size, "", dtype=object)
    at = noted["request"].to_numpy()
    waited[at] = noted["waited_ns"].to_numpy()
    model[at] = noted["model"].to_numpy(zero_copy_only=False)
    latency_s = (own["done_ns"].to_numpy() - own["due_ns"].to_numpy()) / 1e9
    return Joined(latency_s, waited[numbers], model[numbers])


def _between(waits: pa.Table, from_ns: int, to_ns: int) -> pa.Table:
    inside = pc.and_(pc.greater_equal(waits["t_ns"], from_ns), pc.less(waits["t_ns"], to_ns))
    return waits.filter(pc.and_(inside, pc.is_valid(waits["request"])))


def figures(latency_s: npt.NDArray[np.float64], prefix: str = "") -> dict[str, Any]:
    """n, p50_s, p95_s and p99_s, None where there are too few for it, and the largest seen, max_s."""
    found: dict[str, Any] = {f"{prefix}n": len(latency_s)}
    for name, p in PERCENTILES.items():
        found[f"{prefix}{name}_s"] = percentile(latency_s, p) if len(latency_s) >= needed(p) else None
    found[f"{prefix}max_s"] = float(latency_s.max()) if len(latency_s) else None
    return found


def _waited(blocks: Sequence[tuple[Event, Joined]]) -> list[dict[str, Any]]:
    """What hits and misses took by the number of models, all repeats together: a tail takes more than one has."""
    found = []
    for models in sorted({start["workload"]["models"] for start, _ in blocks}):
        own = [parts for start, parts in blocks if start["workload"]["models"] == models]
        latency_s, waited_ns = (np.concatenate([getattr(p, name) for p in own]) for name in ("latency_s", "waited_ns"))
        hits, misses = latency_s[waited_ns == 0], latency_s[waited_ns > 0]
        found.append({"models": models, **figures(hits, "hit_"), **figures(misses, "miss_")})
    return found


def _cell(
    start: Event, found: Joined, starts: Sequence[Event], events: Sequence[Event], waits: pa.Table
) -> dict[str, Any]:
    hit, missed = found.waited_ns == 0, found.waited_ns > 0
    told = int(hit.sum() + missed.sum())
    seconds = (start["end_ns"] - start["measured_from_ns"]) / 1e9
    swaps = {kind: _inside(events, kind, start) for kind in (LOADED, UNLOADED)}
    until = min((s["start_ns"] for s in starts if s["start_ns"] > start["start_ns"]), default=2**63 - 1)
    noted = _between(waits, start["measured_from_ns"], until)
    refused = noted.filter(pc.is_valid(noted["refused"]))
    swapping_s = sum(e["seconds"] for kind in swaps for e in swaps[kind])
    return {
        "block": start["block"],
        "models": start["workload"]["models"],
        "throughput_rps": len(found.latency_s) / seconds,
        "hit_fraction": float(hit.sum()) / told if told else None,
        **figures(found.latency_s[hit], "hit_"),
        **figures(found.latency_s[missed], "miss_"),
        "swaps": len(swaps[LOADED]),
        "load_median_s": _median([e["seconds"] for e in swaps[LOADED]]),
        "from_host": sum(e.get("source") == "host" for e in swaps[LOADED]),
        "from_host_median_s": _median([e["seconds"] for e in swaps[LOADED] if e.get("source") == "host"]),
        "unload_median_s": _median([e["seconds"] for e in swaps[UNLOADED]]),
        "swapping_fraction": min(1.0, swapping_s / seconds),
        "refused": {str(v["values"]): v["counts"] for v in pc.value_counts(refused["refused"]).to_pylist()},
    }


def _inside(events: Sequence[Event], kind: str, start: Event) -> list[Event]:
    return [e for e in events if e["kind"] == kind and start["measured_from_ns"] <= e["t_ns"] < start["end_ns"]]


def _pair(start: Event, starts: Sequence[Event], requests: pa.Table, waits: pa.Table) -> dict[str, Any]:
    found = joined(start, starts, requests, waits)
    own = found.latency_s[found.model == start["victim"]]
    return {
        "victim": start["victim"],
        "disturber": start["disturber"],
        "victim_rps": start["victim_rps"],
        "disturber_rps": start["disturber_rps"],
        **figures(own),
    }


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
