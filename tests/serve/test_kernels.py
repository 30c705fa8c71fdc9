"""The compiled parts of a decoder, each against numpy in float64 or against paper."""

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
from lab.serve.models.vector_code import BLOCK, HAS_BF16, TILE, pack, padded


def bfloat16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bits as uint16, the values that they stand for), by torch."""
    tensor = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    return tensor.view(torch.int16).numpy().view(np.uint16), tensor.double().numpy()


@njit
def multiply(packed: Any, pairs: Any, row: Any, n: Any, sums: Any, out: Any) -> None:
    steps = pairs.shape[1]
    for block in range(out.shape[1] // BLOCK):
        kernels.tile(n, packed, block * steps * BLOCK, pairs, row, steps, sums)
        kernels.store(sums, n, out, row, block)


def product(matrix: np.ndarray, vectors: np.ndarray, at_once: int) -> np.ndarray:
    """bfloat16 [rows, columns], [n, columns] → float32 [n, rows], `at_once` vectors a tile."""
    out = np.empty((len(vectors), padded(len(matrix))), np.float32)
    for row in range(0, len(vectors), at_once):
        n = min(at_once, len(vectors) - row)
        sums = np.empty((n, BLOCK), np.float32)
        multiply(pack(matrix).reshape(-1), vectors.view(np.uint32), row, n, sums, out)
    return out[:, : len(matrix)]


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (31, 18), (32, 576), (33, 64), (100, 30)])
def test_a_product_of_any_size(rows: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    matrix, exact_matrix = bfloat16(random.standard_normal((rows, columns)))
    vectors, exact_vectors = bfloat16(random.standard_normal((11, columns)))
    expected = exact_vectors @ exact_matrix.T
    found = {at_once: product(matrix, vectors, at_once) for at_once in range(1, TILE + 1)}
    # Sums of `columns` products of about 1, each sum rounded to 24 bits.
    assert np.abs(found[TILE] - expected).max() < 1e-6 * columns
    assert all(np.array_equal(found[TILE], other) for other in found.values())


def test_a_matrix_of_odd_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="3 columns; allowed: an even number"):
        pack(np.zeros((4, 3), np.uint16))


@pytest.mark.skipif(not HAS_BF16, reason="this processor is such a one")
def test_the_same_on_a_processor_without_avx512() -> None:
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi2"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "any_size or exp"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout
    assert "passed" in ran.stdout


@njit(fastmath=True)
def exps(values: Any, out: Any) -> None:
    for i in range(len(values)):
        out[i] = kernels.exp(values[i])


def test_exp() -> None:
    values = np.concatenate([np.linspace(-87, 88, 100_001), [0, -1e-8, -100, -1e30]]).astype(np.float32)
    out = np.empty_like(values)
    exps(values, out)
    exact = np.exp(values.astype(np.float64))
    assert (np.abs(out - exact) < (2 + np.abs(values)) * 1e-7 * exact)[:-2].all()
    assert out[100_001] == 1
    assert (out[-2:] < 2e-38).all()  # the least that it gives, instead of 0


@njit
def round_all(values: Any, out: Any, back: Any) -> None:
    for i in range(len(values)):
        out[i] = kernels.rounded(values[i])
        back[i] = kernels.expanded(out[i])


def test_rounding_is_torchs() -> None:
    values = np.concatenate(
        [np.random.default_rng(1).standard_normal(1000) * 10.0 ** np.arange(-20, 20).repeat(25), [0, -0.0, 1e-40, 3e38]]
    ).astype(np.float32)
    # Exactly halfway between two: ties go to even, up and down.
    values = np.concatenate([values, np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)])
    bits, exact = bfloat16(values)
    out, back = np.empty(len(values), np.uint16), np.empty_like(values)
    round_all(values, out, back)
    assert np.array_equal(out, bits)
    assert np.array_equal(back, exact)


@njit
def normalize(x: Any, weight: Any, out: Any) -> None:
    kernels.norm(x, 0, weight, np.float32(1e-3), out, 0)


def test_norm() -> None:
    random = np.random.default_rng(2)
    x, weight = random.standard_normal((1, 96)).astype(np.float32), random.uniform(0.5, 1.5, 90).astype(np.float32)
    out = np.zeros((1, 45), np.uint32)
    normalize(x, weight, out)
    seen = x[0, :90].astype(np.float64)  # what is padded is not part of it
    expected = seen / np.sqrt((seen**2).mean() + 1e-3) * weight
    _, rounded = bfloat16(expected)
    found = torch.from_numpy(out.view(np.int16)[0]).view(torch.bfloat16).double().numpy()
    assert np.abs(found - rounded).max() <= 2**-8 * np.abs(rounded).max()
