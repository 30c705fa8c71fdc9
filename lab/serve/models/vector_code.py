"""The few machine-near operations that numba has no word for: a tile of a matrix product, atomics, bits of a float.

`tile` is the whole arithmetic of a decoder: attention and every projection are made of it. It multiplies 32 rows of a
matrix by up to TILE vectors, all in bfloat16 with sums in float32. Lanes are rows: one vector register holds sums of 16
rows, and each step adds a pair of columns to all of them,

    sums[row] += matrix[row, 2k] × vector[2k] + matrix[row, 2k + 1] × vector[2k + 1]        k = 0, 1, 2 …

so a sum is never taken across a register, and its order is the order of the columns, however many vectors there are:
what comes out for one vector does not depend on the others, to the last bit. AVX512_BF16 does such a step in one
instruction. Elsewhere it is two multiply-adds; LLVM cuts the registers to what the processor has.

Matrices come packed in the order of reading, see `pack`. Imports nothing of lab and no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, extending, types
from numba.core import cgutils

# Its own type would have callers pass the first parameter, `typing`, too.
intrinsic: Callable[[Any], Any] = extending.intrinsic

LANES = 16  # float32 sums in a register
BLOCK = 2 * LANES
"""Rows of a tile: two registers, so that a vector's pair, once loaded, is used twice."""


def _features() -> str:
    given: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    return llvmlite.binding.get_host_cpu_features().flatten() if given is None else given


HAS_BF16 = "+avx512bf16" in _features()
TILE = 8 if "+avx512f" in _features() else 3
"""Vectors of a tile at most: as many as leave their 2 × TILE sums in registers."""


def padded(n: int, multiple: int = BLOCK) -> int:
    return -(-n // multiple) * multiple


def pack(matrix: np.ndarray) -> np.ndarray:
    """bfloat16 [rows, columns] as uint16 → uint32 [rows / BLOCK, columns / 2, BLOCK]: pairs of columns as `tile` reads
    them, one after the other. Zeros fill the last block. ValueError when the columns are odd."""
    rows, columns = matrix.shape
    if columns % 2:
        raise ValueError(f"a matrix of {columns} columns; allowed: an even number")
    whole = np.zeros((padded(rows), columns), np.uint16)
    whole[:rows] = matrix
    pairs = whole.view(np.uint32).reshape(-1, BLOCK, columns // 2)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1))


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    def __hash__(self) -> int:
        return hash(type(self))


_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_INT, LANES), ir.VectorType(_FLOAT, LANES)
_PAIRS = ir.VectorType(_BFloat16(), 2 * LANES)
_INT64 = ir.IntType(64)


def _call(builder: Any, name: str, result: ir.Type, *arguments: Any) -> Any:
    declare: Any = cgutils.get_or_insert_function
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(declare(builder.module, function, name), arguments)


def _add_pairs(builder: Any, sums: Any, matrix: Any, vector: Any) -> Any:
    """One step: `sums` and the products of two columns; bfloat16 pairs as uint32 lanes, the even column low."""
    if HAS_BF16:
        pairs = [builder.bitcast(lanes, _PAIRS) for lanes in (matrix, vector)]
        return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _FLOATS, sums, *pairs)
    high, by = ir.Constant(_INTS, [0xFFFF0000] * LANES), ir.Constant(_INTS, [16] * LANES)
    # A bfloat16 is the upper half of a float32.
    odd = [builder.and_(lanes, high) for lanes in (matrix, vector)]
    even = [builder.shl(lanes, by) for lanes in (matrix, vector)]
    for pair in (odd, even):
        factors = [builder.bitcast(lanes, _FLOATS) for lanes in pair]
        sums = _call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, *factors, sums)
    return sums


def _spread(builder: Any, value: Any) -> Any:
    """The value in all lanes."""
    lanes = builder.insert_element(ir.Constant(_INTS, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(lanes, lanes, ir.Constant(_INTS, [0] * LANES))


def _tile(vectors: int) -> Any:
    @intrinsic
    def tile(typing: Any, matrix: Any, at: Any, x: Any, row: Any, steps: Any, y: Any, ahead: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            matrix, x, y = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 5))
            at, row, steps, ahead, stride = (arguments[i] for i in (1, 3, 4, 6, 7))
            start = builder.bitcast(builder.gep(matrix.data, [at]), _INTS.as_pointer())
            width = builder.extract_value(x.shape, 1)
            rows = [builder.gep(x.data, [builder.mul(builder.add(row, _INT64(i)), width)]) for i in range(vectors)]
            before, loop = builder.block, builder.append_basic_block("steps")
            after = builder.append_basic_block("steps.end")
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(_INT64)
            sums = [builder.phi(_FLOATS) for _ in range(2 * vectors)]
            step.add_incoming(_INT64(0), before)
            for each in sums:
                each.add_incoming(ir.Constant(_FLOATS, [0.0] * LANES), before)
            place = builder.mul(step, _INT64(2))
            later = builder.bitcast(start, ir.IntType(8).as_pointer())
            later = builder.gep(later, [builder.add(ahead, builder.mul(step, stride))])
            halves = []
            for half in range(2):
                line = builder.gep(later, [_INT64(4 * LANES * half)])
                read, keep, data = _INT(0), _INT(2), _INT(1)  # into the second-level cache
                _call(builder, "llvm.prefetch.p0", ir.VoidType(), line, read, keep, data)
                pointer = builder.gep(start, [builder.add(place, _INT64(half))])
                halves.append(builder.load(pointer, align=4))
            new = []
            for i, vector in enumerate(rows):
                pair = _spread(builder, builder.load(builder.gep(vector, [step])))
                new += [_add_pairs(builder, sums[2 * i + half], halves[half], pair) for half in range(2)]
            following = builder.add(step, _INT64(1))
            step.add_incoming(following, loop)
            for old, value in zip(sums, new, strict=True):
                old.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
            builder.position_at_end(after)
            place = builder.bitcast(y.data, _FLOATS.as_pointer())
            for i, value in enumerate(new):
                builder.store(value, builder.gep(place, [_INT64(i)]), align=4)
            return context.get_dummy_value()

        return types.void(matrix, types.int64, x, types.int64, types.int64, y, types.int64, types.int64), generate

    return tile


tiles = [_tile(vectors) for vectors in range(1, TILE + 1)]
"""tiles[v - 1](matrix uint32 [:], at, x uint32 [:, :], row, steps, y float32 [v or more, BLOCK], ahead, stride): the
block of `matrix` that begins at element `at`, times rows `row` to `row + v` of x (`steps` pairs of each, one or more),
into y. Meanwhile memory is asked for what will be needed next: at each step for the bytes of a step, `ahead` bytes
behind the beginning of the block plus `stride` a step."""


@intrinsic
def add_atomically(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] += value, for int64 [:]; what was there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def read_atomically(typing: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(data, [arguments[1]]), "seq_cst", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def breathe(typing: Any) -> Any:
    """A short pause inside a waiting loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if "x86" in llvmlite.binding.get_process_triple():
            _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(typing: Any) -> Any:
    """Lets another thread have this processor, if one waits for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, "sched_yield", _INT)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def bits(typing: Any, value: Any) -> Any:
    """A float32's bits as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _INT)

    return types.int32(types.float32), generate


@intrinsic
def from_bits(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.int32), generate
