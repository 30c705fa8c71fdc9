"""Run folders with realistic records, made without a server: a queue is simulated and written as a runner writes it.

One instance serves batches that take `FIXED_S + n * ITEM_S`; arrivals are Poisson. So batching pays near saturation
and a queue delay costs at low load, as with the real thing, and everything that a page shows has something to show.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lab.measure.records import CANCELLED, OK, REQUESTS, SERVER, TELEMETRY, TIMEOUT
from lab.run import catalogue, results
from lab.run.folder import RunFolder
from lab.run.plan import cell_blocks, level_blocks, with_rate
from lab.spec import ClosedLoop, Experiment, ModelSpec, plain, set_path
from lab.stream import StreamWriter

FIXED_S, ITEM_S = 0.00042, 0.00006
SATURATION_RPS = 1 / (FIXED_S + ITEM_S)
SECOND = 1_000_000_000
MIB = 2**20


@dataclass
class Served:
    """A block's requests, by scheduled arrival, in seconds from its start."""

    due_s: np.ndarray
    started_s: np.ndarray
    done_s: np.ndarray
    batch: np.ndarray
    executions: Counter[int] = field(default_factory=Counter)


def simulate(due_s: np.ndarray, max_batch: int, delay_s: float) -> Served:
    n = len(due_s)
    started, done, batch = np.empty(n), np.empty(n), np.empty(n, dtype=int)
    executions: Counter[int] = Counter()
    free, i = 0.0, 0
    while i < n:
        start = max(free, due_s[i])
        if max_batch > 1 and delay_s:
            full = due_s[i + max_batch - 1] if i + max_batch <= n else np.inf
            start = max(start, min(due_s[i] + delay_s, full))
        last = i
        while last < n and last - i < max_batch and due_s[last] <= start:
            last += 1
        last = max(last, i + 1)
        size = last - i
        free = start + FIXED_S + size * ITEM_S
        started[i:last], done[i:last], batch[i:last] = start, free, size
        executions[size] += 1
        i = last
    return Served(due_s, started, done, batch, executions)


class Author:
    """Writes one run folder as the runner does, at simulated times that end about now."""

    def __init__(self, experiment: Experiment, run_id: str, *, quick: bool = True, seconds: float = 0.0) -> None:
        self.experiment = experiment
        self.folder = RunFolder.create(
            run_id,
            {
                "experiment": experiment.model_dump(mode="json"),
                "cells": [cell.model_dump(mode="json") for cell in experiment.cells()],
                "quick": quick,
                "settings": [],
                "url": None,
                "environment": {"cpu": "simulated", "cores": 2, "gpus": []},
            },
        )
        self.rng = np.random.default_rng(7)
        self.now_ns = time.perf_counter_ns() - int(seconds * SECOND)
        self.writer = StreamWriter(self.folder.path / "requests-0.arrows", REQUESTS)

    def block(self, index: int, block: object, *, cut_s: float | None = None) -> None:
        """One block from start to end; `cut_s` stops it early, as Stop does."""
        workload, model = block.workload, block.model
        start_ns, duration_s = self.now_ns, workload.duration_s
        batching = model.batching
        max_batch = batching.max_batch_size if batching else 1
        delay_s = batching.max_queue_delay_us / 1e6 if batching else 0.0
        if isinstance(workload.arrival, ClosedLoop):  # as if all users were always waiting
            rate = 0.999 * max_batch / (FIXED_S + max_batch * ITEM_S)
        else:
            rate = workload.arrival.rate_rps
        # The same arrivals for every level at one load: what is compared is paired.
        gaps = np.random.default_rng([int(rate), block.repeat])
        due = np.cumsum(gaps.exponential(1 / rate, int(rate * duration_s * 1.2) + 10))
        due = due[due < (cut_s or duration_s)]
        served = simulate(due, max_batch, delay_s)
        self.folder.event(
            "block_start",
            block=index,
            role=block.role,
            cell=block.cell,
            repeat=block.repeat,
            planned=len(due),
            workload=workload.model_dump(mode="json"),
            model=model.model_dump(mode="json"),
            start_ns=start_ns,
            measured_from_ns=start_ns + int(workload.warmup_s * SECOND),
            end_ns=start_ns + int(duration_s * SECOND),
            t_ns=start_ns,
        )
        self.requests(index, start_ns, served, workload.timeout_s, cut_s)
        self.server(model, start_ns, served, cut_s or duration_s)
        self.telemetry(model.name, start_ns, cut_s or duration_s, max_batch)
        end_ns = start_ns + int((cut_s or duration_s) * SECOND)
        self.folder.event("block_end", block=index, planned=len(due), end_ns=end_ns, t_ns=end_ns)
        self.now_ns = end_ns + SECOND // 5

    def requests(self, index: int, start_ns: int, served: Served, timeout_s: float, cut_s: float | None) -> None:
        due_ns = start_ns + (served.due_s * SECOND).astype(np.int64)
        sent_ns = due_ns + self.rng.integers(20_000, 120_000, len(due_ns))
        wait_ns = ((served.done_s - served.due_s) * SECOND).astype(np.int64)
        done_ns = sent_ns + wait_ns + self.rng.integers(200_000, 420_000, len(due_ns))
        outcome = np.full(len(due_ns), OK, dtype=np.uint8)
        late = done_ns - due_ns > timeout_s * SECOND
        outcome[late], done_ns[late] = TIMEOUT, due_ns[late] + int(timeout_s * SECOND)
        if cut_s is not None:
            given_up = done_ns > start_ns + int(cut_s * SECOND)
            outcome[given_up], done_ns[given_up] = CANCELLED, start_ns + int(cut_s * SECOND)
        self.write(
            {
                "block": np.full(len(due_ns), index, np.int32),
                "request": np.arange(len(due_ns)),
                "due_ns": due_ns,
                "sent_ns": sent_ns,
                "done_ns": done_ns,
                "outcome": outcome,
                "detail": [None if o == OK else "given up" for o in outcome],
            }
        )

    def write(self, rows: dict[str, Any]) -> None:
        """Requests by column, in order of completion; what is not given is null."""
        n = len(rows["done_ns"])
        columns = [pa.array(rows.get(field.name, [None] * n), field.type) for field in REQUESTS]
        table = pa.Table.from_arrays(columns, schema=REQUESTS)
        self.writer.write(table.take(np.argsort(rows["done_ns"], kind="stable")))

    def server(self, model: ModelSpec, start_ns: int, served: Served, duration_s: float) -> None:
        """Cumulative counters, scraped once a second and at the end."""
        # A reload starts the counters anew, so every block counts from zero.
        for second in [*np.arange(0, duration_s, 1.0), duration_s]:
            values = self.counted(served, until_s=second)
            self.scrape(start_ns + int(second * SECOND), model.name, values)

    def counted(self, served: Served, until_s: float = np.inf) -> dict[str, float]:
        """What Triton's counters say of the requests that were done by then."""
        known = served.done_s <= until_s
        compute_s = served.done_s - served.started_s
        count = float(known.sum())
        sizes, numbers = np.unique(served.batch[known], return_counts=True)
        values = {
            "success_count": count,
            "success_ns": float((served.done_s - served.due_s)[known].sum() * SECOND),
            "fail_count": 0.0,
            "queue_count": count,
            "queue_ns": float((served.started_s - served.due_s)[known].sum() * SECOND),
            "compute_input_ns": count * 15_000,
            "compute_infer_ns": float(compute_s[known].sum() * SECOND),
            "compute_output_ns": count * 10_000,
            "inference_count": count,
            "execution_count": float((numbers / sizes).sum()),
            "cache_hit_count": 0.0,
        }
        for size, number in zip(sizes, numbers, strict=True):
            executions = float(number / size)
            values[f"batch_count:{size}"] = executions
            values[f"batch_infer_ns:{size}"] = executions * (FIXED_S + size * ITEM_S) * SECOND
            values[f"batch_infer_count:{size}"] = executions
        return values

    def scrape(self, t_ns: int, model: str, values: dict[str, float]) -> None:
        rows = {
            "t_ns": [t_ns] * len(values),
            "model": [model] * len(values),
            "field": list(values),
            "value": list(values.values()),
            "reason": [None] * len(values),
        }
        self.folder.append("server", pa.table(rows, schema=SERVER))

    def telemetry(self, model: str, start_ns: int, duration_s: float, max_batch: int) -> None:
        times = [start_ns + int(s * SECOND) for s in np.arange(0, duration_s, 0.5)]
        subjects = {f"model:{model}": 240.0 + max_batch / 4, "server": 44.0, "client": 96.0}
        rows = [
            (t, subject, "memory_bytes", (mib + self.rng.normal(0, 0.4)) * MIB, None)
            for t in times
            for subject, mib in subjects.items()
        ]
        rows += [(t, "gpu:0", "power_w", None, "no GPU: NVML library not found") for t in times[:1]]
        columns = zip(*rows, strict=True)
        self.folder.append(
            "telemetry", pa.table(dict(zip(TELEMETRY.names, map(list, columns), strict=True)), TELEMETRY)
        )

    def end(self, state: str, message: str = "") -> RunFolder:
        self.writer.close()
        self.folder.write_summary(results.compute(self.folder, state=state, message=message))
        self.folder.set_status(state, progress=1.0 if state == "done" else None, message=message)
        self.folder.close()
        return self.folder


def batching_run(
    run_id: str, *, duration_s: float = 3.0, repeats: int = 1, state: str = "done", difference: float = 3.8e-6
) -> RunFolder:
    """A whole batching experiment, whose answers differ by `difference` between batched and alone. Another `state`
    than done stops in the middle of it."""
    experiment = catalogue.experiment("batching")
    for path, value in {
        "workload.warmup_s": 0.5,
        "workload.duration_s": duration_s,
        "reference.duration_s": 1.5,
        "reference.warmup_s": 0.5,
        "repeats": repeats,
    }.items():
        experiment = set_path(experiment, path, value)
    first, then = level_blocks(experiment), cell_blocks(experiment)
    author = Author(experiment, run_id, seconds=sum(b.workload.duration_s + 0.2 for b in first + then))
    blocks = [with_rate(block, SATURATION_RPS) for block in first + then]
    if state != "done":
        blocks = blocks[: len(first) + 3]
    equal = difference < 1e-4
    level = {"level": plain(first[-1].level), "differing": 0 if equal else 64, "max_abs_difference": difference}
    author.folder.event("answers", requests=64, precision="fp32", tolerance=1e-4, levels=[{**level, "equal": equal}])
    for index, block in enumerate(blocks):
        cut = 0.7 if state == "cancelled" and index == len(blocks) - 1 else None
        author.block(index, block, cut_s=cut)
    return author.end(state, {"failed": "the server died while the load ran: signal 9"}.get(state, ""))
