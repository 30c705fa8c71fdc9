"""Scale to zero made sense of: who waited for a cold start, what it costs, and at which rate an always-on machine is
cheaper. Pure.

    measured    the run's blocks: share of cold requests, latency with and without a start, how long workers were up
    checked     each block's own arrivals through the simulation: does it say the same?
    modelled    from one request a minute to as many as a worker takes: the simulation with the run's own cold starts
                and service times, Poisson arrivals

Only `measured` was measured; what comes of the simulation is called modelled wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.break_even import rate_label
from lab.measure.cold import figure
from lab.measure.percentile import needed, percentile
from lab.measure.records import OK
from lab.measure.serverless_sim import Rules, Simulated, simulate
from lab.measure.words import format_fraction, format_seconds, plural

REQUESTS = 1_000
"""Of each modelled rate."""
LONGEST_S = 14 * 86_400.0
SLOWEST_RPS = 1 / 60
STEPS = 13
STEADY = 0.8
"""Of what a worker takes: more is no rate that scale to zero is for."""
OFF, FEW = 0.10, 1.5
"""A simulated share is told as a problem when it is further off the measured one, and by more requests than that."""

Event = Mapping[str, Any]
Found = dict[str, Any]


def serverless(events: Sequence[Event], requests: pa.Table, cells: Sequence[Mapping[str, Any]]) -> Found:
    """`cells` of the run's document, as declared. None is not measured."""
    starts = [e for e in events if e["kind"] == "block_start"]
    ends = {e["block"]: e["end_ns"] for e in events if e["kind"] == "block_end"}
    ready = [e for e in events if e["kind"] == "worker_ready"]
    cold_s = [float(e["seconds"]) for e in ready]
    blocks = [_block(start, ends, events, requests, cells) for start in starts]
    service_s = np.concatenate([b.pop("_warm_s") for b in blocks]) if blocks else np.zeros(0)
    how = next((cell["serverless"] for cell in cells if cell.get("serverless")), None)
    found: Found = {
        "how": how,
        "blocks": blocks,
        "cold_s": figure(cold_s),
        "service_s": percentile(service_s, 0.5),
        "stages": _stages(ready),
        "failed": [
            *(e["refusal"] for e in events if e["kind"] == "serverless" and e.get("refusal")),
            *(e["text"] for e in events if e["kind"] == "worker_failed"),
        ],
        "memory_bytes": next((e["memory_bytes"] for e in events if e["kind"] == "worker_memory"), None),
        "enforced_by": next((e["enforced_by"] for e in events if e["kind"] == "serverless"), None),
        "curve": [],
    }
    if how and cold_s and len(service_s):
        rules = rules_of(how)
        for block in blocks:
            block["_simulated"] = simulate(block["_due_s"], service_s, cold_s, rules, span_s=block["seconds"])
            block["modelled"] = _told([block["_simulated"]])
        found["curve"] = curve(service_s, cold_s, rules)
    found["rates"] = _rates(blocks)
    for block in blocks:
        for name in ("_due_s", "_latency_s", "_simulated"):
            block.pop(name)
    return found


def rules_of(how: Mapping[str, Any]) -> Rules:
    return Rules(how["idle_s"], how["concurrency"], how["max_workers"], how["keep_warm"])


def _block(
    start: Event,
    ends: Mapping[int, int],
    events: Sequence[Event],
    requests: pa.Table,
    cells: Sequence[Mapping[str, Any]],
) -> Found:
    begin_ns, end_ns = start["start_ns"], ends.get(start["block"], start["end_ns"])
    own = requests.filter(pc.equal(requests["block"], start["block"]))
    ok = own.filter(pc.equal(own["outcome"], OK))
    latency_s = (ok["done_ns"].to_numpy() - ok["due_ns"].to_numpy()) / 1e9
    waited = {e["request"]: e["cold"] for e in events if e["kind"] == "waited" and e["block"] == start["block"]}
    numbers = ok["request"].to_pylist()
    is_cold = np.array([waited.get(number, False) for number in numbers], dtype=bool)
    is_warm = np.array([number not in waited for number in numbers], dtype=bool)
    lives = [e for e in events if e["kind"] == "worker_ended" and begin_ns <= e["t_ns"] < _until(start, events)]
    return {
        "factors": dict(cells[start["cell"]]["factors"]),
        "rate_rps": _rate(start),
        "repeat": start["repeat"],
        "requests": own.num_rows,
        "answered": ok.num_rows,
        "cold": int(is_cold.sum()),
        "cold_fraction": float(is_cold.mean()) if len(is_cold) else None,
        **_percentiles(latency_s),
        "warm_p50_s": percentile(latency_s[is_warm], 0.5),
        "cold_mean_s": float(latency_s[is_cold].mean()) if is_cold.any() else None,
        "up_s": sum(min(e["t_ns"], end_ns) - max(e["asked_ns"], begin_ns) for e in lives if e["asked_ns"] < end_ns)
        / 1e9,
        "seconds": (end_ns - begin_ns) / 1e9,
        "modelled": None,
        "_warm_s": latency_s[is_warm],
        "_latency_s": latency_s,
        "_simulated": None,
        "_due_s": (np.sort(own["due_ns"].to_numpy()) - begin_ns) / 1e9,
    }


def _until(start: Event, events: Sequence[Event]) -> int:
    later = [e["start_ns"] for e in events if e["kind"] == "block_start" and e["start_ns"] > start["start_ns"]]
    return min(later, default=2**63 - 1)


def _rate(start: Event) -> float | None:
    rate: float | None = start["workload"]["arrival"].get("rate_rps")
    return rate


def _percentiles(latency_s: npt.NDArray[np.float64]) -> dict[str, float | None]:
    """p50, p95, p99 where there are enough answers for them."""
    return {
        f"{name}_s": percentile(latency_s, p) if len(latency_s) >= needed(p) else None
        for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


def _stages(ready: Sequence[Event]) -> dict[str, float]:
    """{stage: mean seconds} of all workers of the run."""
    told: dict[str, list[float]] = {}
    for event in ready:
        for name, took in event["stages"]:
            told.setdefault(name, []).append(took)
    return {name: sum(took) / len(took) for name, took in told.items()}


def _told(runs: Sequence[Simulated]) -> Found:
    """Of arrivals of blocks as they were, simulated; those of several are taken together."""
    cold = np.concatenate([run.cold for run in runs])
    latency_s = np.concatenate([run.latency_s for run in runs])
    share = float(cold.mean()) if len(cold) else None
    return {"cold_fraction": share, **_percentiles(latency_s), "up_s": sum(run.up_s for run in runs)}


def _rates(blocks: Sequence[Found]) -> list[Found]:
    """The repeats of each rate taken together, slowest first: a tail needs more answers than one block has."""
    found = []
    for rate in sorted({block["rate_rps"] for block in blocks if block["rate_rps"] and block["answered"]}):
        own = [block for block in blocks if block["rate_rps"] == rate]
        answered, cold = (sum(block[name] for block in own) for name in ("answered", "cold"))
        simulated = [block["_simulated"] for block in own if block["_simulated"] is not None]
        found.append(
            {
                "rate_rps": rate,
                "repeats": len(own),
                "answered": answered,
                "cold_fraction": cold / answered,
                **_percentiles(np.concatenate([block["_latency_s"] for block in own])),
                "modelled": _told(simulated) if simulated else None,
            }
        )
    return found


# --- modelled -----------------------------------------------------------------------------------------------------


def curve(service_s: Any, cold_s: Sequence[float], rules: Rules, *, seed: int = 0) -> list[Found]:
    """One entry a rate: share of cold requests, percentiles, and the seconds an hour that workers spend coming up, busy
    and idle. Modelled."""
    busiest = STEADY * rules.concurrency * rules.max_workers / float(np.mean(service_s))
    if busiest <= SLOWEST_RPS:
        return []
    points = []
    for number, rate in enumerate(np.geomspace(SLOWEST_RPS, busiest, STEPS).tolist()):
        run = modelled(rate, service_s, cold_s, rules, seed=seed + number)
        points.append(
            {
                "rate_rps": rate,
                "cold_fraction": run.cold_fraction,
                **_percentiles(run.latency_s),
                "start_s_per_h": 3600 * run.start_s / run.span_s,
                "busy_s_per_h": 3600 * run.busy_s / run.span_s,
                "idle_s_per_h": 3600 * run.idle_s / run.span_s,
                "starts_per_h": 3600 * run.starts / run.span_s,
            }
        )
    return points


def modelled(rate_rps: float, service_s: Any, cold_s: Sequence[float], rules: Rules, *, seed: int = 0) -> Simulated:
    """REQUESTS Poisson arrivals at that rate, or as many as come in two weeks."""
    count = int(min(REQUESTS, max(rate_rps * LONGEST_S, 2)))
    gaps = np.random.default_rng([seed, 1]).exponential(1 / rate_rps, count)
    return simulate(np.cumsum(gaps), service_s, cold_s, rules, seed=seed)


# --- in words -----------------------------------------------------------------------------------------------------


def text(found: Found) -> str:
    """What was measured at the slowest and the busiest rate, and what is modelled of once a minute."""
    blocks = [block for block in found["blocks"] if block["answered"]]
    if not blocks:
        why = found["failed"][0] if found["failed"] else "no request was answered"
        return f"Nothing was measured: {why.rstrip('.')}."
    slow = min(blocks, key=lambda block: block["rate_rps"] or 0.0)
    fast = max(blocks, key=lambda block: block["rate_rps"] or 0.0)
    parts = [f"A cold start takes {format_seconds(found['cold_s']['mean'])}, a warm answer "
             f"{format_seconds(found['service_s'])}."]  # fmt: skip
    for block in (slow, fast) if slow is not fast else (slow,):
        if block["cold_fraction"] is not None:
            parts.append(
                f"At {rate_label(block['rate_rps'])}, {format_fraction(block['cold_fraction'])} of "
                f"{plural(block['answered'], 'request')} waited for one."
            )
    if found["curve"]:
        first = found["curve"][0]
        parts.append(
            f"Modelled at one request a minute: {format_fraction(first['cold_fraction'])} cold, p50 "
            f"{format_seconds(first['p50_s'])}, workers up {format_fraction(up_fraction(first))} of the time."
        )
    return " ".join(parts)


def up_fraction(point: Mapping[str, Any]) -> float:
    """Of all time, in which a worker is up; several at a time count several times."""
    return float(point["start_s_per_h"] + point["busy_s_per_h"] + point["idle_s_per_h"]) / 3600


def problems(found: Found) -> list[str]:
    told = [f"A worker did not come up: {why.rstrip('.')}." for why in dict.fromkeys(found["failed"])]
    told += misses(found)
    if found["curve"]:
        told.append("Costs, and rates that no block was measured at, are modelled from this run's own times.")
    return told


def misses(found: Found) -> list[str]:
    """Where the simulation says another share of cold requests than was measured."""
    told = []
    for block in found["blocks"]:
        model, share = block["modelled"], block["cold_fraction"]
        if model is None or share is None or model["cold_fraction"] is None:
            continue
        off = abs(model["cold_fraction"] - share)
        if off > OFF and off * block["answered"] > FEW:
            told.append(
                f"At {rate_label(block['rate_rps'])} the simulation says {format_fraction(model['cold_fraction'])} "
                f"cold, measured were {format_fraction(share)} of {plural(block['answered'], 'request')}: what is "
                "modelled may be as far off."
            )
    return told


def table(found: Found) -> list[list[str]]:
    """Rows of text for a terminal, the header first."""
    rows = [["rate", "requests", "cold", "modelled", "p50", "modelled", "p99", "modelled"]]
    for rate in found["rates"]:
        model = rate["modelled"] or {}
        rows.append(
            [
                rate_label(rate["rate_rps"]),
                str(rate["answered"]),
                format_fraction(rate["cold_fraction"]),
                format_fraction(model.get("cold_fraction")),
                format_seconds(rate["p50_s"]),
                format_seconds(model.get("p50_s")),
                format_seconds(rate["p99_s"]),
                format_seconds(model.get("p99_s")),
            ]
        )
    for point in found["curve"]:
        rows.append(
            [
                rate_label(point["rate_rps"]),
                "modelled",
                "",
                format_fraction(point["cold_fraction"]),
                "",
                format_seconds(point["p50_s"]),
                "",
                format_seconds(point["p99_s"]),
            ]
        )
    return rows
