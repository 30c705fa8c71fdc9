"""Adapters in the compiled decoder: rows of one batch, each changed by its own adapter, beside the base's products.

    lower   where a row enters a product: scale × A x, a few numbers for each projection of the product
    lift    where a tile's sums are ready: B times those numbers is added to them

A row names its adapter by the address of that one's table (0: none), so the decoder need not know which adapters there
are, and a batch may mix any. A and B are kept in bfloat16, B by the product's blocks, in memory of the adapter's own,
which goes when the adapter does. Sums are float32 and of one row each: what comes out for a row does not depend on the
others.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.np.numpy_support import carray

from .adapter_folder import PARTS, Adapter
from .formats import BLOCK, LANES
from .llama_config import LlamaConfig
from .vector_code import expanded, from_bits, intrinsic

MOST = max(map(len, PARTS))
A, B, RANK, SCALE, COLUMNS, ROWS, LOW, FIRST, LANE, WIDTH = range(10)
FIELDS = 10
"""Of a projection in a table: where A and B are; rank; the bits of the scale; columns of A and rows of B; where its
numbers stand among those of its part. Then how a block of the part's product holds its rows: block k has, from lane
LANE on, WIDTH of the rows from k × WIDTH - FIRST on."""


class PackedAdapter:
    """An adapter as the compiled decoder reads it. `bytes`: of A and B and the table. `low`: numbers that a row has at
    most between the two."""

    def __init__(self, adapter: Adapter, config: LlamaConfig) -> None:
        table = np.zeros((config.layers, len(PARTS), MOST, FIELDS), np.int64)
        words = table.nbytes + 2 * adapter.elements
        self._memory = mmap.mmap(-1, words)  # which goes back to the system with the adapter, unlike numpy's
        self.bytes, self.low = words, 1
        whole = np.frombuffer(self._memory, np.uint8)
        self._table = whole[: table.nbytes].view(np.int64).reshape(table.shape)
        halves = whole[table.nbytes :].view(np.uint16)
        base, end = int(halves.__array_interface__["data"][0]), 0
        for (layer, name), change in sorted(adapter.changes.items()):
            part = next(number for number, names in enumerate(PARTS) if name in names)
            entry = self._table[layer, part, PARTS[part].index(name)]
            entry[RANK], entry[COLUMNS], entry[ROWS] = change.rank, change.a.shape[1], change.b.shape[0]
            entry[SCALE] = np.float32(change.scale).view(np.int32)
        for layer in range(config.layers):
            for part, names in enumerate(PARTS):
                self._place(config, self._table[layer, part], names)
        for (layer, name), change in sorted(adapter.changes.items()):
            part = next(number for number, names in enumerate(PARTS) if name in names)
            entry = self._table[layer, part, PARTS[part].index(name)]
            for field, matrix in ((A, change.a), (B, _by_blocks(change.b, int(entry[FIRST]), int(entry[WIDTH])))):
                halves[end : end + matrix.size] = _bf16(matrix)
                entry[field] = base + 2 * end
                end += matrix.size

    @property
    def address(self) -> int:
        return int(self._table.__array_interface__["data"][0])

    def _place(self, config: LlamaConfig, entries: np.ndarray, names: Sequence[str]) -> None:
        """Of a part's projections, which rows of the packed product each has, see packed_weights._parts."""
        ranks = entries[: len(names), RANK]
        entries[: len(names), LOW] = np.cumsum(ranks) - ranks
        self.low = max(self.low, int(ranks.sum()))
        entries[:, WIDTH] = BLOCK
        if names == PARTS[0]:
            heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
            entries[:, FIRST] = 0, heads, heads + kv_heads
        elif len(names) == 2:  # alternating by LANES
            entries[:, WIDTH], entries[1, LANE] = LANES, LANES


def _by_blocks(b: np.ndarray, first: int, width: int) -> np.ndarray:
    """B in the order of the product's blocks, those rows of it that a block has by their columns: what `lift` reads for
    a block lies together."""
    edges = [*range(-first % width, len(b), width)]
    edges = [0, *(edge for edge in edges if edge > 0), len(b)]
    return np.concatenate([b[begin:end].T.reshape(-1) for begin, end in pairwise(edges)])


def _bf16(matrix: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(matrix, np.float32).view(np.uint32).reshape(-1)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)


class Adapted(NamedTuple):
    """A product's part in the adapters of a batch."""

    on: Any  # whether any row has one, and this product may be changed
    addresses: Any  # int64 [rows]
    layer: Any
    part: Any  # of PARTS
    low: Any  # float32 [rows, …]: what `lower` made for `lift`


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An int64 address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@njit(inline="always")
def table_at(adapted: Any, row: Any) -> Any:
    """The entries of a part of a row's adapter."""
    first = (adapted.layer * len(PARTS) + adapted.part) * MOST * FIELDS
    return carray(pointer(adapted.addresses[row] + 8 * first), (MOST, FIELDS), np.int64)


@njit(fastmath=True)
def lower(adapted: Any, row: Any, values: Any, to: Any) -> None:
    """adapted.low[to] ← scale × A values, for each projection of the part, by row `row`'s adapter."""
    if adapted.addresses[row] == 0:
        return
    table = table_at(adapted, row)
    for k in range(MOST):
        rank, columns, scale = table[k, RANK], table[k, COLUMNS], from_bits(np.int32(table[k, SCALE]))
        if rank > 0:
            halves = carray(pointer(table[k, A]), (rank, columns), np.uint16)
            for j in range(rank):
                line, total = halves[j], np.float32(0)
                for i in range(columns):
                    total += values[i] * expanded(line[i])
                adapted.low[to, table[k, LOW] + j] = total * scale


@njit(fastmath=True)
def lift(adapted: Any, row: Any, n: Any, block: Any, sums: Any) -> None:
    """sums[i] += B × adapted.low of row `row + i`, of the rows of B that block `block` of the product has."""
    for i in range(n):
        if adapted.addresses[row + i] != 0:
            table, low = table_at(adapted, row + i), adapted.low[row + i]
            for k in range(MOST):
                rank, rows, width = table[k, RANK], table[k, ROWS], table[k, WIDTH]
                begin = block * width - table[k, FIRST]
                first, last = max(begin, 0), min(begin + width, rows)
                if rank > 0 and first < last:
                    halves = carray(pointer(table[k, B] + 2 * rank * first), (rank, last - first), np.uint16)
                    lane = table[k, LANE] + first - begin
                    line = sums[i, lane : lane + last - first]
                    for j in range(rank):
                        share, column = low[table[k, LOW] + j], halves[j]
                        for o in range(last - first):
                            line[o] += share * expanded(column[o])
