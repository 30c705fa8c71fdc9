"""What charts are drawn from beyond the summaries: a run's cells, straight from the records, repeats pooled.

The same choice of requests as the summary's figures: successes that were due in the measured window, timed from their
scheduled arrival. Cells are named in the words of lab.show.grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure import position
from lab.measure.figures import inside
from lab.measure.pace import pace
from lab.measure.position import Bucket, Held, memory_held
from lab.measure.records import OK, Requests, Window
from lab.measure.samples import is_compared_by_sample, measure_of
from lab.measure.segments import cut
from lab.run.folder import RunFolder
from lab.show.charts.slots import Stretch
from lab.show.grid import load_name, short_label
from lab.spec import Slo

Floats = npt.NDArray[np.float64]

STRETCH_S = 16.0
"""As much of a run as a chart of single answers can show."""


def latencies(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, Floats]:
    """{level: latencies in seconds} at one load."""

    def of(requests: Requests) -> Floats:
        return (requests.done_ns - requests.due_ns) / 1e9

    return _successes(folder, factor, load, levels, of)


def of_blocks(blocks: Sequence[tuple[Requests, Window]]) -> Floats:
    """Latencies in seconds of blocks that are at hand, by the same choice of requests."""
    parts = [np.empty(0)]
    for requests, window in blocks:
        own = (requests.outcome == OK) & inside(requests.due_ns, window)
        parts.append((requests.done_ns[own] - requests.due_ns[own]) / 1e9)
    return np.concatenate(parts)


def whole(blocks: Sequence[tuple[Requests, Window]], metric: str, slo: Slo | None) -> float | None:
    """A figure of blocks at hand pooled as a comparison pools it: what a mark beside its headline shows."""
    return cut(blocks, measure_of(metric, slo)).whole if blocks and is_compared_by_sample(metric) else None


def first_tokens(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, Floats]:
    """{level: seconds to the first token} at one load; empty where nothing was streamed."""

    def of(requests: Requests) -> Floats:
        found = pace(requests)
        return np.full(len(requests), np.nan) if found is None else found.ttft_s(requests.due_ns)

    return _successes(folder, factor, load, levels, of)


def along(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, list[Bucket]]:
    """{level: time per token by its place in the answer} at one load."""
    return {
        level: position.along([(Requests.from_table(block.table), block.window) for block in blocks])
        for level, blocks in _blocks(folder, factor, load, levels).items()
    }


def held(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, list[Held]]:
    """{level: the most tokens held since the model was loaded, with the memory of its process then}, whatever the
    load: what a block wrote stays for the next one, until the model is loaded anew. Of several times that it was
    loaded the one that held most counts, since no two processes begin with the same memory."""
    cells = [cell["factors"] for cell in folder.document["cells"]]
    # Only what is looked at, and in one piece: a long run has thousands of small ones, and each block looks through.
    server, telemetry = (
        table.combine_chunks().filter(pc.equal(table["field"], name))
        for table, name in (
            (folder.read("server"), "engine_cache_tokens_used"),
            (folder.read("telemetry"), "memory_bytes"),
        )
    )
    found: dict[str, list[list[Held]]] = {level: [] for level in levels}  # one list each time the model was loaded
    before: dict[str, Any] | None = None
    most = 0
    for event in folder.events():
        if event["kind"] != "block_start":
            continue
        level = short_label(factor, cells[event["cell"]].get(factor) if factor else None)
        if event["model"] != before:
            most = 0
            found.setdefault(level, []).append([])
        before = event["model"]
        window = Window(event["start_ns"], event["measured_from_ns"], event["end_ns"])
        for reading in memory_held(server, telemetry, before["name"], window):
            most = max(most, reading.tokens)
            found[level][-1].append(replace(reading, tokens=most))
    return {level: max(found[level], key=lambda held: held[-1].tokens if held else 0, default=[]) for level in levels}


def stretches(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, Stretch]:
    """{level: the requests of the first STRETCH_S of its first block}: the same stretch of the same schedule for every
    level. One that was never answered waited until it was given up."""
    found = {}
    for level, blocks in _blocks(folder, factor, load, levels).items():
        if not blocks:
            continue
        model, window, requests = blocks[0].model, blocks[0].window, Requests.from_table(blocks[0].table)
        span_s = min(STRETCH_S, window.seconds)
        seen = pace(requests)
        if seen is None or span_s <= 0:
            continue
        stamps = (requests.due_ns, np.where(seen.chunks > 0, seen.first_ns, requests.done_ns), requests.done_ns)
        due_s, first_s, last_s = ((t - window.measured_from_ns) / 1e9 for t in stamps)
        seen_at = (last_s > 0) & (due_s < span_s)
        slots = 1 if model["scheduler"] == "one" else int(model["max_batch_size"])
        tokens = np.maximum(seen.tokens, 0)
        found[level] = Stretch(span_s, slots, due_s[seen_at], first_s[seen_at], last_s[seen_at], tokens[seen_at])
    return found


def _successes(
    folder: RunFolder, factor: str | None, load: str, levels: Sequence[str], of: Callable[[Requests], Floats]
) -> dict[str, Floats]:
    found = {}
    for level, blocks in _blocks(folder, factor, load, levels).items():
        parts = [np.empty(0)]
        for block in blocks:
            r, window = Requests.from_table(block.table), block.window
            chosen = (r.outcome == OK) & (r.due_ns >= window.measured_from_ns) & (r.due_ns < window.end_ns)
            values = of(r)[chosen]
            parts.append(values[np.isfinite(values)])
        found[level] = np.concatenate(parts)
    return found


@dataclass(frozen=True)
class _Block:
    """One repeat of a cell: the model as it was served, its window, and its rows of the requests."""

    model: dict[str, Any]
    window: Window
    table: pa.Table


def _blocks(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, list[_Block]]:
    """{level: its blocks} at one load, in the order they ran."""
    cells = [cell["factors"] for cell in folder.document["cells"]]
    table = folder.read("requests")
    found: dict[str, list[_Block]] = {level: [] for level in levels}
    for event in folder.events():
        if event["kind"] != "block_start" or event["role"] != "cell":
            continue
        factors = dict(cells[event["cell"]])
        level = short_label(factor, factors.pop(factor, None) if factor else None)
        if level in found and load_name(factors) == load:
            window = Window(event["start_ns"], event["measured_from_ns"], event["end_ns"])
            rows = table.filter(pc.equal(table["block"], event["block"]))
            found[level].append(_Block(event["model"], window, rows))
    return found
