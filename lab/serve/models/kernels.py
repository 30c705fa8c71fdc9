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
from .pieces import finish, take, wait
from .tiles import LEVELS, TILE, tile_bf16, tile_int4, tile_int8, tile_int8_weight
from .vector_code import bits, from_bits, nearest

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
    group: Any  # steps that share a scale, INT4 only


@njit(inline="always")
def padded_(n: Any, multiple: Any) -> Any:
    return (n + multiple - 1) // multiple * multiple


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
def rounded(value: Any) -> Any:
    """float32 → the nearest bfloat16, ties to even, as uint16."""
    b = bits(value)
    return np.uint16((b + np.int32(0x7FFF) + ((b >> np.int32(16)) & np.int32(1))) >> np.int32(16))


@njit(inline="always")
def expanded(value: Any) -> Any:
    return from_bits(np.int32(np.int32(value) << np.int32(16)))


@njit
def tile(
    matrix: Any, n: Any, arena: Any, at: Any, x: Any, row: Any, sums: Any, ahead: Any = AHEAD, stride: Any = 4 * BLOCK
) -> None:
    """The block at word `at`, of a matrix like `matrix`, times rows `row` to `row + n` of x; n from 1 to TILE. For
    INT8 and INT8_WEIGHT the scales are still to be applied."""
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
def scale(matrix: Any, arena: Any, at: Any, x: Any, row: Any, sums: Any, n: Any) -> None:
    """The scales of the block at word `at` applied to a tile's sums, where the tile has not done it."""
    if matrix.format != INT8 and matrix.format != INT8_WEIGHT:
        return
    scales = arena.view(np.float32)
    for i in range(n):
        own = from_bits(np.int32(x[row + i, 1])) if matrix.format == INT8 else ONE
        for lane in range(BLOCK):
            sums[i, lane] *= scales[at + lane] * own


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
    def product(
        phase: Any, arena: Any, matrix: Any, blocks: Any, x: Any, rows: Any, out: Any, space: Any, me: Any
    ) -> None:
        """out ← `rows` rows of x, as the matrix wants them, times the matrix, ended by `end`; all threads' work."""
        sums, words = space.sums[me], words_of(matrix)
        grain, pieces = cut(blocks)
        passes = (rows + TILE - 1) // TILE
        while True:
            piece = take(space.meeting, phase, pieces)
            if piece < 0:
                break
            for block in range(piece * grain, min((piece + 1) * grain, blocks)):
                at, ahead, stride = matrix.at + block * words, AHEAD, 4 * words // matrix.steps
                if passes > 1:  # each asks for its part of the next block, so that reading never waits for computing
                    ahead, stride = 4 * words, stride // passes
                for row in range(0, rows, TILE):
                    n = min(TILE, rows - row)
                    tile(matrix, n, arena, at, x, row, sums, ahead, stride)
                    if passes > 1:
                        ahead += matrix.steps * stride
                    scale(matrix, arena, at, x, row, sums, n)
                    end(sums, n, out, row, block)
            finish(space.meeting, phase)
        wait(space.meeting, phase, pieces)

    return product


store_product, add_product, swiglu_product = _product(store), _product(add), _product(swiglu)


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
        enter_levels(values, columns, matrix.steps, out[row])
    elif matrix.format == INT4:
        enter_groups(values, matrix.steps // matrix.group, matrix.group, out[row])
    else:
        halves = out[row].view(np.uint16)
        for i in range(columns):
            halves[i] = rounded(values[i])
        halves[columns : padded_(columns, 4)] = 0


@njit(fastmath=True)
def largest_of(values: Any, columns: Any) -> Any:
    """The largest magnitude."""
    largest = np.float32(0)
    for i in range(columns):
        largest = max(largest, abs(values[i]))
    return largest


@njit
def enter_levels(values: Any, columns: Any, steps: Any, out: Any) -> None:
    """In 127 levels to either side of 0, the outermost for the row's largest."""
    largest = largest_of(values, columns)
    inverse = LEVEL_MOST / largest if largest > 0 else np.float32(0)
    levels, total = out.view(np.int8), np.int32(0)
    for i in range(columns):
        level = nearest(values[i] * inverse)
        levels[4 * LEVELS + i] = level
        total += level
    levels[4 * LEVELS + columns : 4 * (LEVELS + steps)] = 0
    out[0] = np.uint32(np.int32(-128) * total)
    out[1] = np.uint32(bits(largest / LEVEL_MOST))


@njit(fastmath=True)
def enter_groups(values: Any, groups: Any, group: Any, out: Any) -> None:
    halves, columns, words = out.view(np.uint16), 8 * group, 4 * group + 1
    for g in range(groups):
        total = np.float32(0)
        for i in range(columns):
            half = rounded(values[g * columns + i])
            halves[2 * (g * words + 1) + i] = half
            total += expanded(half)
        out[g * words] = np.uint32(bits(total))


@njit(fastmath=True)
def softmax(scores: Any, count: Any) -> Any:
    """The first `count` scores become e^(score - largest); their sum."""
    largest = scores[0]
    for t in range(1, count):
        largest = max(largest, scores[t])
    total = np.float32(0)
    for t in range(count):
        share = exp(scores[t] - largest)
        total += share
        scores[t] = share
    return total
