"""GPTQ (https://arxiv.org/abs/2210.17323): rounding that makes up for its own errors.

The columns of a weight matrix are rounded one after the other; the error of each is spread over the columns that are
still to come so that the layer's output on the calibration texts changes least. How much goes where follows from the
inverse Hessian H⁻¹, H = Σ x xᵀ over the inputs x; its Cholesky factor gives every step's share at once (section 3.3).

Columns with the largest inputs go first, while all others can still make up for them ("act-order"). The groups stay
those of neighbouring columns, with grids taken from the weights before anything moved ("static groups"), so the result
needs no index of columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .grid import Grid, Quantized, codes

DAMPING = 0.01
"""Of the mean of H's diagonal, added to it: directions that the texts hardly show must not be trusted."""
COLUMNS = 64
"""Columns between two updates of all that follow: the same sums in larger pieces."""


def gptq(weights: Tensor, hessian: Tensor, grid: Grid) -> Quantized:
    """`weights` [out, in] float32 on `grid`, `hessian` [in, in]: Σ x xᵀ, up to a factor."""
    width = weights.shape[1]
    group_size = width // grid.scale.shape[1]
    hessian = hessian.clone()
    silent = hessian.diagonal() == 0  # inputs that are always 0: their weights are free
    hessian.diagonal()[silent] = 1
    order = hessian.diagonal().argsort(descending=True, stable=True)
    share = _shares(hessian[order][:, order])
    # Transposed, so that a column lies in one piece.
    left, found = weights.T[order].contiguous(), torch.empty_like(weights.T, memory_format=torch.contiguous_format)
    scales = grid.scale.T.contiguous()
    zeros = None if grid.zero is None else grid.zero.T.contiguous()
    for start in range(0, width, COLUMNS):
        end = min(start + COLUMNS, width)
        errors = torch.empty_like(left[start:end])
        for i in range(start, end):
            column = int(order[i])
            group = column // group_size
            scale, zero = scales[group], None if zeros is None else zeros[group]
            found[column] = codes(left[i], scale, zero)
            values = (found[column] if zero is None else found[column] - zero) * scale
            errors[i - start] = (left[i] - values) / share[i, i]
            left[i:end].addr_(share[i, i:end], errors[i - start], alpha=-1)
        left[end:].addmm_(share[start:end, end:].T, errors, alpha=-1)
    return Quantized(found.T.contiguous(), grid)


def _shares(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of H⁻¹, with as much damping as it takes."""
    damping = DAMPING * hessian.diagonal().mean()
    for _ in range(6):
        damped = hessian.clone()
        damped.diagonal().add_(damping)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper: Tensor
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return upper
        damping = damping * 10
    raise ValueError("the inputs of a matrix are no basis for GPTQ: their Hessian has no Cholesky factor")
