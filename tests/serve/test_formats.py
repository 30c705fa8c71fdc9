"""Packed matrices, each weight looked up where formats.py says it lies."""

from __future__ import annotations

import numpy as np
import pytest

from lab.serve.models.formats import (
    BF16,
    BLOCK,
    INT4,
    INT8,
    INT8_WEIGHT,
    Matrix,
    Packed,
    alternating,
    block_words,
    pack,
    packed_words,
    stacked,
)

SIZES = [(1, 8), (31, 24), (32, 576), (33, 64), (70, 40)]


def word(packed: Packed, row: int, place: int) -> int:
    """Of the words of `row`: number `place` in its block, scales included."""
    return int(packed.words[row // BLOCK].reshape(-1, BLOCK)[place, row % BLOCK])


def as_float(bits: int) -> float:
    return float(np.array(bits, np.uint32).view(np.float32))


def random_matrix(format: int, rows: int, columns: int, group: int = 8) -> Matrix:
    random = np.random.default_rng(rows * columns)
    if format == BF16:
        return Matrix(format, random.integers(0, 2**16, (rows, columns)).astype(np.uint16))
    if format == INT4:
        scale = random.uniform(0.01, 0.1, (rows, columns // group)).astype(np.float32)
        q, zero = (random.integers(0, 16, shape).astype(np.uint8) for shape in ((rows, columns), scale.shape))
        return Matrix(format, q, scale, zero)
    scale = random.uniform(0.01, 0.1, (rows, 1)).astype(np.float32)
    return Matrix(format, random.integers(-127, 128, (rows, columns)).astype(np.int8), scale)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_bf16(rows: int, columns: int) -> None:
    matrix = random_matrix(BF16, rows, columns)
    packed = pack(matrix)
    for row in range(rows):
        for column in range(columns):
            assert word(packed, row, column // 2) >> 16 * (column % 2) & 0xFFFF == matrix.values[row, column]


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_int8(rows: int, columns: int) -> None:
    matrix = random_matrix(INT8, rows, columns)
    packed = pack(matrix)
    assert matrix.scale is not None
    for row in range(rows):
        assert as_float(word(packed, row, 0)) == matrix.scale[row, 0]
        for column in range(columns):
            byte = word(packed, row, 1 + column // 4) >> 8 * (column % 4) & 0xFF
            assert byte - 128 == matrix.values[row, column]


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_int8_weight(rows: int, columns: int) -> None:
    """Of four rows' 16 bytes of a step: two columns of each, then the other two."""
    matrix = random_matrix(INT8_WEIGHT, rows, columns)
    packed = pack(matrix)
    assert matrix.scale is not None
    for row in range(rows):
        assert as_float(word(packed, row, 0)) == matrix.scale[row, 0]
        for column in range(columns):
            pair, of_pair = divmod(column % 4, 2)
            place = pair * 8 + row % 4 * 2 + of_pair
            byte = word(packed, row // 4 * 4 + place // 4, 1 + column // 4) >> 8 * (place % 4) & 0xFF
            assert (-1 if byte & 128 else 1) * (byte & 127) == matrix.values[row, column]


@pytest.mark.parametrize("group", [8, 24])
@pytest.mark.parametrize(("rows", "columns"), [(1, 24), (33, 72)])
def test_int4(rows: int, columns: int, group: int) -> None:
    matrix = random_matrix(INT4, rows, columns, group)
    packed = pack(matrix)
    assert matrix.scale is not None and matrix.zero is not None
    for row in range(rows):
        for column in range(columns):
            which, step = column // group, column // 8
            header = word(packed, row, which * (group // 8 + 1))
            assert abs(as_float(header) / matrix.scale[row, which] - 1) < 2e-6
            assert header & 0xF == matrix.zero[row, which]
            high, byte = divmod(column % 8, 4)
            q = word(packed, row, step + which + 1) >> 8 * byte + 4 * high & 0xF
            assert q == matrix.values[row, column]


@pytest.mark.parametrize("format", [BF16, INT8, INT8_WEIGHT, INT4])
def test_what_fills_up_is_zero_and_counted(format: int) -> None:
    """Its weights are 0: of rows by the scale, of columns by the value."""
    matrix = random_matrix(format, 33, 48)
    if format != INT4:  # whose groups are whole steps
        matrix = matrix.with_parts(matrix.values[:, :46], *matrix.parts()[1:])
    packed = pack(matrix)
    assert packed.words.shape == (2, block_words(format, packed.steps, packed.group))
    assert packed.words.size == packed_words(format, 33, matrix.values.shape[1], 8)
    if format == BF16:
        assert word(packed, 0, 23) == word(packed, 33, 0) == 0
    elif format == INT8:
        assert (word(packed, 0, 12) >> 16, word(packed, 33, 0)) == (0x8080, 0)
    elif format == INT8_WEIGHT:  # its columns 46 and 47 are the first row's third pair of bytes
        assert (word(packed, 2, 12) & 0xFFFF, word(packed, 33, 0)) == (0, 0)
    else:
        assert word(packed, 33, 0) == word(packed, 33, 2) == 0


def test_groups_that_are_no_whole_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="group_size 12 in 4 bits; allowed: a multiple of 8"):
        pack(random_matrix(INT4, 4, 24, 12))


def test_stacked_and_alternating_keep_scales_with_their_rows() -> None:
    a, b = (random_matrix(INT4, rows, 16) for rows in (20, 20))
    b = b.with_parts(b.values ^ 1, b.scale + 1, b.zero ^ 1)
    below = stacked([a, b])
    mixed = alternating([a, b])
    for part in ("values", "scale", "zero"):
        first, second = getattr(a, part), getattr(b, part)
        assert np.array_equal(getattr(below, part), np.concatenate([first, second]))
        found = getattr(mixed, part)
        assert len(found) == 64
        assert np.array_equal(found[:16], first[:16]) and np.array_equal(found[16:32], second[:16])
        assert np.array_equal(found[32:36], first[16:]) and not found[36:48].any()
