"""Rows and weights in 8 bits, against numpy's whole numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lab.serve.models.int8 import Int8Linear, in_levels


def test_levels_are_the_nearest_of_127_to_either_side() -> None:
    rows = torch.tensor([[0.0, 2.54, -1.26, 0.029, 0.031], [0.0] * 5, [-1e-3, 4e-4, 0, 0, 0]])
    levels, scale = in_levels(rows)
    assert levels.tolist() == [[0, 127, -63, 1, 2], [0, 0, 0, 0, 0], [-127, 51, 0, 0, 0]]
    assert scale.flatten().tolist() == pytest.approx([0.02, 0, 1e-3 / 127], abs=1e-9)


@pytest.mark.parametrize(("rows", "width", "out"), [(1, 64, 1024), (7, 5, 3), (33, 384, 96)])
def test_a_product_is_that_of_the_levels(rows: int, width: int, out: int) -> None:
    random = np.random.default_rng(out)
    weight, bias, x = (random.standard_normal(size).astype(np.float32) for size in ((out, width), out, (rows, width)))
    layer = Int8Linear("w", torch.from_numpy(weight), torch.from_numpy(bias))

    def levels(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        largest = np.abs(values).max(axis=1, keepdims=True)
        return np.rint(values * (np.float32(127) / largest)).astype(np.int64), largest.astype(np.float64) / 127

    (x_levels, x_scale), (w_levels, w_scale) = levels(x), levels(weight)
    expected = (x_levels @ w_levels.T) * x_scale * w_scale.T + bias
    found = layer(torch.from_numpy(x)).numpy()
    assert found == pytest.approx(expected, abs=1e-5 * np.abs(expected).max())
    assert np.abs(found - (x @ weight.T + bias)).max() < 0.06 * np.sqrt(width)


def test_a_row_does_not_depend_on_its_company() -> None:
    random = np.random.default_rng(1)
    weight, x = (torch.from_numpy(random.standard_normal(size)).float() for size in ((64, 48), (2, 5, 48)))
    x[1, 3, 7] = 1000.0  # an outlier, which spoils its own row only
    layer = Int8Linear("w", weight, torch.zeros(64))
    together = layer(x)
    assert together.shape == (2, 5, 64)
    for i in range(2):
        for j in range(5):
            assert torch.equal(layer(x[i, j][None])[0], together[i, j])


def test_zeros_give_the_bias() -> None:
    layer = Int8Linear("w", torch.zeros(3, 8), torch.tensor([1.0, -2.0, 0.0]))
    assert layer(torch.zeros(2, 8)).tolist() == [[1.0, -2.0, 0.0]] * 2


def test_nan_is_refused_by_name() -> None:
    weight = torch.ones(3, 8)
    weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"encoder\.query holds NaN or infinity"):
        Int8Linear("encoder.query", weight, torch.zeros(3))
