"""How long a token took by its place in the answer, and what holding tokens cost in memory: the KV cache's two sides.

With a cache a token costs about the same wherever it stands; without one each token reads the whole text before it
anew, so the time per token rises along the answer. A median over many answers shows which it is. Prompts of one
length are assumed: where they differ, so does what stands before the first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.figures import inside
from lab.measure.pace import Floats, gaps
from lab.measure.records import OK, Int64s, Requests, Window

BUCKETS = 16
FEWEST_POSITIONS = 2
NEAREST_NS = 1_000_000_000
"""A reading of memory this far from one of the cache still belongs to it."""


@dataclass(frozen=True)
class Bucket:
    """Tokens that were the `first` to the `last` of their answer, counted from 1. `median_s`: the time a token took,
    half of them between `low_s` and `high_s`; `n`: how many waits stand behind it."""

    first: int
    last: int
    median_s: float
    low_s: float
    high_s: float
    n: int


@dataclass(frozen=True)
class Held:
    """Memory of the model's processes while its cache held this many tokens."""

    t_ns: int
    tokens: int
    memory_bytes: float


def by_position(requests: Requests, window: Window, buckets: int = BUCKETS) -> list[Bucket]:
    """Time per token along the successful answers of one block, in stretches of equal length; those that no token fell
    in are left out. What counts is when a token came: in the window, whenever its answer began. A chunk of k tokens
    took its wait over k for each. Empty where nothing was streamed, or the server did not say how many tokens each
    chunk held."""
    return along([(requests, window)], buckets)


def along(blocks: Sequence[tuple[Requests, Window]], buckets: int = BUCKETS) -> list[Bucket]:
    """The same for the answers of several blocks together, each within its own window."""
    waits = [_waits(requests, window) for requests, window in blocks]
    place = np.concatenate([np.zeros(0, np.int64), *(places for places, _ in waits)])
    token_s = np.concatenate([np.zeros(0), *(seconds for _, seconds in waits)])
    if not len(place):
        return []
    edges = _edges(int(place.max()), buckets)
    index = np.searchsorted(edges, place, side="left") - 1
    found = []
    for bucket in range(len(edges) - 1):
        held = token_s[index == bucket]
        if len(held):
            low, median, high = np.percentile(held, [25, 50, 75]).tolist()
            found.append(Bucket(int(edges[bucket]) + 1, int(edges[bucket + 1]), median, low, high, len(held)))
    return found


def _waits(requests: Requests, window: Window) -> tuple[Int64s, Floats]:
    """(place of its last token in the answer, seconds a token) of every chunk but the first of an answer."""
    streams = requests.streams
    if streams is None:
        return np.zeros(0, np.int64), np.zeros(0)
    request, chunk, gap_ns = gaps(streams)
    held = streams.tokens[chunk]
    uncounted = np.bincount(request, weights=held < 0, minlength=len(requests)) > 0
    rows = (requests.outcome == OK)[request] & ~uncounted[request] & (held > 0) & inside(streams.t_ns[chunk], window)
    written = np.concatenate([np.zeros(1, np.int64), np.cumsum(streams.tokens)])
    place = written[chunk + 1] - written[streams.first[:-1]][request]
    return place[rows], gap_ns[rows] / 1e9 / held[rows]


def memory_held(server: pa.Table, telemetry: pa.Table, model: str, window: Window) -> list[Held]:
    """Each reading of the engine's cache in the block (warm-up included) with the nearest reading of memory in it, in
    order; one from before the block may still be of the process that was replaced. Tables have the SERVER and
    TELEMETRY schema."""
    tokens = _known(server, pc.equal(server["model"], model), "engine_cache_tokens_used")
    memory = _known(telemetry, pc.equal(telemetry["subject"], f"model:{model}"), "memory_bytes")
    in_block = pc.and_(pc.greater_equal(memory["t_ns"], window.start_ns), pc.less(memory["t_ns"], window.end_ns))
    memory = memory.filter(in_block)
    found = []
    at = memory["t_ns"].to_numpy()
    for t_ns, count in zip(tokens["t_ns"].to_pylist(), tokens["value"].to_pylist(), strict=True):
        if not window.start_ns <= t_ns < window.end_ns or not len(at):
            continue
        nearest = int(np.abs(at - t_ns).argmin())
        if abs(int(at[nearest]) - t_ns) <= NEAREST_NS:
            found.append(Held(t_ns, round(count), memory["value"][nearest].as_py()))
    return found


def _edges(last: int, buckets: int) -> np.ndarray:
    """Places 2 to `last` in at most `buckets` stretches: a bucket holds places from above one edge up to the next."""
    count = max(1, min(buckets, (last - 1) // FEWEST_POSITIONS or 1))
    return np.unique(np.linspace(1, last, count + 1).round().astype(np.int64))


def _known(table: pa.Table, own: pa.ChunkedArray, name: str) -> pa.Table:
    rows = table.filter(pc.and_(own, pc.equal(table["field"], name)))
    return rows.filter(pc.is_valid(rows["value"])).sort_by("t_ns")
