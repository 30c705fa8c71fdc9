"""A Llama's forward pass as one compiled function that several threads run together.

Torch would need some 400 operations for a step of SmolLM2 that each read and write memory, and wait for all threads
each. Here a step is one call, and per layer the threads meet five times. Work is cut into pieces (32 rows of a weight
matrix, a head of attention) that threads take as they come: whoever is held up by another program on its processor
takes fewer, and a thread that comes late, or never, is missed by nobody.

Activations between the projections are float32; they are rounded to bfloat16 where they enter a product.

numba compiles `forward` at its first call for the processor it finds (about 10 s), and keeps the result on disk (see
compiled_before.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .compiled_before import keep
from .vector_code import (
    BLOCK,
    LANES,
    TILE,
    add_atomically,
    bits,
    breathe,
    from_bits,
    give_way,
    read_atomically,
    tiles,
)

ONE, HALF = np.float32(1), np.float32(0.5)
LOG2_E, LN_2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
LEAST, MOST = np.float32(-126), np.float32(127)
SERIES = tuple(np.float32(1 / factorial) for factorial in (720, 120, 24, 6, 2))  # of exp, x⁶ to x²

QKV, OUT, GATE_UP, DOWN = range(4)  # the matrices of a layer
HEAD, EMBEDDING = range(2)  # those after the last one's
EPOCH, INSIDE, FIRST = range(3)  # places in `meeting`; from FIRST on, two for each phase: pieces taken, pieces done
SPINS = 1000
"""Looks at an unfinished phase before another thread is let in: some 20 µs."""

AHEAD = 4096
"""Bytes by which a tile asks memory for its own matrix in advance."""


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


@njit(inline="always")
def exp(x: Any) -> Any:
    """e^x, to (2 + |x|) × 1e-7 of itself: 2^whole × e^rest with |rest| ≤ ln 2 / 2. Plain code, which LLVM turns into
    vector code together with the loop around it."""
    t = min(max(x * LOG2_E, LEAST), MOST)
    whole = np.floor(t + HALF)
    r = (t - whole) * LN_2
    p = SERIES[0]
    for factor in SERIES[1:]:
        p = p * r + factor
    return ((p * r + ONE) * r + ONE) * from_bits(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))


@njit(inline="always")
def rounded(value: Any) -> Any:
    """float32 → the nearest bfloat16, ties to even, as uint16."""
    b = bits(value)
    return np.uint16((b + np.int32(0x7FFF) + ((b >> np.int32(16)) & np.int32(1))) >> np.int32(16))


@njit(inline="always")
def expanded(value: Any) -> Any:
    return from_bits(np.int32(np.int32(value) << np.int32(16)))


# --- who does what ------------------------------------------------------------------------------------------------


@njit
def take(meeting: Any, phase: Any, pieces: Any) -> Any:
    """The next piece of this phase that nobody has, or -1."""
    place = FIRST + 2 * phase
    if read_atomically(meeting, place) >= pieces:
        return -1
    piece = add_atomically(meeting, place, 1)
    return piece if piece < pieces else -1


@njit
def finish(meeting: Any, phase: Any) -> None:
    add_atomically(meeting, FIRST + 2 * phase + 1, 1)


@njit
def wait(meeting: Any, phase: Any, pieces: Any) -> None:
    """Until all pieces of the phase are done, by whomever."""
    spins = 0
    while read_atomically(meeting, FIRST + 2 * phase + 1) < pieces:
        spins += 1
        if spins < SPINS:
            breathe()
        else:
            give_way()


# --- products -----------------------------------------------------------------------------------------------------

TILE_1, TILE_2, TILE_3, TILE_4, TILE_5, TILE_6, TILE_7, TILE_8 = (tiles[min(n, TILE) - 1] for n in range(1, 9))


@njit
def tile(
    n: Any, matrix: Any, at: Any, x: Any, row: Any, steps: Any, sums: Any, ahead: Any = AHEAD, stride: Any = 4 * BLOCK
) -> None:
    """Rows `row` to `row + n` of x; n from 1 to TILE."""
    if n == 1:
        TILE_1(matrix, at, x, row, steps, sums, ahead, stride)
    elif n == 2:
        TILE_2(matrix, at, x, row, steps, sums, ahead, stride)
    elif n == 3:
        TILE_3(matrix, at, x, row, steps, sums, ahead, stride)
    elif n == 4:
        TILE_4(matrix, at, x, row, steps, sums, ahead, stride)
    elif n == 5:
        TILE_5(matrix, at, x, row, steps, sums, ahead, stride)
    elif n == 6:
        TILE_6(matrix, at, x, row, steps, sums, ahead, stride)
    elif n == 7:
        TILE_7(matrix, at, x, row, steps, sums, ahead, stride)
    else:
        TILE_8(matrix, at, x, row, steps, sums, ahead, stride)


@njit
def store(sums: Any, n: Any, out: Any, row: Any, block: Any) -> None:
    for i in range(n):
        for lane in range(BLOCK):
            out[row + i, block * BLOCK + lane] = sums[i, lane]


@njit
def add(sums: Any, n: Any, out: Any, row: Any, block: Any) -> None:
    for i in range(n):
        for lane in range(BLOCK):
            out[row + i, block * BLOCK + lane] += sums[i, lane]


@njit(fastmath=True)
def swiglu(sums: Any, n: Any, out: Any, row: Any, block: Any) -> None:
    """silu(gate) × up, in bfloat16 (https://arxiv.org/abs/2002.05202)."""
    halves = out.view(np.uint16)
    for i in range(n):
        for lane in range(LANES):
            gate = sums[i, lane]
            halves[row + i, block * LANES + lane] = rounded(gate / (ONE + exp(-gate)) * sums[i, LANES + lane])


@njit
def cut(blocks: Any) -> Any:
    """(blocks of a piece, pieces): enough of them that threads end together, few enough that taking one is cheap."""
    grain = min(max(blocks // 16, 1), 8)
    return grain, (blocks + grain - 1) // grain


def _product(end: Any) -> Any:
    @njit
    def product(phase: Any, arena: Any, at: Any, blocks: Any, x: Any, rows: Any, out: Any, space: Any, me: Any) -> None:
        """out ← x [rows, columns / 2] times the matrix at `at`, ended by `end`; all threads' work."""
        steps, sums = x.shape[1], space.sums[me]
        grain, pieces = cut(blocks)
        passes = (rows + TILE - 1) // TILE
        while True:
            piece = take(space.meeting, phase, pieces)
            if piece < 0:
                break
            for block in range(piece * grain, min((piece + 1) * grain, blocks)):
                ahead, stride = AHEAD, 4 * BLOCK
                if passes > 1:  # each asks for its part of the next block, so that reading never waits for computing
                    ahead, stride = 4 * BLOCK * steps, 4 * BLOCK // passes
                for row in range(0, rows, TILE):
                    n = min(TILE, rows - row)
                    tile(n, arena, at + block * steps * BLOCK, x, row, steps, sums, ahead, stride)
                    if passes > 1:
                        ahead += steps * stride
                    end(sums, n, out, row, block)
            finish(space.meeting, phase)
        wait(space.meeting, phase, pieces)

    return product


store_product, add_product, swiglu_product = _product(store), _product(add), _product(swiglu)


@njit(fastmath=True)
def norm(x: Any, row: Any, weight: Any, eps: Any, out: Any, to: Any) -> None:
    """x / sqrt(mean(x²) + eps) × weight in bfloat16 (https://arxiv.org/abs/1910.07467)."""
    hidden = len(weight)
    squares = np.float32(0)
    for i in range(hidden):
        squares += x[row, i] * x[row, i]
    scale = np.float32(1 / np.sqrt(squares / hidden + eps))
    halves = out.view(np.uint16)
    for i in range(hidden):
        halves[to, i] = rounded(x[row, i] * scale * weight[i])


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


@njit(fastmath=True)
def softmax(scores: Any, count: Any, shares: Any) -> Any:
    """e^(score - largest) of the first `count` into `shares`, and their sum."""
    largest = scores[0]
    for t in range(1, count):
        largest = max(largest, scores[t])
    total = np.float32(0)
    for t in range(count):
        share = exp(scores[t] - largest)
        total += share
        shares[t] = rounded(share)
    if count % 2:  # a pair's other half
        shares[count] = 0
    return total


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
    if read_atomically(space.meeting, FIRST + 2 * phase) >= cut(blocks)[1]:
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
    if me > 0:
        add_atomically(meeting, INSIDE, 1)
        if read_atomically(meeting, EPOCH) == epoch:
            run(me, Shape(*shape), Weights(*weights), batch, Cache(*cache), space, logits)
        add_atomically(meeting, INSIDE, -1)
        return
    run(me, Shape(*shape), Weights(*weights), batch, Cache(*cache), space, logits)
    add_atomically(meeting, EPOCH, 1)  # who comes now is too late
    spins = 0
    while read_atomically(meeting, INSIDE) > 0:
        spins += 1
        if spins < SPINS:
            breathe()
        else:
            give_way()
