"""Whole numbers of 8 bits in place of floats: rows of activations, rounded while serving, times rounded weights.

Every row has a scale of its own, activations as well as weights, so what comes out for one row does not depend on the
others, and sums of products are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

LEVELS = 127
"""To either side of 0."""

LEAST = 1e-30
"""Of a row's largest magnitude: below it all its levels are 0."""


def in_levels(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of x [..., n] rounded to LEVELS levels to either side of 0, the outermost for its largest magnitude:
    int8 levels, and their scale float32 [..., 1]."""
    x = x.float()
    largest = x.abs().amax(dim=-1, keepdim=True).clamp_min_(LEAST)
    return (x * (LEVELS / largest)).round_().to(torch.int8), largest / LEVELS


def rounded_by_group(x: Tensor, group: int) -> Tensor:
    """x [..., n] with every `group` columns of a row (the last may be fewer) rounded as in_levels would: float32."""
    width = x.shape[-1]
    groups = pad(x.float(), (0, -width % group)).view(*x.shape[:-1], -1, group)
    levels, scale = in_levels(groups)
    return (levels * scale).flatten(-2)[..., :width]


class Int8Linear:
    """A weight [out, in] and a bias [out] applied to rows, both rounded: x [..., in] → float32 [..., out].

    On a CPU by oneDNN's product of bytes. On a GPU the levels are multiplied as float32, which holds their sums as
    exactly as matters and is no faster than fp32.

    ValueError, with `name`, when the weight holds what is no finite number.
    """

    def __init__(self, name: str, weight: Tensor, bias: Tensor) -> None:
        if not weight.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
        levels, scale = in_levels(weight)
        self._levels, self._scale, self._bias = levels, scale.flatten(), bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        levels, scale = in_levels(x)
        if x.is_cuda:
            sums = linear(levels.float(), self._levels.float())
        else:
            sums = torch._int_mm(levels.flatten(0, -2), self._levels.t()).view(*x.shape[:-1], -1).float()
        return torch.addcmul(self._bias, sums, scale * self._scale)
