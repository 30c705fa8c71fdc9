"""A Llama's forward pass as one compiled function that several threads run together.

Torch would need some 400 operations for a step of SmolLM2 that each read and write memory, and wait for all threads
each. Here a step is one call, and per layer the threads meet five times (pieces.py). A piece is 32 rows of a weight
matrix (kernels.py) or a head of attention.

numba compiles `forward` at its first call for the processor it finds (about 10 s), and keeps the result on disk (see
compiled_before.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .compiled_before import keep
from .kernels import (
    ONE,
    add_product,
    cut,
    expanded,
    norm,
    rounded,
    softmax,
    store_product,
    swiglu_product,
    tile,
)
from .pieces import close, enter, finish, is_taken, leave, take, wait
from .vector_code import BLOCK, LANES, TILE, from_bits

QKV, OUT, GATE_UP, DOWN = range(4)  # the matrices of a layer
HEAD, EMBEDDING = range(2)  # those after the last one's


class Shape(NamedTuple):
    layers: int
    hidden: int
    mlp: int  # padded to LANES
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float


class Weights(NamedTuple):
    """`at` [layers + 1, 4] says where in `arena` a matrix begins; a tied embedding and head begin at the same place.
    The gate's and the up projection's rows alternate by LANES, so that a tile holds both of 16 neurons."""

    arena: Any  # uint32 [:], see vector_code.pack
    at: Any  # int64
    norms: Any  # float32 [2 layers + 1, hidden]: before attention and before the MLP of each layer, and the last
    cos: Any  # float32 [context, head_dim / 2]
    sin: Any


class Batch(NamedTuple):
    """A row is a token; int64. `last` are the rows whose logits are asked for."""

    tokens: Any
    positions: Any
    slots: Any
    last: Any
    distinct: bool  # no two rows share a slot


class Cache(NamedTuple):
    """Keys and values in bfloat16, as attention multiplies by them: for each layer, slot and head a packed matrix. That
    of the keys has a row a token, that of the values a row for each of a head's dimensions.

    `layers` is 1 when nothing is kept: then each layer writes over the one before."""

    elements: Any  # uint16 [:], layers × slots × 2 kv_heads × tokens × padded(head_dim)
    pairs: Any  # the same as uint32 [:]
    layers: int
    slots: int
    tokens: int  # a multiple of BLOCK


class Space(NamedTuple):
    """Where intermediate results go; rows as in the batch, uint32 for pairs of bfloat16. The last four are each
    thread's own."""

    x: Any  # float32 [rows, padded(hidden)]: the stream
    qkv: Any  # float32 [rows, padded((heads + 2 kv_heads) × head_dim)]
    answer: Any  # uint32 [rows, heads × head_dim / 2]: attention's
    inner: Any  # uint32 [rows, mlp / 2]
    meeting: Any  # int64 [FIRST + 2 phases]
    normed: Any  # uint32 [threads, rows, hidden / 2]
    queries: Any  # uint32 [threads, group, head_dim / 2]
    scores: Any  # float32 [threads, group, tokens]
    shares: Any  # uint32 [threads, group, tokens / 2]: the scores' softmax
    sums: Any  # float32 [threads, TILE, BLOCK]: a tile's result


def phases(layers: int) -> int:
    return 6 * layers + 2


@njit
def embed(weights: Any, at: Any, token: Any, x: Any, row: Any, hidden: Any) -> None:
    """The token's row of the packed embedding."""
    pairs = hidden // 2
    start = at + token // BLOCK * pairs * BLOCK + token % BLOCK
    for k in range(pairs):
        pair = weights.arena[start + k * BLOCK]
        x[row, 2 * k] = expanded(pair & np.uint32(0xFFFF))
        x[row, 2 * k + 1] = from_bits(np.int32(pair & np.uint32(0xFFFF0000)))


# --- attention ----------------------------------------------------------------------------------------------------


@njit
def head_at(shape: Any, cache: Any, layer: Any, slot: Any, head: Any) -> Any:
    """Where in `cache.pairs` the keys of a head begin, or with head + kv_heads the values."""
    size = cache.tokens * padded_(shape.head_dim) // 2
    return (((layer % cache.layers) * cache.slots + slot) * 2 * shape.kv_heads + head) * size


@njit(inline="always")
def padded_(n: Any) -> Any:
    return (n + BLOCK - 1) // BLOCK * BLOCK


@njit
def remember(
    shape: Any, weights: Any, cache: Any, qkv: Any, row: Any, position: Any, keys: Any, values: Any, head: Any
) -> None:
    """Row `row`'s key, turned to its position, and value of a KV head into the cache."""
    dim, half = shape.head_dim, shape.head_dim // 2
    start = (shape.heads + head) * dim
    for j in range(half):
        first, second = qkv[row, start + j], qkv[row, start + half + j]
        cos, sin = weights.cos[position, j], weights.sin[position, j]
        for d, value in ((j, first * cos - second * sin), (j + half, second * cos + first * sin)):
            place = keys + (position // BLOCK * half + d // 2) * BLOCK + position % BLOCK
            cache.elements[2 * place + d % 2] = rounded(value)
    start += shape.kv_heads * dim
    for d in range(dim):
        place = values + (d // BLOCK * (cache.tokens // 2) + position // 2) * BLOCK + d % BLOCK
        cache.elements[2 * place + position % 2] = rounded(qkv[row, start + d])


@njit
def attend(
    shape: Any,
    weights: Any,
    cache: Any,
    space: Any,
    row: Any,
    position: Any,
    keys: Any,
    values: Any,
    head: Any,
    me: Any,
) -> None:
    """The answer of the query heads that share KV head `head`, for row `row` looking back from `position`."""
    dim, half, group = shape.head_dim, shape.head_dim // 2, shape.heads // shape.kv_heads
    queries, scores, shares, sums = space.queries[me], space.scores[me], space.shares[me], space.sums[me]
    halves, share_halves, answer = queries.view(np.uint16), shares.view(np.uint16), space.answer.view(np.uint16)
    scale = np.float32(1 / np.sqrt(dim))
    for q in range(group):
        start = (head * group + q) * dim
        for j in range(half):
            first, second = space.qkv[row, start + j], space.qkv[row, start + half + j]
            cos, sin = weights.cos[position, j], weights.sin[position, j]
            halves[q, j] = rounded(first * cos - second * sin)
            halves[q, j + half] = rounded(second * cos + first * sin)
    count = position + 1
    for q in range(0, group, TILE):
        n = min(TILE, group - q)
        for block in range((count + BLOCK - 1) // BLOCK):
            tile(n, cache.pairs, keys + block * half * BLOCK, queries, q, half, sums)
            for i in range(n):
                for lane in range(BLOCK):
                    scores[q + i, block * BLOCK + lane] = sums[i, lane] * scale
        for i in range(q, q + n):
            scores[i, 0] = ONE / softmax(scores[i], count, share_halves[i])
        for block in range((dim + BLOCK - 1) // BLOCK):
            tile(n, cache.pairs, values + block * (cache.tokens // 2) * BLOCK, shares, q, (count + 1) // 2, sums)
            for i in range(n):
                for lane in range(min(BLOCK, dim - block * BLOCK)):
                    d = (head * group + q + i) * dim + block * BLOCK + lane
                    answer[row, d] = rounded(sums[i, lane] * scores[q + i, 0])


@njit
def attention(
    shape: Any,
    weights: Any,
    batch: Any,
    cache: Any,
    space: Any,
    layer: Any,
    phase: Any,
    me: Any,
    keep: Any,
    answer: Any,
) -> None:
    """A piece is a KV head of a row. With `keep` its key and value are stored, with `answer` its queries answered."""
    pieces = len(batch.tokens) * shape.kv_heads
    while True:
        piece = take(space.meeting, phase, pieces)
        if piece < 0:
            break
        row, head = piece // shape.kv_heads, piece % shape.kv_heads
        position, slot = batch.positions[row], batch.slots[row]
        keys = head_at(shape, cache, layer, slot, head)
        values = head_at(shape, cache, layer, slot, head + shape.kv_heads)
        if keep:
            remember(shape, weights, cache, space.qkv, row, position, keys, values, head)
        if answer:
            attend(shape, weights, cache, space, row, position, keys, values, head, me)
        finish(space.meeting, phase)
    wait(space.meeting, phase, pieces)


# --- the model ----------------------------------------------------------------------------------------------------


@njit
def normed(shape: Any, weights: Any, which: Any, space: Any, rows: Any, phase: Any, blocks: Any, me: Any) -> Any:
    """The stream's rows, normed. Each thread makes them for itself: cheaper than to meet once more. For a phase that is
    over nothing is made."""
    out = space.normed[me]
    if is_taken(space.meeting, phase, cut(blocks)[1]):
        return out
    for row in range(rows):
        norm(space.x, row, weights.norms[which], np.float32(shape.norm_eps), out, row)
    return out


@njit
def run(me: Any, shape: Any, weights: Any, batch: Any, cache: Any, space: Any, logits: Any) -> None:
    rows, meeting, at = len(batch.tokens), space.meeting, weights.at
    phase = 0
    while True:
        row = take(meeting, phase, rows)
        if row < 0:
            break
        embed(weights, at[shape.layers, EMBEDDING], batch.tokens[row], space.x, row, shape.hidden)
        finish(meeting, phase)
    wait(meeting, phase, rows)
    phase += 1
    hidden_blocks, qkv_blocks, mlp_blocks = space.x.shape[1] // BLOCK, space.qkv.shape[1] // BLOCK, shape.mlp // LANES
    for layer in range(shape.layers):
        x = normed(shape, weights, 2 * layer, space, rows, phase, qkv_blocks, me)
        store_product(phase, weights.arena, at[layer, QKV], qkv_blocks, x, rows, space.qkv, space, me)
        if not batch.distinct:  # a row looks at keys of other rows, so all must be there
            attention(shape, weights, batch, cache, space, layer, phase + 1, me, True, False)
        attention(shape, weights, batch, cache, space, layer, phase + 2, me, batch.distinct, True)
        add_product(phase + 3, weights.arena, at[layer, OUT], hidden_blocks, space.answer, rows, space.x, space, me)
        x = normed(shape, weights, 2 * layer + 1, space, rows, phase + 4, mlp_blocks, me)
        swiglu_product(phase + 4, weights.arena, at[layer, GATE_UP], mlp_blocks, x, rows, space.inner, space, me)
        add_product(phase + 5, weights.arena, at[layer, DOWN], hidden_blocks, space.inner, rows, space.x, space, me)
        phase += 6
    x, blocks = space.normed[me], logits.shape[1] // BLOCK
    for i, row in enumerate(batch.last):
        norm(space.x, row, weights.norms[2 * shape.layers], np.float32(shape.norm_eps), x, i)
    store_product(phase, weights.arena, at[shape.layers, HEAD], blocks, x, len(batch.last), logits, space, me)


@keep
@njit(nogil=True)
def forward(me: int, epoch: int, shape: Any, weights: Any, batch: Any, cache: Any, space: Any, logits: Any) -> None:
    """Logits [len(batch.last), padded(vocabulary)] of step number `epoch`. Thread 0 returns when they are complete and
    no other thread is at work on them any more; the others come and go as they are scheduled.

    The tuples come as plain ones, because what is kept on disk must not name this module's classes."""
    batch, space = Batch(*batch), Space(*space)
    meeting = space.meeting
    if me == 0:
        run(me, Shape(*shape), Weights(*weights), batch, Cache(*cache), space, logits)
        close(meeting)
        return
    if enter(meeting, epoch):
        run(me, Shape(*shape), Weights(*weights), batch, Cache(*cache), space, logits)
    leave(meeting)
