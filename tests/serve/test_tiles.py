"""Products in every format against numpy: those of whole numbers to the last bit, the others in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from lab.serve.models import kernels
from lab.serve.models.formats import BF16, BLOCK, GROUP, INT4, INT8, INT8_WEIGHT, NAMES, Matrix, pack, padded
from lab.serve.models.kernels import Placed
from lab.serve.models.tiles import HAS_BF16, SIZES, TILE
from tests.serve.rounded_weights import rounded_4, rounded_8

pytestmark = pytest.mark.llm

FORMATS = [BF16, INT8, INT8_WEIGHT, INT4]
GROUP_4 = 8
"""Columns of a group in INT4."""


def bfloat16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bits as uint16, the values that they stand for), by torch."""
    tensor = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    return tensor.view(torch.int16).numpy().view(np.uint16), tensor.double().numpy()


@njit
def multiply(matrix: Any, words: Any, values: Any, at_once: Any, x: Any, sums: Any, out: Any) -> None:
    for row in range(len(values)):
        kernels.enter(matrix, values[row], values.shape[1], x, row)
    for block in range(out.shape[1] // BLOCK):
        at = block * kernels.words_of(matrix)
        for row in range(0, len(values), at_once):
            n = min(at_once, len(values) - row)
            kernels.tile(matrix, n, words, at, x, row, sums)
            kernels.scale(matrix, words, at, sums, n)
            kernels.store(sums, n, out, row, block)


def product(matrix: Matrix, values: np.ndarray, at_once: int = TILE) -> np.ndarray:
    """float32 values [n, columns] → [n, rows], `at_once` vectors a tile."""
    packed, rows = pack(matrix), len(matrix.values)
    out = np.empty((len(values), padded(rows)), np.float32)
    x = np.full((len(values), values.shape[1] + 8), 0x7FC07FC0, np.uint32)  # NaN
    placed = Placed(0, packed.format, packed.steps, packed.group)
    sums = np.empty((TILE, BLOCK), np.float32)
    multiply(placed, packed.words.reshape(-1), np.ascontiguousarray(values), at_once, x, sums, out)
    return out[:, :rows]


def stored(format: int, weight: np.ndarray) -> tuple[Matrix, np.ndarray]:
    """float32 `weight` in the format, and the weights that it then stands for."""
    if format == BF16:
        bits, exact = bfloat16(weight)
        return Matrix(BF16, bits), exact
    if format == INT4:
        q, scale, zero = rounded_4(weight, GROUP_4)
        levels = q.astype(np.float64) - zero.repeat(GROUP_4, axis=1)
        return Matrix(INT4, q, scale, zero), levels * scale.astype(np.float64).repeat(GROUP_4, axis=1)
    levels, scale = rounded_8(weight)
    return Matrix(format, levels, scale), levels * scale.astype(np.float64)


def in_levels(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(whole numbers from -127 to 127 [n, columns], float32 [n, 1]): each row by its largest magnitude."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
    return np.rint(values * inverse).astype(np.int64), largest / np.float32(127)


def integer_product(matrix: Matrix, values: np.ndarray) -> np.ndarray:
    """What INT8 and INT4 must give, to the last bit: of each group an exact sum, times its scale, added in float32."""
    assert matrix.scale is not None
    four, whole = matrix.format == INT4, np.zeros((len(values), len(matrix.values)), np.float32)
    size, weights, scales = GROUP_4 if four else GROUP, matrix.values.astype(np.int64), matrix.scale
    if matrix.zero is not None:  # the kernel's have their lowest 4 bits taken by the zero point
        weights = weights - matrix.zero.astype(np.int64).repeat(GROUP_4, axis=1)
        scales = (scales.view(np.uint32) & np.uint32(0xFFFFFFF0) | matrix.zero).view(np.float32)
    for number, first in enumerate(range(0, values.shape[1], size)):
        part = slice(first, first + size)
        levels, own = in_levels(values[:, part])
        sums = (levels @ weights[:, part].T).astype(np.float32)
        own = own * scales[:, number] if four else own
        # np.longdouble holds a product of two float32 and what it is added to: rounded once, as by a fused instruction.
        whole = (sums.astype(np.longdouble) * own + whole).astype(np.float32)
    return whole if four else whole * scales.T


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: NAMES[format])
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (31, 24), (32, 576), (33, 64), (100, 40), (32, 72)])
def test_a_product_of_any_size(format: int, rows: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    matrix, weight = stored(format, random.standard_normal((rows, columns)).astype(np.float32))
    values = random.standard_normal((11, columns)).astype(np.float32)
    found = {at_once: product(matrix, values, at_once) for at_once in SIZES}
    assert all(np.array_equal(found[TILE], other) for other in found.values())
    if format in (INT8, INT4):
        assert np.array_equal(found[TILE], integer_product(matrix, values))
        worst = 0.02 * np.sqrt(columns) * np.abs(weight).max()  # errors are half a 127th of the largest at most
        assert np.abs(found[TILE] - values @ weight.T).max() < worst
    else:  # sums of `columns` products, each sum rounded to 24 bits
        worst = 1e-6 * columns * np.abs(weight).max()
        assert np.abs(found[TILE] - bfloat16(values)[1] @ weight.T).max() < worst


@pytest.mark.parametrize("format", [BF16, INT8, INT8_WEIGHT], ids=lambda format: NAMES[format])
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 46])
def test_columns_need_not_fill_a_step(format: int, columns: int) -> None:
    random = np.random.default_rng(columns)
    matrix, weight = stored(format, random.standard_normal((5, columns)).astype(np.float32))
    values = random.standard_normal((3, columns)).astype(np.float32)
    expected = integer_product(matrix, values) if format == INT8 else bfloat16(values)[1] @ weight.T
    assert np.abs(product(matrix, values) - expected).max() < 1e-4


def test_the_largest_numbers_do_not_overflow() -> None:
    """255 × 127 × 8,192 columns is 2^28; a sum of 32 bits holds 2^31."""
    matrix = Matrix(INT8, np.full((2, 8192), 127, np.int8), np.ones((2, 1), np.float32))
    values = np.full((2, 8192), 3.0, np.float32)
    values[1] = -3
    assert np.array_equal(product(matrix, values), integer_product(matrix, values))
    assert product(matrix, values)[0, 0] == pytest.approx(127 * 3 * 8192)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: NAMES[format])
def test_zeros_stay_zero(format: int) -> None:
    weight = np.zeros((3, 16), np.float32)
    weight[1] = 1
    matrix, _ = stored(format, weight)
    values = np.array([[0.0] * 16, [1.0] * 16], np.float32)
    found = product(matrix, values)
    assert found[1, 1] == pytest.approx(16, rel=3e-6)  # of scales: INT4 takes their last four bits
    assert np.count_nonzero(found) == 1


def test_an_outlier_costs_its_group_and_no_other() -> None:
    """One activation a thousand times the others: in 8 bits those of its group become 0 levels, in bfloat16 none."""
    weight = np.ones((1, 2 * GROUP), np.float32)
    values = np.ones((2, 2 * GROUP), np.float32)
    values[0, 0] = 1000
    for format, group in ((INT8, GROUP), (INT4, GROUP_4), (INT8_WEIGHT, 1)):
        found = product(stored(format, weight)[0], values)[:, 0]
        assert found == pytest.approx([1000 + 2 * GROUP - group, 2 * GROUP], rel=3e-6)


@pytest.mark.skipif(not HAS_BF16, reason="this processor is such a one")
def test_the_same_on_a_processor_without_avx512() -> None:
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi2"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "any_size or fill or exp",
    ]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout
    assert "passed" in ran.stdout
