"""What an autoscaling experiment found: instances over time and what they cost, and the simulator held against it.

The simulator gets each block's own arrivals, the service time that Triton counted in it, and the times that changes
took in the *other* blocks of the run; never a latency. It also runs rules that were not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.load.payload import requests_for
from lab.measure import autoscale_sim
from lab.measure.autoscale_sim import Change, Scaled, Starts
from lab.measure.objective import good
from lab.measure.pace import Floats
from lab.measure.percentile import percentile
from lab.measure.records import OK
from lab.measure.words import level_label
from lab.run.blocks import BlockResult
from lab.spec import Experiment, ModelSpec, Scaling, Slo, parse, plain

TOLD_EVERY_S = 0.25
"""Between two reports of a load worker: REPORT_S of lab/load/worker.py, which takes long to import."""
UNKNOWN_UP_S = 1.0
"""For a run in which nothing was added: how long an instance is taken to start."""


@dataclass(frozen=True)
class Seen:
    """One block as the simulator needs it; seconds from the block's start. `from_s`: where the warm-up ends."""

    number: int
    label: str
    model: ModelSpec
    slo: Slo
    due_s: Floats
    latency_s: Floats
    from_s: float
    end_s: float
    service_s: Floats
    outside_s: float
    changes: tuple[Change, ...]
    share: float | None


def scaled(experiment: Experiment, events: Sequence[dict[str, Any]], blocks: Sequence[BlockResult]) -> Any:
    """{blocks: [measured and simulated of each]}; None where no model scales."""
    seen = read(experiment, events, blocks)
    if not any(one.model.scaling for one in seen):
        return None
    return {"blocks": [_told(one, simulated(one, one.model.scaling, starts(seen, without=one.number))) for one in seen]}


def read(experiment: Experiment, events: Sequence[dict[str, Any]], blocks: Sequence[BlockResult]) -> list[Seen]:
    factor = None if experiment.judge is None else experiment.judge.factor
    cells = experiment.cells()
    models = {e["block"]: parse(ModelSpec, e["model"]) for e in events if e["kind"] == "block_start"}
    changes: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["kind"] == "scaled":
            changes.setdefault(event["block"], []).append(event)
    seen = []
    for block in blocks:
        if block.role != "cell" or not len(block.requests):
            continue
        level = plain(cells[block.cell].factors.get(factor)) if factor else None
        label = level_label(factor, level) if factor else "as it is"
        own = changes.get(block.number, [])
        seen.append(_seen(block, label, models[block.number], block.workload.slo or experiment.slo, own))
    return seen


def _seen(block: BlockResult, label: str, model: ModelSpec, slo: Slo, changes: Sequence[dict[str, Any]]) -> Seen:
    requests, window, summary = block.requests, block.window, block.summary
    order = np.argsort(requests.due_ns, kind="stable")
    due_s = (requests.due_ns[order] - window.start_ns) / 1e9
    measured = (due_s >= (window.measured_from_ns - window.start_ns) / 1e9) & (requests.outcome[order] == OK)
    latency_s = (requests.done_ns[order] - requests.due_ns[order]) / 1e9
    within = good(requests, slo)[order]
    outside_s = 0.0
    if summary.service_mean_s is not None and summary.server_mean_s is not None:
        outside_s = max(0.0, summary.service_mean_s - summary.server_mean_s)
    from_s = (window.measured_from_ns - window.start_ns) / 1e9
    due = due_s >= from_s
    return Seen(
        block.number,
        label,
        model,
        slo,
        due_s,
        latency_s[measured],
        from_s,
        (window.end_ns - window.start_ns) / 1e9,
        _service_s(block, model, len(due_s)),
        outside_s,
        tuple(
            Change(
                (e["asked_ns"] - window.start_ns) / 1e9,
                (e["done_ns"] - window.start_ns) / 1e9,
                int(e["before"]),
                int(e["after"]),
            )
            for e in changes
        ),
        float(within[due].mean()) if due.any() else None,
    )


def _service_s(block: BlockResult, model: ModelSpec, count: int) -> Floats:
    """Seconds that each request keeps an instance: those that a sleeper was asked for and what Triton counted beside
    them; of any other model the mean."""
    mean_s = block.summary.compute_mean_s or 0.0
    if model.family != "sleeper":
        return np.full(count, mean_s)
    asked = np.array([float(r["SLEEP_S"][0, 0]) for r in requests_for(model, block.workload, count)])
    return asked + max(0.0, mean_s - float(asked.mean()))


def starts(seen: Sequence[Seen], without: int | None = None) -> Starts:
    """How long changes took, in the blocks other than `without`; in all where the others made none."""
    ups: list[float] = []
    downs: list[float] = []
    for block in [one for one in seen if one.number != without]:
        for change in block.changes:
            (ups if change.after > change.before else downs).append(change.t_s - change.asked_s)
    if without is not None and not (ups and downs):
        every = starts(seen)
        return Starts(ups or every.up_s, downs or every.down_s)
    return Starts(ups or [UNKNOWN_UP_S], downs or [0.0])


def simulated(one: Seen, rules: Scaling | None, how: Starts, first: int | None = None) -> Scaled:
    return autoscale_sim.simulate(
        one.due_s,
        one.service_s,
        how,
        first=one.model.instances if first is None else first,
        rules=rules,
        end_s=one.end_s,
        outside_s=one.outside_s,
        replaces=True,  # as lab/run/scaler.py does, by the reports of the load workers
        told_every_s=TOLD_EVERY_S,
    )


def figures(latency_s: Floats, share: float | None, changes: Sequence[Change], first: int, end_s: float) -> Any:
    paid = autoscale_sim.paid_s(first, changes, end_s)
    counts = [first, *(change.after for change in changes)]
    return {
        "p50_s": percentile(latency_s, 0.5),
        "p95_s": percentile(latency_s, 0.95),
        "share": share,
        "instance_s": paid,
        "instances_mean": paid / end_s if end_s > 0 else None,
        "most": max(counts),
        "changes": len(changes),
        "times_s": [0.0, *(change.t_s for change in changes)],
        "instances": counts,
    }


def modelled(one: Seen, found: Scaled) -> Any:
    """The figures of a simulation of this block."""
    own = found.due_s >= one.from_s
    limit_s = one.slo.latency_s
    share = None if limit_s is None else autoscale_sim.attainment(found.latency_s[own], limit_s)
    changes = tuple(change for change in found.changes if change.t_s <= one.end_s)
    return figures(found.latency_s[own], share, changes, found.first, one.end_s)


def _told(one: Seen, found: Scaled) -> dict[str, Any]:
    measured = figures(one.latency_s, one.share, one.changes, one.model.instances, one.end_s)
    model = modelled(one, found)
    ups = [change.t_s - change.asked_s for change in one.changes if change.after > change.before]
    return {
        "number": one.number,
        "label": one.label,
        "scales": one.model.scaling is not None,
        "requests": len(one.due_s),
        "judged": int((one.due_s >= one.from_s).sum()),
        "seconds": one.end_s,
        "limit_s": one.slo.latency_s,
        "goal": one.slo.percentile,
        "measured": measured,
        "simulated": model,
        "off_p95": _off(measured["p95_s"], model["p95_s"]),
        "up_s": float(np.median(ups)) if ups else None,
        "work": [n * float(one.service_s.mean()) for n in _per_second(one.due_s, one.end_s)],
    }


def _off(measured: float | None, modelled: float | None) -> float | None:
    return None if not measured or modelled is None else modelled / measured - 1


def _per_second(due_s: Floats, end_s: float) -> list[int]:
    return [int(n) for n in np.histogram(due_s, bins=max(1, round(end_s)), range=(0, end_s))[0]]
