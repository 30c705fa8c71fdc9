"""Attention in compiled functions: a key and a value into the cache, and what the queries of a token find there.

A KV head's keys and values are packed matrices (forward.Cache), so looking back is two products of a decoder's usual
kind: queries times keys give scores, their softmax times values the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .formats import BF16, BLOCK
from .kernels import (
    AHEAD,
    LEVEL_MOST,
    ONE,
    Placed,
    at_once,
    byte_at,
    enter,
    largest_of,
    padded_,
    scale,
    softmax,
    tile,
    words_of,
)
from .pieces import finish, take, wait
from .tiles import tile_int8_weight
from .vector_code import nearest, rounded


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
    first, second = qkv[row, start : start + half], qkv[row, start + half : start + 2 * half]
    cos, sin = weights.cos[position], weights.sin[position]
    left, right = out[:half], out[half : 2 * half]
    for j in range(half):  # two loops: LLVM makes vectors of one only if few arrays may overlap in it
        left[j] = first[j] * cos[j] - second[j] * sin[j]
    for j in range(half):
        right[j] = second[j] * cos[j] + first[j] * sin[j]


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
        place = block + position % BLOCK
        for pair in range(dim // 2):
            low, high = np.uint32(rounded(own[2 * pair])), np.uint32(rounded(own[2 * pair + 1]))
            cache.words[place + pair * BLOCK] = low | high << np.uint32(16)
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
        for first in range(0, dim, BLOCK):
            place = 2 * (values + first * (cache.tokens // 2) + position // 2 * BLOCK) + position % 2
            for d in range(first, min(first + BLOCK, dim)):
                halves[place + 2 * (d - first)] = rounded(own[d])
    else:
        stored = cache.words.view(np.uint8)
        inverse = level_scale(own, dim, cache.words.view(np.float32), values + position)
        for d in range(dim):
            first = values + cache.tokens + d // BLOCK * (cache.tokens // 4) * BLOCK
            stored[4 * first + byte_at(d, position)] = signed_byte(own[d] * inverse)


@njit
def level_scale(values: Any, count: Any, scales: Any, at: Any) -> Any:
    """Puts down the scale that spreads the values over 127 levels to either side; by what to multiply them."""
    largest = largest_of(values[:count])
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
    q = 0
    while q < group:
        n = at_once(group - q)
        for block in range((count + BLOCK - 1) // BLOCK):
            at = keys + block * words
            tile(matrix, n, cache.words, at, queries, q, sums)
            scale(matrix, cache.words, at, sums, n)
            for i in range(n):
                line = scores[q + i, block * BLOCK : (block + 1) * BLOCK]
                for lane in range(len(line)):
                    line[lane] = sums[i, lane] * unit
        for i in range(q, q + n):
            totals[i] = ONE / softmax(scores[i], count)
            if cache.format != BF16:  # the values' scales
                weigh(scores[i], cache.words[values : values + count].view(np.float32))
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
                first = (head * group + q + i) * dim + block * BLOCK
                line = answer[row, first : first + min(BLOCK, dim - block * BLOCK)]
                for lane in range(len(line)):
                    line[lane] = rounded(sums[i, lane] * totals[q + i])
        q += n


@njit
def weigh(scores: Any, scales: Any) -> None:
    for t in range(len(scales)):
        scores[t] *= scales[t]


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
    pieces, threads, done = len(batch.tokens) * shape.kv_heads, len(space.sums), 0
    while True:
        piece = take(space.meeting, phase, pieces, threads, me)
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
        done += 1
    finish(space.meeting, phase, threads, me, done)
    wait(space.meeting, phase, pieces, threads)
