"""The arithmetic of a decoder in compiled functions: products, norms, softmax and the gated unit.

Activations are float32; they are rounded to bfloat16 where they enter a product. Every function computes a row by
itself and always in the same order, so what comes out for a row does not depend on the others.

numba compiles them, as parts of forward.forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .pieces import finish, take, wait
from .vector_code import BLOCK, LANES, TILE, bits, from_bits, tiles

ONE, HALF = np.float32(1), np.float32(0.5)
LOG2_E, LN_2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
LEAST, MOST = np.float32(-126), np.float32(127)
SERIES = tuple(np.float32(1 / factorial) for factorial in (720, 120, 24, 6, 2))  # of exp, x⁶ to x²

AHEAD = 4096
"""Bytes by which a tile asks memory for its own matrix in advance."""


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
