"""What charts are drawn from beyond the summaries: a run's cells, straight from the records, repeats pooled.

The same choice of requests as the summary's figures: successes that were due in the measured window, timed from their
scheduled arrival. Cells are named in the words of lab.show.grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.measure.pace import gaps, pace
from lab.measure.records import OK, Requests, Window
from lab.run.folder import RunFolder
from lab.show.charts.slots import Stretch
from lab.show.grid import load_name, short_label

Floats = npt.NDArray[np.float64]

BUCKETS = 32
STRETCH_S = 16.0
"""As much of a run as a chart of single answers can show."""


def latencies(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, Floats]:
    """{level: latencies in seconds} at one load."""

    def of(requests: Requests) -> Floats:
        return (requests.done_ns - requests.due_ns) / 1e9

    return _successes(folder, factor, load, levels, of)


def first_tokens(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, Floats]:
    """{level: seconds to the first token} at one load; empty where nothing was streamed."""

    def of(requests: Requests) -> Floats:
        found = pace(requests)
        return np.full(len(requests), np.nan) if found is None else found.ttft_s(requests.due_ns)

    return _successes(folder, factor, load, levels, of)


def along(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, tuple[Floats, Floats]]:
    """{level: (positions in the answer, median seconds of a token there)} at one load, answers of the window."""
    found = {}
    for level, blocks in _blocks(folder, factor, load, levels).items():
        positions, seconds = [np.empty(0)], [np.empty(0)]
        for _, r, window in blocks:
            if r.streams is None:
                continue
            of, chunk, gap_ns = gaps(r.streams)
            before = np.concatenate([[0], np.cumsum(r.streams.tokens)])
            tokens = r.streams.tokens[chunk]
            counted = (tokens > 0) & (r.streams.t_ns[chunk] >= window.measured_from_ns)
            position = before[chunk + 1] - before[r.streams.first[of]]
            positions.append(position[counted].astype(float))
            seconds.append((gap_ns / 1e9 / np.maximum(tokens, 1))[counted])
        at, took = np.concatenate(positions), np.concatenate(seconds)
        edges = np.linspace(0, at.max(initial=0), BUCKETS + 1)
        bucket = np.digitize(at, edges[1:-1], right=True)
        filled = [k for k in range(BUCKETS) if (bucket == k).any()]
        middle = np.array([float(np.mean(at[bucket == k])) for k in filled])
        found[level] = (middle, np.array([float(np.median(took[bucket == k])) for k in filled]))
    return found


def stretches(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]) -> dict[str, Stretch]:
    """{level: the requests of the first STRETCH_S of its first block}: the same stretch of the same schedule for every
    level. One that was never answered waited until it was given up."""
    found = {}
    for level, blocks in _blocks(folder, factor, load, levels).items():
        if not blocks:
            continue
        model, requests, window = blocks[0]
        span_s = min(STRETCH_S, window.seconds)
        seen = pace(requests)
        if seen is None or span_s <= 0:
            continue
        stamps = (requests.due_ns, np.where(seen.chunks > 0, seen.first_ns, requests.done_ns), requests.done_ns)
        due_s, first_s, last_s = ((t - window.measured_from_ns) / 1e9 for t in stamps)
        inside = (last_s > 0) & (due_s < span_s)
        slots = 1 if model["scheduler"] == "one" else int(model["max_batch_size"])
        tokens = np.maximum(seen.tokens, 0)
        found[level] = Stretch(span_s, slots, due_s[inside], first_s[inside], last_s[inside], tokens[inside])
    return found


def _successes(folder: RunFolder, factor: str | None, load: str, levels: Sequence[str], of: Any) -> dict[str, Floats]:
    found = {}
    for level, blocks in _blocks(folder, factor, load, levels).items():
        parts = [np.empty(0)]
        for _, r, window in blocks:
            chosen = (r.outcome == OK) & (r.due_ns >= window.measured_from_ns) & (r.due_ns < window.end_ns)
            values = of(r)[chosen]
            parts.append(values[np.isfinite(values)])
        found[level] = np.concatenate(parts)
    return found


def _blocks(
    folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]
) -> dict[str, list[tuple[dict[str, Any], Requests, Window]]]:
    """{level: (model, requests, window) of each repeat} at one load."""
    cells = [cell["factors"] for cell in folder.document["cells"]]
    table = folder.read("requests")
    found: dict[str, list[tuple[dict[str, Any], Requests, Window]]] = {level: [] for level in levels}
    for event in folder.events():
        if event["kind"] != "block_start" or event["role"] != "cell":
            continue
        factors = dict(cells[event["cell"]])
        level = short_label(factor, factors.pop(factor, None) if factor else None)
        if level in found and load_name(factors) == load:
            window = Window(event["start_ns"], event["measured_from_ns"], event["end_ns"])
            found[level].append((event["model"], Requests.from_table(table, block=event["block"]), window))
    return found
