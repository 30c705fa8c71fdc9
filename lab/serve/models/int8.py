"""Whole numbers of 8 bits in place of floats: rows of activations, rounded while serving, times rounded weights.

Every row has a scale of its own, activations as well as weights, so what comes out for one row does not depend on the
others, and sums of products are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 127
"""To either side of 0."""


def in_levels(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of x [..., n] rounded to LEVELS levels to either side of 0, the outermost for its largest magnitude:
    int8 levels, and their scale float32 [..., 1]. A row of zeros has the scale 0."""
    x = x.float()
    largest = x.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(largest > 0, LEVELS / largest, 0)
    return (x * inverse).round_().to(torch.int8), largest / LEVELS


class Int8Linear:
    """A weight [out, in] and a bias applied to rows, both rounded: x [..., in] → float32 [..., out].

    ValueError, with `name`, when the weight holds what is no finite number."""

    def __init__(self, name: str, weight: Tensor, bias: Tensor) -> None:
        if not weight.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
        levels, scale = in_levels(weight)
        self._bias, self._scale = bias.float(), scale.flatten()
        self._levels = levels.t()

    def __call__(self, x: Tensor) -> Tensor:
        levels, scale = in_levels(x)
        sums = torch._int_mm(levels.view(-1, levels.shape[-1]), self._levels)
        return sums.view(*x.shape[:-1], -1) * (scale * self._scale) + self._bias
