"""The arithmetic of a decoder in compiled functions: products, norms, softmax and the gated unit.

Activations are float32; they are rounded where they enter a product, to bfloat16 or, for a matrix in INT8, to 8 bits.
Every function computes a row by itself and always in the same order, so what comes out for a row does not depend on
the others.

numba compiles them, as parts of forward.forward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .formats import BF16, BLOCK, INT4, INT8, INT8_WEIGHT, LANES
from .low_rank import lift
from .pieces import finish, held_up, hold, settle, take
from .tiles import FEW, LEVELS, TILE, tile_bf16, tile_int4, tile_int8, tile_int8_weight
from .vector_code import bits, from_bits, nearest, rounded

ONE, HALF = np.float32(1), np.float32(0.5)
LOG2_E, LN_2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
LEAST, MOST = np.float32(-126), np.float32(127)
SERIES = tuple(np.float32(1 / factorial) for factorial in (720, 120, 24, 6, 2))  # of exp, x⁶ to x²

LEVEL_MOST = np.float32(127)

AHEAD = 4096
"""Bytes by which a tile asks memory for its own matrix in advance."""


class Placed(NamedTuple):
    """A matrix of formats.py in the arena."""

    at: Any  # the word where it begins
    format: Any
    steps: Any  # of a block
    group: Any  # steps of activations that share a scale, INT8 and INT4 only


@njit(inline="always")
def padded_(n: Any, multiple: Any) -> Any:
    return (n + multiple - 1) // multiple * multiple


@njit(inline="always")
def byte_at(row: Any, column: Any) -> Any:
    """Where in a block of INT8_WEIGHT, from its first step on, the weight of a row and a column stands."""
    four, pair, half = row % BLOCK // 4, column % 4 // 2, column % 2
    return column // 4 * 4 * BLOCK + four * 16 + pair * 8 + row % 4 * 2 + half


@njit
def words_of(matrix: Any) -> Any:
    """Words of a block: formats.block_words."""
    if matrix.format == BF16:
        return matrix.steps * BLOCK
    if matrix.format == INT4:
        return (matrix.steps + matrix.steps // matrix.group) * BLOCK
    return (matrix.steps + 1) * BLOCK


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
def at_once(rows: Any) -> Any:
    """Of so many rows, how many the next tile takes."""
    return TILE if rows >= TILE else min(rows, FEW)


@njit
def tile(
    matrix: Any, n: Any, arena: Any, at: Any, x: Any, row: Any, sums: Any, ahead: Any = AHEAD, stride: Any = 4 * BLOCK
) -> None:
    """The block at word `at`, of a matrix like `matrix`, times rows `row` to `row + n` of x; n as `at_once` gives.
    The scales that stand before a block are still to be applied."""
    format, steps, group = matrix.format, matrix.steps, matrix.group
    if format == BF16:
        tile_bf16(n, arena, at, x, row, steps, group, sums, ahead, stride)
    elif format == INT8:
        tile_int8(n, arena, at + BLOCK, x, row, steps, group, sums, ahead, stride)
    elif format == INT8_WEIGHT:
        tile_int8_weight(n, arena, at + BLOCK, x, row, steps, group, sums, ahead, stride)
    else:
        tile_int4(n, arena, at, x, row, steps, group, sums, ahead, stride)


@njit
def scale(matrix: Any, arena: Any, at: Any, sums: Any, n: Any) -> None:
    """The scales of the block at word `at` applied to a tile's sums, where the tile has not done it."""
    if matrix.format != INT8 and matrix.format != INT8_WEIGHT:
        return
    scales = arena[at : at + BLOCK].view(np.float32)
    for i in range(n):
        for lane in range(len(scales)):
            sums[i, lane] *= scales[lane]


@njit
def store(sums: Any, n: Any, out: Any, row: Any, block: Any) -> None:
    for i in range(n):
        line = out[row + i, block * BLOCK : (block + 1) * BLOCK]
        for lane in range(len(line)):  # LLVM makes vectors of a loop unless it knows that it is a short one
            line[lane] = sums[i, lane]


@njit
def add(sums: Any, n: Any, out: Any, row: Any, block: Any) -> None:
    for i in range(n):
        line = out[row + i, block * BLOCK : (block + 1) * BLOCK]
        for lane in range(len(line)):
            line[lane] += sums[i, lane]


@njit(fastmath=True, error_model="numpy")
def swiglu(sums: Any, n: Any, out: Any, row: Any, block: Any) -> None:
    """silu(gate) × up, in bfloat16 (https://arxiv.org/abs/2002.05202)."""
    halves = out.view(np.uint16)
    for i in range(n):
        line = halves[row + i, block * LANES : (block + 1) * LANES]
        for lane in range(LANES):
            gate = sums[i, lane]
            line[lane] = rounded(gate / (ONE + exp(-gate)) * sums[i, LANES + lane])


STORE, ADD, SWIGLU = range(3)
"""What becomes of a product: it is stored, added to what is there, or the gated unit of its halves is stored."""


@njit
def product(
    phase: Any,
    arena: Any,
    matrix: Any,
    blocks: Any,
    x: Any,
    rows: Any,
    adapted: Any,
    end: Any,
    out: Any,
    space: Any,
    me: Any,
) -> None:
    """`rows` rows of x, as the matrix wants them, times the matrix, each changed by its adapter, ended by `end` in
    `out`; all threads' work."""
    sums, words, threads, meeting = space.sums[me], words_of(matrix), len(space.sums), space.meeting
    passes = rows // TILE + (rows % TILE + FEW - 1) // FEW
    if rows == 0:
        return
    while True:
        holder, block = me, take(meeting, phase, blocks, threads, me)
        if block >= 0:
            hold(meeting, phase, threads, me, block)
        else:
            holder, block = held_up(meeting, phase, blocks, threads, me)
            if block < 0:
                return
        at, ahead, stride = matrix.at + block * words, AHEAD, 4 * words // matrix.steps
        if passes > 1:  # each asks for its part of the next block, so that reading never waits for computing
            ahead, stride = 4 * words, stride // passes
        row = 0
        while row < rows:
            n = at_once(rows - row)
            tile(matrix, n, arena, at, x, row, sums, ahead, stride)
            if passes > 1:
                ahead += matrix.steps * stride
            scale(matrix, arena, at, sums, n)
            if adapted.on:
                lift(adapted, row, n, block, sums)
            if row == 0 and not settle(meeting, phase, threads, holder, block):
                break  # another one was faster
            if end == STORE:
                store(sums, n, out, row, block)
            elif end == ADD:
                add(sums, n, out, row, block)
            else:
                swiglu(sums, n, out, row, block)
            row += n
        if row > 0:
            finish(meeting, phase, threads, me, 1)


# --- rows as they enter a product ---------------------------------------------------------------------------------


@njit(fastmath=True)
def norm(x: Any, row: Any, weight: Any, eps: Any, out: Any) -> None:
    """x / sqrt(mean(x²) + eps) × weight (https://arxiv.org/abs/1910.07467), for one row."""
    hidden = len(weight)
    squares = np.float32(0)
    for i in range(hidden):
        squares += x[row, i] * x[row, i]
    scale = np.float32(1 / np.sqrt(squares / hidden + eps))
    for i in range(hidden):
        out[i] = x[row, i] * scale * weight[i]


@njit
def enter(matrix: Any, values: Any, columns: Any, out: Any, row: Any) -> None:
    """out[row] ← the first `columns` of float32 `values` as such a matrix wants a vector, see tiles.py."""
    if matrix.format == INT8:
        enter_levels(values, columns, 4 * matrix.steps, 4 * matrix.group, -128, out[row])
    elif matrix.format == INT4:
        enter_levels(values, columns, 8 * matrix.steps, 8 * matrix.group, -1, out[row])
    else:
        halves = out[row].view(np.uint16)
        for i in range(columns):
            halves[i] = rounded(values[i])
        halves[columns : padded_(columns, 4)] = 0


@njit
def largest_of(values: Any) -> Any:
    """The largest magnitude. By its bits, whose order is that of whole numbers: those LLVM compares in vectors."""
    most = np.int32(0)
    for i in range(len(values)):
        magnitude = np.int32(bits(values[i]) & np.int32(0x7FFFFFFF))
        most = magnitude if magnitude > most else most
    return from_bits(most)


@njit
def enter_levels(values: Any, columns: Any, whole: Any, group: Any, start: Any, out: Any) -> None:
    """The first `columns` of `values`, zeros up to `whole`, by groups in 127 levels to either side of 0, the outermost
    for a group's largest; a group's sums begin at `start` × the sum of its levels."""
    words, first, at = LEVELS + group // 4, 0, 0
    while first < whole:
        size, given = min(group, whole - first), values[first : min(first + group, columns)]
        levels = out[at + LEVELS : at + LEVELS + size // 4].view(np.int8)
        largest, total = largest_of(given), np.int32(0)
        inverse = LEVEL_MOST / largest if largest > 0 else np.float32(0)
        for i in range(len(given)):
            level = nearest(given[i] * inverse)
            levels[i] = level
            total = np.int32(total + level)
        levels[len(given) :] = 0
        out[at] = np.uint32(start * total)
        out[at + 1] = np.uint32(bits(largest / LEVEL_MOST))
        first += group
        at += words


@njit(inline="always")
def in_order(value: Any) -> Any:
    """A float32 as a whole number of the same order, see largest_of. Its own inverse, but for the type."""
    b = bits(value)
    return np.int32(b ^ ((b >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(fastmath=True)
def softmax(scores: Any, count: Any) -> Any:
    """The first `count` scores become e^(score - largest); their sum."""
    most = in_order(scores[0])
    for t in range(1, count):
        this = in_order(scores[t])
        most = this if this > most else most
    largest, total = from_bits(in_order(from_bits(most))), np.float32(0)
    for t in range(count):
        share = exp(scores[t] - largest)
        total += share
        scores[t] = share
    return total
