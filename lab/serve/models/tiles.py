"""The tile: the whole arithmetic of a decoder, written in the compiler's own language. Attention and every projection
are made of it.

It multiplies 32 rows of a matrix (formats.py) by up to TILE vectors. Lanes are rows: one vector register holds sums of
16 rows, and each step adds some columns to all of them,

    sums[row] += matrix[row, 2k] × vector[2k] + matrix[row, 2k + 1] × vector[2k + 1]        k = 0, 1, 2 …

so a sum is never taken across a register, and its order is the order of the columns, however many vectors there are:
what comes out for one vector does not depend on the others, to the last bit.

BF16 adds two columns in one instruction of AVX512_BF16. INT8_WEIGHT looks its bytes up, which makes them bfloat16 in
registers, and goes on as BF16. INT8 and INT4 add four columns in one instruction of AVX512_VNNI: bytes without sign
times levels with one, whole numbers, so exactly within a group of columns; what the bytes have too much, 128 or the
zero point times the sum of the group's levels, is where its sum starts. Elsewhere each is plain code, which LLVM cuts
to what the processor has: right, but no faster than BF16.

A vector (a row of x) is words of 4 bytes, as its matrix wants them:

    BF16, INT8_WEIGHT   bfloat16 pairs
    INT8, INT4          for each group where its sums start, for a zero point of 1 in INT4; the bits of its levels'
                        scale; then the levels by fours
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from .formats import BF16, INT4, INT8, INT8_WEIGHT, LANES
from .vector_code import FEATURES, FLOAT, FLOATS, INT, INT64, INTS, call, intrinsic, loop, spread

HAS_BF16, HAS_VNNI, HAS_VBMI = (f"+avx512{name}" in FEATURES for name in ("bf16", "vnni", "vbmi"))
NEEDED = {
    BF16: (HAS_BF16, "AVX512_BF16"),
    INT8: (HAS_VNNI, "AVX512_VNNI"),
    INT8_WEIGHT: (HAS_BF16 and HAS_VBMI, "AVX512_BF16 and AVX512_VBMI"),
    INT4: (HAS_VNNI, "AVX512_VNNI"),
}
"""What makes a format fast, and whether it is there."""

SIZES = (1, 2, 3, 4, 8) if "+avx512f" in FEATURES else (1, 2, 3)
"""Vectors that a tile may have: each size is code of its own, which takes a while to compile."""
TILE, FEW = SIZES[-1], 4 if SIZES[-1] == 8 else 3
"""The most, as many as leave their 2 × TILE sums in registers; and up to how many there is each size."""

LEVELS = 2
"""Words of a group in a row of x before its levels."""


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    def __hash__(self) -> int:
        return hash(type(self))


_PAIRS = ir.VectorType(_BFloat16(), 2 * LANES)
_BYTE = ir.IntType(8)
_BYTES = ir.VectorType(_BYTE, 4 * LANES)


def _all(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


# --- sums ---------------------------------------------------------------------------------------------------------


def _add_pairs(builder: Any, sums: Any, matrix: Any, vector: Any) -> Any:
    """float32 `sums` and the products of two columns, the even one low in a lane."""
    if HAS_BF16:
        pairs = [builder.bitcast(lanes, _PAIRS) for lanes in (matrix, vector)]
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, sums, *pairs)
    # A bfloat16 is the upper half of a float32.
    odd = [builder.and_(lanes, _all(0xFFFF0000)) for lanes in (matrix, vector)]
    even = [builder.shl(lanes, _all(16)) for lanes in (matrix, vector)]
    for pair in (odd, even):
        factors = [builder.bitcast(lanes, FLOATS) for lanes in pair]
        sums = call(builder, f"llvm.fma.v{LANES}f32", FLOATS, *factors, sums)
    return sums


def _add_fours(builder: Any, sums: Any, matrix: Any, vector: Any) -> Any:
    """int32 `sums` and the products of four columns: bytes without sign times bytes with one."""
    if HAS_VNNI:
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, sums, matrix, vector)
    for low in range(0, 32, 8):
        weight = builder.and_(builder.lshr(matrix, _all(low)), _all(0xFF))
        level = builder.ashr(builder.shl(vector, _all(24 - low)), _all(24))
        sums = builder.add(sums, builder.mul(weight, level))
    return sums


# --- what a step's bytes become -----------------------------------------------------------------------------------


def _as_they_are(builder: Any, lanes: Any) -> list[Any]:
    return [lanes]


def _bf16_bytes() -> tuple[list[int], list[int]]:
    """The lower and the upper bytes of the bfloat16 0 to 127."""
    bits = np.arange(128, dtype=np.float32).view(np.uint32) >> 16
    return (bits & 0xFF).tolist(), (bits >> 8).tolist()


def _pairs_of_bytes(builder: Any, lanes: Any) -> list[Any]:
    """Bytes of sign and magnitude, as formats.py places them → two bfloat16 pairs."""
    signed = builder.bitcast(lanes, _BYTES)
    sign = ir.Constant(_BYTES, [0x80] * 4 * LANES)
    if HAS_VBMI:

        def look_up(table: list[int]) -> Any:
            halves = [ir.Constant(_BYTES, half) for half in (table[:64], table[64:])]
            name = "llvm.x86.avx512.vpermi2var.qi.512"
            return call(builder, name, _BYTES, halves[0], signed, halves[1])

        low, high = (look_up(table) for table in _bf16_bytes())
    else:
        wide, narrow = ir.VectorType(INT, 4 * LANES), ir.VectorType(ir.IntType(16), 4 * LANES)
        magnitude = builder.and_(signed, ir.Constant(_BYTES, [0x7F] * 4 * LANES))
        value = builder.uitofp(builder.zext(magnitude, wide), ir.VectorType(FLOAT, 4 * LANES))
        bits = builder.lshr(builder.bitcast(value, wide), ir.Constant(wide, [16] * 4 * LANES))
        low = builder.trunc(bits, _BYTES)
        eight = ir.Constant(narrow, [8] * 4 * LANES)
        high = builder.trunc(builder.lshr(builder.trunc(bits, narrow), eight), _BYTES)
    high = builder.or_(high, builder.and_(signed, sign))
    pairs = []
    for first in (0, 8):  # of 16 bytes, which are four rows
        bytes_ = [16 * four + first + i for four in range(4) for i in range(8)]
        order = [byte + half for byte in bytes_ for half in (0, 4 * LANES)]
        mixed = builder.shuffle_vector(low, high, ir.Constant(_BYTES_ORDER, order))
        pairs.append(builder.bitcast(mixed, INTS))
    return pairs


_BYTES_ORDER = ir.VectorType(INT, 4 * LANES)


def _bytes_of_nibbles(builder: Any, lanes: Any) -> list[Any]:
    """Nibbles, as formats.py places them → the first four columns, the last four."""
    return [builder.and_(each, _all(0x0F0F0F0F)) for each in (lanes, builder.lshr(lanes, _all(4)))]


_UNPACK = {BF16: _as_they_are, INT8: _as_they_are, INT8_WEIGHT: _pairs_of_bytes, INT4: _bytes_of_nibbles}
WORDS = {BF16: 1, INT8: 1, INT8_WEIGHT: 2, INT4: 2}
"""Of a row of x that a step takes."""


# --- the tile -----------------------------------------------------------------------------------------------------


class _Product:
    """The code of one block of a matrix times some rows of x. A register holds the sums of half a block for a row."""

    def __init__(self, builder: Any, format: int, block: Any, rows: list[Any], ahead: Any, stride: Any) -> None:
        self._builder, self._format, self._block, self._rows = builder, format, block, rows
        self._ahead, self._stride = ahead, stride

    def sums(self, steps: Any, group: Any) -> list[Any]:
        """float32: two registers for each row of x."""
        builder, registers = self._builder, 2 * len(self._rows)
        nothing = [ir.Constant(FLOATS, [0.0] * LANES)] * registers
        if self._format not in (INT8, INT4):
            return self._steps(INT64(0), steps, INT64(0), INT64(0), nothing)
        lines = INT64(2) if self._format == INT4 else INT64(0)  # of a group's scales
        words = builder.add(builder.mul(group, INT64(WORDS[self._format])), INT64(LEVELS))
        stride = builder.add(builder.mul(group, INT64(2)), lines)

        def add_group(number: Any, sums: list[Any]) -> list[Any]:
            first = builder.mul(number, group)
            left = builder.sub(steps, first)
            size = builder.select(builder.icmp_signed("<", left, group), left, group)  # the last one's may be less
            return self._add_group(first, size, builder.mul(number, stride), builder.mul(number, words), sums)

        groups = builder.sdiv(builder.add(steps, builder.sub(group, INT64(1))), group)
        return loop(builder, groups, nothing, add_group)

    def _add_group(self, first: Any, steps: Any, line: Any, word: Any, sums: list[Any]) -> list[Any]:
        """`sums` and those of a group of `steps` steps, which begins at `line` of the block and `word` of x; before it
        the block has had `first` steps."""
        builder, starts, new, scales = self._builder, [], [], []
        if self._format == INT4:
            scales = [self._line(line, half) for half in range(2)]
            zeros = [builder.and_(scale, _all(0xF)) for scale in scales]
            line = builder.add(line, INT64(2))
        for row in self._rows:
            start = self._word(row, word)
            starts += [builder.mul(zero, start) for zero in zeros] if scales else [start] * 2
        levels = self._steps(first, steps, line, builder.add(word, INT64(LEVELS)), starts)
        for i, value in enumerate(levels):
            own = builder.bitcast(self._word(self._rows[i // 2], builder.add(word, INT64(1))), FLOATS)
            if scales:
                own = builder.fmul(own, builder.bitcast(scales[i % 2], FLOATS))
            value = builder.sitofp(value, FLOATS)
            new.append(call(builder, f"llvm.fma.v{LANES}f32", FLOATS, value, own, sums[i]))
        return new

    def _steps(self, first: Any, steps: Any, line: Any, word: Any, sums: list[Any]) -> list[Any]:
        """`steps` steps, of which the block has had `first`: lines from `line` on, words of x from `word` on."""
        builder, words = self._builder, INT64(WORDS[self._format])

        def step(k: Any, sums: list[Any]) -> list[Any]:
            if self._ahead is not None:
                self._ask_for(builder.add(first, k))
            here, there = builder.add(line, builder.mul(k, INT64(2))), builder.add(word, builder.mul(k, words))
            return self._step(here, there, sums)

        return loop(builder, steps, sums, step)

    def _step(self, line: Any, word: Any, sums: list[Any]) -> list[Any]:
        """Pairs of one step are summed up before they join `sums`, so that steps need not wait for each other."""
        builder, words, new = self._builder, WORDS[self._format], []
        whole = self._format in (INT8, INT4)
        halves = [_UNPACK[self._format](builder, self._line(line, half)) for half in range(2)]
        for i, row in enumerate(self._rows):
            vectors = [self._word(row, builder.add(word, INT64(k))) for k in range(words)]
            for half in range(2):
                old, own = sums[2 * i + half], ir.Constant(FLOATS, [0.0] * LANES)
                if whole or words == 1:
                    for lanes, vector in zip(halves[half], vectors, strict=True):
                        old = (_add_fours if whole else _add_pairs)(builder, old, lanes, vector)
                    new.append(old)
                    continue
                for lanes, vector in zip(halves[half], vectors, strict=True):
                    own = _add_pairs(builder, own, lanes, vector)
                new.append(builder.fadd(old, own))
        return new

    def _line(self, line: Any, half: int) -> Any:
        place = self._builder.gep(self._block, [self._builder.add(line, INT64(half))])
        return self._builder.load(place, align=4)

    def _word(self, row: Any, word: Any) -> Any:
        return spread(self._builder, self._builder.load(self._builder.gep(row, [word])))

    def _ask_for(self, step: Any) -> None:
        """Memory for what will be needed next."""
        builder = self._builder
        later = builder.bitcast(self._block, _BYTE.as_pointer())
        later = builder.gep(later, [builder.add(self._ahead, builder.mul(step, self._stride))])
        for line in range(3 if self._format == INT4 else 2):
            place = builder.gep(later, [INT64(4 * LANES * line)])
            read, second_level, data = INT(0), INT(2), INT(1)
            call(builder, "llvm.prefetch.p0", ir.VoidType(), place, read, second_level, data)


def _tile(format: int) -> Any:
    @intrinsic
    def tile(
        typing: Any,
        n: Any,
        matrix: Any,
        at: Any,
        x: Any,
        row: Any,
        steps: Any,
        group: Any,
        y: Any,
        ahead: Any,
        stride: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            matrix, x, y = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (1, 3, 7))
            n, at, row, steps, group, ahead, stride = (arguments[i] for i in (0, 2, 4, 5, 6, 8, 9))
            block = builder.bitcast(builder.gep(matrix.data, [at]), INTS.as_pointer())
            width, out = builder.extract_value(x.shape, 1), builder.bitcast(y.data, FLOATS.as_pointer())
            rows = [builder.gep(x.data, [builder.mul(builder.add(row, INT64(i)), width)]) for i in range(TILE)]
            after = builder.append_basic_block("tile.end")
            choice = builder.switch(n, after)
            for vectors in SIZES:
                choice.add_case(INT64(vectors), builder.append_basic_block(f"tile.{vectors}"))
                builder.position_at_end(choice.cases[-1][1])
                product = _Product(builder, format, block, rows[:vectors], ahead if vectors > 1 else None, stride)
                for i, value in enumerate(product.sums(steps, group)):
                    builder.store(value, builder.gep(out, [INT64(i)]), align=4)
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        whole = types.int64
        return types.void(whole, matrix, whole, x, whole, whole, whole, y, whole, whole), generate

    return tile


tile_bf16, tile_int8, tile_int8_weight, tile_int4 = (_tile(format) for format in (BF16, INT8, INT8_WEIGHT, INT4))
"""tile(n, matrix uint32 [:], at, x uint32 [:, :], row, steps, group, y float32 [n or more, BLOCK], ahead, stride): the
block whose first step (INT4: first group) begins at word `at` of `matrix`, times rows `row` to `row + n` of x, into y;
n is one of SIZES, `steps` one or more, `group` steps a group in INT4. Scales are applied in INT4 only.

Meanwhile memory is asked for what will be needed next: at each step for the bytes of a step, `ahead` bytes behind the
beginning of the block plus `stride` a step. Not with one vector: that one only reads, and the processor, which sees
that, asks better by itself."""
