"""The traced blocks of a run: client stamps joined with Triton's, the slowest requests, and what another batching would
have done to the same arrivals (modelled)."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.measure import trace
from lab.measure.pace import Floats
from lab.measure.planner.queueing import Rules
from lab.measure.planner.service import Service
from lab.measure.planner.simulator import simulate
from lab.measure.records import OK
from lab.measure.trace import Joined, Read
from lab.run.folder import RunFolder

SLOWEST = 5


def blocks(folder: RunFolder) -> list[int]:
    """Numbers of the blocks that have traces."""
    found = (path.name.removeprefix("traces-") for path in folder.path.glob("traces-*"))
    return sorted(int(number) for number in found if number.isdecimal())


def joined(folder: RunFolder, block: int) -> Joined | None:
    """The block's measured requests that were answered and traced; None when it has no traces."""
    found = _joined(folder, block)
    return None if found is None else found[0]


def read(folder: RunFolder, block: int) -> tuple[str, Read] | None:
    """(the model, what the files of a block say of its requests); None without files."""
    start = _start(folder, block)
    files = sorted((folder.path / f"traces-{block}").glob("*"))
    if start is None or not files:
        return None
    model = str(start["model"]["name"])
    return model, trace.read_traces((path.read_text(errors="replace") for path in files), model)


def _start(folder: RunFolder, block: int) -> dict[str, Any] | None:
    return next((e for e in folder.events() if e["kind"] == "block_start" and e["block"] == block), None)


def _joined(folder: RunFolder, block: int) -> tuple[Joined, Read] | None:
    """The joined requests, and what was read of the files."""
    start, both = _start(folder, block), read(folder, block)
    if start is None or both is None:
        return None
    found = both[1]
    table = folder.read("requests")
    columns = [np.asarray(table[name].fill_null(-1)) for name in ("block", "request", "due_ns", "sent_ns", "done_ns")]
    outcome = table["outcome"].to_numpy()
    own = (columns[0] == block) & (outcome == OK) & (columns[2] >= start["measured_from_ns"])
    records = {
        int(n): (int(due), int(sent), int(done))
        for n, due, sent, done in zip(*(c[own] for c in columns[1:]), strict=True)
    }
    warm = {n: stamps for n, stamps in found.stamps.items() if n in records}
    return trace.join(records, warm), found


def told(folder: RunFolder) -> dict[str, Any] | None:
    """The document's "trace": parts of latency with true percentiles, and the slowest requests, of the last traced
    block; None for a run without."""
    numbers = blocks(folder)
    both = _joined(folder, numbers[-1]) if numbers else None
    if both is None:
        return None
    found, files = both
    slow = [
        {**vars(one), "parts_s": dict(one.parts_s), "waited_for": one.waited_for}
        for one in trace.slowest(found, SLOWEST)
    ]
    return {
        "block": numbers[-1],
        "traced": len(found),
        "of": found.of,
        "gaps": trace.gaps(found, files),
        "parts": trace.percentiles(found),
        "slowest": slow,
    }


def service(found: Joined) -> Service:
    """The server as its traces show it: seconds of a batch by its size, what spreads around that, and what a request
    spends outside of queue and computing."""
    batch = found.batch
    _, first, size = np.unique(batch, return_index=True, return_counts=True)
    seconds = (found.stamps[first, 5] - found.stamps[first, 2]) / 1e9
    sizes = np.unique(size)
    mean = {int(n): float(seconds[size == n].mean()) for n in sizes}
    item_s, fixed_s = np.polyfit(size, seconds, 1) if len(sizes) > 1 else (0.0, mean[int(sizes[0])])
    spread = seconds / np.array([mean[int(n)] for n in size])
    parts = found.parts_s
    outside = parts["client"] + parts["network"] + parts["frontend"]
    return Service(
        fixed_s=max(float(fixed_s), 0.0),
        item_s=max(float(item_s), 0.0),
        spread=np.asarray(spread / spread.mean()),
        outside_s=np.asarray(outside),
        curve=tuple(sorted(mean.items())),
    )


def instead(found: Joined, rules: Rules, seed: int = 0) -> tuple[Floats, Floats]:
    """(measured, modelled) latency in seconds of the same arrivals under other rules, in the order of arrival."""
    order = np.argsort(found.due_ns)
    due_s = (found.due_ns[order] - found.due_ns.min()) / 1e9
    modelled = simulate(np.asarray(due_s), rules, service(found), seed=seed)
    return found.latency_s[order], modelled.latency_s
