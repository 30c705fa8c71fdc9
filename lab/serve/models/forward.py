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
from .formats import BF16, BLOCK, INT8, INT8_WEIGHT, LANES
from .kernels import (
    AHEAD,
    LEVEL_MOST,
    ONE,
    Placed,
    add_product,
    cut,
    enter,
    expanded,
    largest_of,
    norm,
    padded_,
    rounded,
    scale,
    softmax,
    store_product,
    swiglu_product,
    tile,
    words_of,
)
from .pieces import close, finish, is_taken, leave, take, wait
from .pieces import enter as come_in
from .tiles import TILE, tile_int8_weight
from .vector_code import from_bits, nearest

QKV, OUT, GATE_UP, DOWN = range(4)  # the matrices of a layer
HEAD, EMBEDDING = range(2)  # those after the last one's

MANY = 16
"""Rows from which on it is cheaper that threads share the work of norms and roundings, and meet once more."""


class Shape(NamedTuple):
    layers: int
    hidden: int
    mlp: int  # padded to LANES
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float


class Weights(NamedTuple):
    """The gate's and the up projection's rows alternate by LANES, so that a tile holds both of 16 neurons."""

    arena: Any  # uint32 [:], see formats.pack
    matrices: Any  # int64 [layers + 1, 4, 4]: of each the fields of a Placed; a tied embedding and head are one
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
    """Keys and values as attention multiplies by them: for each layer, slot and head a packed matrix, see formats.py.
    That of the keys has a row a token, that of the values a row for each of a head's dimensions. In 8 bits
    (INT8_WEIGHT) a token's key and its value have a scale each: the keys' stand before each block, as rows' scales do,
    the values', which are columns', before all blocks.

    `layers` is 1 when nothing is kept: then each layer writes over the one before."""

    words: Any  # uint32 [:], layers × slots × 2 kv_heads × head_words
    format: int  # BF16 or INT8_WEIGHT
    layers: int
    slots: int
    tokens: int  # a multiple of BLOCK


class Space(NamedTuple):
    """Where intermediate results go; rows as in the batch, uint32 for pairs of bfloat16. Those from `entered` on are
    each thread's own."""

    x: Any  # float32 [rows, padded(hidden)]: the stream
    qkv: Any  # float32 [rows, padded((heads + 2 kv_heads) × head_dim)]
    answer: Any  # uint32 [rows, heads × head_dim / 2]: attention's
    inner: Any  # uint32 [rows, mlp / 2]
    meeting: Any  # int64 [FIRST + 2 phases]
    entered: Any  # uint32 [threads, rows, …]: rows as the next matrix wants them; with MANY rows the first's is all's
    row: Any  # float32 [threads, …]: a row on its way there
    queries: Any  # uint32 [threads, group, head_dim / 2]
    scores: Any  # float32 [threads, group, tokens]
    totals: Any  # float32 [threads, group]: what the scores' softmax is to be divided by
    shares: Any  # uint32 [threads, group, tokens / 2]: the scores' softmax, not yet divided
    sums: Any  # float32 [threads, TILE, BLOCK]: a tile's result


def head_words(format: int, head_dim: int, tokens: int) -> int:
    """Words of 4 bytes for the keys, or the values, of one head in a slot of the cache."""
    dim = -(-head_dim // BLOCK) * BLOCK
    return tokens * dim // 2 if format == BF16 else tokens * (dim // 4 + 1)


def phases(layers: int) -> int:
    return 10 * layers + 3


@njit
def embed(weights: Any, token: Any, x: Any, row: Any, hidden: Any) -> None:
    """The token's row of the packed embedding."""
    matrix = placed(weights, len(weights.matrices) - 1, EMBEDDING)
    block, lane = matrix.at + token // BLOCK * words_of(matrix), token % BLOCK
    if matrix.format == BF16:
        for k in range(hidden // 2):
            pair = weights.arena[block + k * BLOCK + lane]
            x[row, 2 * k] = expanded(pair & np.uint32(0xFFFF))
            x[row, 2 * k + 1] = from_bits(np.int32(pair & np.uint32(0xFFFF0000)))
        return
    scale, stored = weights.arena.view(np.float32)[block + lane], weights.arena.view(np.uint8)
    first = 4 * (block + BLOCK)
    for i in range(hidden):
        if matrix.format == INT8:
            value = np.int32(stored[first + i // 4 * 4 * BLOCK + 4 * lane + i % 4]) - np.int32(128)
        else:
            byte = np.int32(stored[first + byte_at(lane, i)])
            value = -(byte & np.int32(127)) if byte > 127 else byte
        x[row, i] = np.float32(value) * scale


@njit(inline="always")
def placed(weights: Any, layer: Any, which: Any) -> Any:
    at, format, steps, group = weights.matrices[layer, which]
    return Placed(at, format, steps, group)


@njit(inline="always")
def byte_at(row: Any, column: Any) -> Any:
    """Where in a block of INT8_WEIGHT, from its first step on, the weight of a row and a column stands."""
    four, pair, half = row % BLOCK // 4, column % 4 // 2, column % 2
    return column // 4 * 4 * BLOCK + four * 16 + pair * 8 + row % 4 * 2 + half


# --- attention ----------------------------------------------------------------------------------------------------


@njit
def head_at(shape: Any, cache: Any, layer: Any, slot: Any, head: Any) -> Any:
    """Where in `cache.words` the keys of a head begin, or with head + kv_heads the values."""
    dim = padded_(shape.head_dim, BLOCK)
    size = cache.tokens * dim // 2 if cache.format == BF16 else cache.tokens * (dim // 4 + 1)
    return (((layer % cache.layers) * cache.slots + slot) * 2 * shape.kv_heads + head) * size


@njit
def keys_of(shape: Any, cache: Any, at: Any) -> Any:
    """The keys that begin at word `at`, as a matrix."""
    width = 2 if cache.format == BF16 else 4
    return Placed(at, cache.format, (shape.head_dim + width - 1) // width, 0)


@njit
def turn(shape: Any, weights: Any, qkv: Any, row: Any, start: Any, position: Any, out: Any) -> None:
    """A query or key of `qkv`, turned to its position (decoder._rotations)."""
    half = shape.head_dim // 2
    for j in range(half):
        first, second = qkv[row, start + j], qkv[row, start + half + j]
        cos, sin = weights.cos[position, j], weights.sin[position, j]
        out[j], out[j + half] = first * cos - second * sin, second * cos + first * sin


@njit
def remember(
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
    """Row `row`'s key, turned to its position, and value of a KV head into the cache."""
    dim, own = shape.head_dim, space.row[me]
    block = keys + position // BLOCK * words_of(keys_of(shape, cache, keys))
    start = (shape.heads + head) * dim
    turn(shape, weights, space.qkv, row, start, position, own)
    if cache.format == BF16:
        halves = cache.words.view(np.uint16)
        for d in range(dim):
            halves[2 * (block + d // 2 * BLOCK + position % BLOCK) + d % 2] = rounded(own[d])
    else:
        stored = cache.words.view(np.uint8)
        inverse = level_scale(own, dim, cache.words.view(np.float32), block + position % BLOCK)
        for d in range(dim):
            stored[4 * (block + BLOCK) + byte_at(position, d)] = signed_byte(own[d] * inverse)
    start += shape.kv_heads * dim
    for d in range(dim):
        own[d] = space.qkv[row, start + d]
    if cache.format == BF16:
        halves = cache.words.view(np.uint16)
        for d in range(dim):
            place = values + (d // BLOCK * (cache.tokens // 2) + position // 2) * BLOCK + d % BLOCK
            halves[2 * place + position % 2] = rounded(own[d])
    else:
        stored = cache.words.view(np.uint8)
        inverse = level_scale(own, dim, cache.words.view(np.float32), values + position)
        for d in range(dim):
            first = values + cache.tokens + d // BLOCK * (cache.tokens // 4) * BLOCK
            stored[4 * first + byte_at(d, position)] = signed_byte(own[d] * inverse)


@njit
def level_scale(values: Any, count: Any, scales: Any, at: Any) -> Any:
    """Puts down the scale that spreads the values over 127 levels to either side; by what to multiply them."""
    largest = largest_of(values, count)
    scales[at] = largest / LEVEL_MOST
    return LEVEL_MOST / largest if largest > 0 else np.float32(0)


@njit(inline="always")
def signed_byte(value: Any) -> Any:
    """The nearest level as sign and magnitude."""
    level = nearest(value)
    return np.uint8(-level | 128) if level < 0 else np.uint8(level)


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
    dim, group = shape.head_dim, shape.heads // shape.kv_heads
    queries, scores, shares, sums = space.queries[me], space.scores[me], space.shares[me], space.sums[me]
    totals, own, answer = space.totals[me], space.row[me], space.answer.view(np.uint16)
    matrix, unit = keys_of(shape, cache, keys), np.float32(1 / np.sqrt(dim))
    for q in range(group):
        turn(shape, weights, space.qkv, row, (head * group + q) * dim, position, own)
        enter(matrix, own, dim, queries, q)
    count, words = position + 1, words_of(matrix)
    for q in range(0, group, TILE):
        n = min(TILE, group - q)
        for block in range((count + BLOCK - 1) // BLOCK):
            at = keys + block * words
            tile(matrix, n, cache.words, at, queries, q, sums)
            scale(matrix, cache.words, at, queries, q, sums, n)
            for i in range(n):
                for lane in range(BLOCK):
                    scores[q + i, block * BLOCK + lane] = sums[i, lane] * unit
        for i in range(q, q + n):
            totals[i] = ONE / softmax(scores[i], count)
            if cache.format != BF16:  # the values' scales
                weigh(scores[i], cache.words.view(np.float32), values, count)
            enter(matrix, scores[i], count, shares, i)
        for block in range((dim + BLOCK - 1) // BLOCK):
            if cache.format == BF16:
                look = Placed(values + block * (cache.tokens // 2) * BLOCK, cache.format, (count + 1) // 2, 0)
                tile(look, n, cache.words, look.at, shares, q, sums)
            else:  # without rows' scales before the block
                at = values + cache.tokens + block * (cache.tokens // 4) * BLOCK
                steps = (count + 3) // 4
                tile_int8_weight(n, cache.words, at, shares, q, steps, 0, sums, AHEAD, 4 * BLOCK)
            for i in range(n):
                for lane in range(min(BLOCK, dim - block * BLOCK)):
                    d = (head * group + q + i) * dim + block * BLOCK + lane
                    answer[row, d] = rounded(sums[i, lane] * totals[q + i])


@njit
def weigh(scores: Any, scales: Any, at: Any, count: Any) -> None:
    for t in range(count):
        scores[t] *= scales[at + t]


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
            remember(shape, weights, cache, space, row, position, keys, values, head, me)
        if answer:
            attend(shape, weights, cache, space, row, position, keys, values, head, me)
        finish(space.meeting, phase)
    wait(space.meeting, phase, pieces)


# --- the model ----------------------------------------------------------------------------------------------------


@njit
def entered(
    shape: Any,
    weights: Any,
    matrix: Any,
    blocks: Any,
    which: Any,
    pairs: Any,
    columns: Any,
    rows: Any,
    space: Any,
    phase: Any,
    me: Any,
) -> Any:
    """Rows as `matrix` wants them: of the stream, normed by norm `which`, or of bfloat16 `pairs` where that is -1.

    Few rows each thread makes for itself, since to meet once more would cost more, and none when the product that comes
    next is over. Many they share, in phase `phase`."""
    if which < 0 and (matrix.format == BF16 or matrix.format == INT8_WEIGHT):
        return pairs
    if rows < MANY:
        out = space.entered[me]
        if not is_taken(space.meeting, phase + 1, cut(blocks)[1]):
            for row in range(rows):
                enter_row(shape, weights, matrix, which, pairs, columns, row, space, out, row, me)
        return out
    out = space.entered[0]
    while True:
        piece = take(space.meeting, phase, (rows + TILE - 1) // TILE)
        if piece < 0:
            break
        for row in range(piece * TILE, min((piece + 1) * TILE, rows)):
            enter_row(shape, weights, matrix, which, pairs, columns, row, space, out, row, me)
        finish(space.meeting, phase)
    wait(space.meeting, phase, (rows + TILE - 1) // TILE)
    return out


@njit
def enter_row(
    shape: Any,
    weights: Any,
    matrix: Any,
    which: Any,
    pairs: Any,
    columns: Any,
    row: Any,
    space: Any,
    out: Any,
    to: Any,
    me: Any,
) -> None:
    own = space.row[me]
    if which >= 0:
        norm(space.x, row, weights.norms[which], np.float32(shape.norm_eps), own)
    else:
        expand(pairs.view(np.uint16)[row], columns, own)
    enter(matrix, own, columns, out, to)


@njit
def expand(halves: Any, count: Any, out: Any) -> None:
    for i in range(count):
        out[i] = expanded(halves[i])


@njit
def run(me: Any, shape: Any, weights: Any, batch: Any, cache: Any, space: Any, logits: Any) -> None:
    rows, meeting = len(batch.tokens), space.meeting
    phase = 0
    while True:
        row = take(meeting, phase, rows)
        if row < 0:
            break
        embed(weights, batch.tokens[row], space.x, row, shape.hidden)
        finish(meeting, phase)
    wait(meeting, phase, rows)
    phase += 1
    hidden_blocks, qkv_blocks, mlp_blocks = space.x.shape[1] // BLOCK, space.qkv.shape[1] // BLOCK, shape.mlp // LANES
    hidden, heads, nothing, none = shape.hidden, shape.heads * shape.head_dim, space.answer, -1
    for layer in range(shape.layers):
        qkv, out = placed(weights, layer, QKV), placed(weights, layer, OUT)
        gate_up, down = placed(weights, layer, GATE_UP), placed(weights, layer, DOWN)
        x = entered(shape, weights, qkv, qkv_blocks, 2 * layer, nothing, hidden, rows, space, phase, me)
        store_product(phase + 1, weights.arena, qkv, qkv_blocks, x, rows, space.qkv, space, me)
        if not batch.distinct:  # a row looks at keys of other rows, so all must be there
            attention(shape, weights, batch, cache, space, layer, phase + 2, me, True, False)
        attention(shape, weights, batch, cache, space, layer, phase + 3, me, batch.distinct, True)
        x = entered(shape, weights, out, hidden_blocks, none, space.answer, heads, rows, space, phase + 4, me)
        add_product(phase + 5, weights.arena, out, hidden_blocks, x, rows, space.x, space, me)
        x = entered(shape, weights, gate_up, mlp_blocks, 2 * layer + 1, nothing, hidden, rows, space, phase + 6, me)
        swiglu_product(phase + 7, weights.arena, gate_up, mlp_blocks, x, rows, space.inner, space, me)
        x = entered(shape, weights, down, hidden_blocks, none, space.inner, shape.mlp, rows, space, phase + 8, me)
        add_product(phase + 9, weights.arena, down, hidden_blocks, x, rows, space.x, space, me)
        phase += 10
    head, last = placed(weights, shape.layers, HEAD), 2 * shape.layers
    x, blocks = space.entered[me], logits.shape[1] // BLOCK
    for i, row in enumerate(batch.last):
        enter_row(shape, weights, head, last, nothing, hidden, row, space, x, i, me)
    store_product(phase, weights.arena, head, blocks, x, len(batch.last), logits, space, me)


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
    if come_in(meeting, epoch):
        run(me, Shape(*shape), Weights(*weights), batch, Cache(*cache), space, logits)
    leave(meeting)
