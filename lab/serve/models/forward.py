"""A Llama's forward pass as one compiled function that several threads run together.

Torch would need some 400 operations for a step of SmolLM2 that each read and write memory, and wait for all threads
each. Here a step is one call, and per layer the threads meet five times (pieces.py). A piece is 32 rows of a weight
matrix (kernels.py) or a head of attention.

numba compiles `forward` at its first call for the processor it finds (about 25 s), and keeps the result on disk (see
compiled_before.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .attention import attention
from .compiled_before import keep
from .formats import BF16, BLOCK, INT8, INT8_WEIGHT, LANES
from .kernels import ADD, STORE, SWIGLU, Placed, byte_at, enter, norm, product, words_of
from .low_rank import Adapted, lower
from .pieces import close, finish, is_over, leave, take, wait
from .pieces import enter as come_in
from .tiles import TILE
from .vector_code import expanded, from_bits, uncounted

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
    """A row is a token; int64. `last` are the rows whose logits are asked for. `adapters`: of each row the address of
    its PackedAdapter, 0 for none; `adapted` whether any has one."""

    tokens: Any
    positions: Any
    slots: Any
    last: Any
    distinct: bool  # no two rows share a slot
    adapters: Any
    adapted: bool


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
    meeting: Any  # int64 [pieces.places(phases, threads)]
    entered: Any  # uint32 [threads, rows, …]: rows as the next matrix wants them; with MANY rows the first's is all's
    low: Any  # float32 [threads, rows, …]: what adapters make of a row on its way there
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
            x[row, 2 * k] = expanded(np.uint16(pair & np.uint32(0xFFFF)))
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
    adapted: Any,
    space: Any,
    phase: Any,
    me: Any,
) -> Any:
    """Rows as `matrix` wants them: of the stream, normed by norm `which`, or of bfloat16 `pairs` where that is -1; and
    what their adapters make of them.

    Few rows each thread makes for itself, since to meet once more would cost more, and none when the product that comes
    next is over. Many they share, in phase `phase`."""
    as_they_are = which < 0 and (matrix.format == BF16 or matrix.format == INT8_WEIGHT)
    if as_they_are and not adapted.on:
        return pairs
    threads = len(space.sums)
    if rows < MANY:
        out = space.entered[me]
        if not is_over(space.meeting, phase + 1, blocks, threads):
            for row in range(rows):
                enter_row(shape, weights, matrix, which, pairs, columns, row, adapted, space, out, row, me)
        return pairs if as_they_are else out
    out, pieces, done = space.entered[0], (rows + TILE - 1) // TILE, 0
    while True:
        piece = take(space.meeting, phase, pieces, threads, me)
        if piece < 0:
            break
        for row in range(piece * TILE, min((piece + 1) * TILE, rows)):
            enter_row(shape, weights, matrix, which, pairs, columns, row, adapted, space, out, row, me)
        done += 1
    finish(space.meeting, phase, threads, me, done)
    wait(space.meeting, phase, pieces, threads)
    return pairs if as_they_are else out


@njit
def enter_row(
    shape: Any,
    weights: Any,
    matrix: Any,
    which: Any,
    pairs: Any,
    columns: Any,
    row: Any,
    adapted: Any,
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
    if which >= 0 or (matrix.format != BF16 and matrix.format != INT8_WEIGHT):
        enter(matrix, own, columns, out, to)
    if adapted.on:
        lower(adapted, row, own, to)


@njit
def adapted_by(batch: Any, layer: Any, part: Any, on: Any, space: Any, me: Any) -> Any:
    """The batch's adapters in a product; what they make of a row lies where the row does, see `entered`."""
    low = space.low[me if len(batch.tokens) < MANY else 0]
    return Adapted(on, batch.adapters, layer, part, low)


@njit
def expand(halves: Any, count: Any, out: Any) -> None:
    for i in range(count):
        out[i] = expanded(halves[i])


@njit
def run(me: Any, shape: Any, weights: Any, batch: Any, cache: Any, space: Any, logits: Any) -> None:
    rows, meeting, threads = len(batch.tokens), space.meeting, len(space.sums)
    phase, done = 0, 0
    while True:
        row = take(meeting, phase, rows, threads, me)
        if row < 0:
            break
        embed(weights, batch.tokens[row], space.x, row, shape.hidden)
        done += 1
    finish(meeting, phase, threads, me, done)
    wait(meeting, phase, rows, threads)
    phase += 1
    hidden_blocks, qkv_blocks, mlp_blocks = space.x.shape[1] // BLOCK, space.qkv.shape[1] // BLOCK, shape.mlp // LANES
    hidden, heads, nothing, none = shape.hidden, shape.heads * shape.head_dim, space.answer, -1
    inner = space.inner.view(np.float32)  # the type of the other products' results: else there would be two of them
    for layer in range(shape.layers):
        qkv, out = placed(weights, layer, QKV), placed(weights, layer, OUT)
        gate_up, down = placed(weights, layer, GATE_UP), placed(weights, layer, DOWN)
        here = adapted_by(batch, layer, QKV, batch.adapted, space, me)
        x = entered(shape, weights, qkv, qkv_blocks, 2 * layer, nothing, hidden, rows, here, space, phase, me)
        product(phase + 1, weights.arena, qkv, qkv_blocks, x, rows, here, STORE, space.qkv, space, me)
        if not batch.distinct:  # a row looks at keys of other rows, so all must be there
            attention(shape, weights, batch, cache, space, layer, phase + 2, me, True, False)
        attention(shape, weights, batch, cache, space, layer, phase + 3, me, batch.distinct, True)
        here = adapted_by(batch, layer, OUT, batch.adapted, space, me)
        x = entered(shape, weights, out, hidden_blocks, none, space.answer, heads, rows, here, space, phase + 4, me)
        product(phase + 5, weights.arena, out, hidden_blocks, x, rows, here, ADD, space.x, space, me)
        here = adapted_by(batch, layer, GATE_UP, batch.adapted, space, me)
        x = entered(
            shape, weights, gate_up, mlp_blocks, 2 * layer + 1, nothing, hidden, rows, here, space, phase + 6, me
        )
        product(phase + 7, weights.arena, gate_up, mlp_blocks, x, rows, here, SWIGLU, inner, space, me)
        here = adapted_by(batch, layer, DOWN, batch.adapted, space, me)
        x = entered(shape, weights, down, hidden_blocks, none, space.inner, shape.mlp, rows, here, space, phase + 8, me)
        product(phase + 9, weights.arena, down, hidden_blocks, x, rows, here, ADD, space.x, space, me)
        phase += 10
    head, last = placed(weights, shape.layers, HEAD), 2 * shape.layers
    x, blocks = space.entered[me], logits.shape[1] // BLOCK
    here = adapted_by(batch, 0, 0, False, space, me)
    for i, row in enumerate(batch.last):
        enter_row(shape, weights, head, last, nothing, hidden, row, here, space, x, i, me)
    product(phase, weights.arena, head, blocks, x, len(batch.last), here, STORE, logits, space, me)


@keep
@njit(nogil=True)
def forward(me: int, epoch: int, shape: Any, weights: Any, batch: Any, cache: Any, space: Any, logits: Any) -> None:
    """Logits [len(batch.last), padded(vocabulary)] of step number `epoch`. Thread 0 returns when they are complete and
    no other thread is at work on them any more; the others come and go as they are scheduled.

    The tuples come as plain ones, because what is kept on disk must not name this module's classes."""
    batch, space = Batch(*uncounted(batch)), Space(*uncounted(space))
    if me > 0 and not come_in(space.meeting, epoch):
        leave(space.meeting)
        return
    weights, cache = Weights(*uncounted(weights)), Cache(*uncounted(cache))
    run(me, Shape(*shape), weights, batch, cache, space, uncounted((logits,))[0])
    if me > 0:
        leave(space.meeting)
    else:
        close(space.meeting)
