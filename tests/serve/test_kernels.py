"""The compiled parts of a decoder, each against numpy in float64 or against paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from lab.serve.models import kernels, vector_code
from lab.serve.models.vector_code import nearest

pytestmark = pytest.mark.llm


def bfloat16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bits as uint16, the values that they stand for), by torch."""
    tensor = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
    return tensor.view(torch.int16).numpy().view(np.uint16), tensor.double().numpy()


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
        out[i] = vector_code.rounded(values[i])
        back[i] = vector_code.expanded(out[i])


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
    kernels.norm(x, 0, weight, np.float32(1e-3), out)


def test_norm() -> None:
    random = np.random.default_rng(2)
    x, weight = random.standard_normal((1, 96)).astype(np.float32), random.uniform(0.5, 1.5, 90).astype(np.float32)
    out = np.zeros(96, np.float32)
    normalize(x, weight, out)
    seen = x[0, :90].astype(np.float64)  # what is padded is not part of it
    expected = seen / np.sqrt((seen**2).mean() + 1e-3) * weight
    assert np.abs(out[:90] - expected).max() < 1e-6
    assert not out[90:].any()


@njit
def to_nearest(values: Any, out: Any) -> None:
    for i in range(len(values)):
        out[i] = nearest(values[i])


def test_nearest_has_ties_to_even() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 0.49999997, -0.50000006, 127.0, *range(20)], np.float32)
    out = np.empty(len(values), np.int32)
    to_nearest(values, out)
    assert np.array_equal(out, np.rint(values))
