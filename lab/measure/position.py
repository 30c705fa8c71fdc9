"""How long a token took by its place in the answer, and what holding tokens cost in memory: the KV cache's two sides.

With a cache a token costs about the same wherever it stands; without one each token reads the whole text before it
anew, so the time per token rises along the answer. A median over many answers shows which it is. Prompts of one
length are assumed: where they differ, so does what stands before the first token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.figures import inside
from lab.measure.pace import gaps
from lab.measure.records import OK, Requests, Window

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
    """Time per token along successful answers, in stretches of equal length; those that no token fell in are left out.
    What counts is when a token came: in the window, whenever its answer began. A chunk of k tokens took its wait over k
    for each. Empty where nothing was streamed, or the server did not say how many tokens each chunk held."""
    streams = requests.streams
    if streams is None:
        return []
    request, chunk, gap_ns = gaps(streams)
    # The tokens of every chunk and all before it in its answer: the place of the chunk's last token.
    written = np.cumsum(streams.tokens)
    before = np.concatenate([np.zeros(1, np.int64), written])[streams.first[:-1]]
    uncounted = np.zeros(len(requests), dtype=np.int64)
    np.add.at(uncounted, request, streams.tokens[chunk] < 0)
    answered = (requests.outcome == OK) & (uncounted == 0)
    own = answered[request] & (streams.tokens[chunk] > 0) & inside(streams.t_ns[chunk], window)
    if not own.any():
        return []
    request, chunk = request[own], chunk[own]
    place = written[chunk] - before[request]
    token_s = gap_ns[own] / 1e9 / streams.tokens[chunk]
    edges = _edges(int(place.max()), buckets)
    index = np.searchsorted(edges, place, side="left") - 1
    found = []
    for bucket in range(len(edges) - 1):
        held = token_s[index == bucket]
        if len(held):
            low, median, high = np.percentile(held, [25, 50, 75]).tolist()
            found.append(Bucket(int(edges[bucket]) + 1, int(edges[bucket + 1]), median, low, high, len(held)))
    return found


def memory_held(server: pa.Table, telemetry: pa.Table, model: str, window: Window) -> list[Held]:
    """Each reading of the engine's cache in the block (warm-up included) with the nearest reading of memory, in order.
    Tables have the SERVER and TELEMETRY schema."""
    tokens = _known(server, pc.equal(server["model"], model), "engine_cache_tokens_used")
    memory = _known(telemetry, pc.equal(telemetry["subject"], f"model:{model}"), "memory_bytes")
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
