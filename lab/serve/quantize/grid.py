"""Matrices of whole numbers: weight = (q − zero) × scale, with a scale a row (8 bit) or a group of a row (4 bit).

8 bit is symmetric, −127 to 127, and has no zero. 4 bit is asymmetric, 0 to 15: the grid spans a group's smallest and
largest weight, and always holds 0 itself, so a row of zeros stays one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_8, MOST_4 = 127, 15


@dataclass(frozen=True)
class Grid:
    """Where the values of a matrix [out, in] may lie: `scale` float32 [out, groups], `zero` the same or None."""

    scale: Tensor
    zero: Tensor | None

    @property
    def bits(self) -> int:
        return 8 if self.zero is None else 4

    def round(self, weights: Tensor) -> Quantized:
        """Each weight of [out, in] to the nearest value of its group."""
        grouped = weights.reshape(*self.scale.shape, -1)
        zero = None if self.zero is None else self.zero[..., None]
        return Quantized(codes(grouped, self.scale[..., None], zero).flatten(1), self)


@dataclass(frozen=True)
class Quantized:
    """`codes` float32 [out, in], whole numbers on `grid`."""

    codes: Tensor
    grid: Grid

    @property
    def values(self) -> Tensor:
        """float32 [out, in]"""
        grouped = self.codes.reshape(*self.grid.scale.shape, -1)
        if self.grid.zero is not None:
            grouped = grouped - self.grid.zero[..., None]
        values: Tensor = grouped * self.grid.scale[..., None]
        return values.flatten(1)

    def scaled_rows(self, factor: Tensor) -> Quantized:
        """The matrix whose row r is factor[r] times this one's: only scales change, so nothing is rounded again."""
        return Quantized(self.codes, Grid(self.grid.scale * factor[:, None], self.grid.zero))

    def rows(self, sizes: list[int]) -> list[Quantized]:
        """Cut into matrices of so many rows each."""
        zeros = [None] * len(sizes) if self.grid.zero is None else torch.split(self.grid.zero, sizes)
        parts = zip(torch.split(self.codes, sizes), torch.split(self.grid.scale, sizes), zeros, strict=True)
        return [Quantized(codes, Grid(scale, zero)) for codes, scale, zero in parts]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """As they are stored: NAME.qweight, NAME.scale, NAME.zero; two 4-bit values a byte, the even column low."""
        stored = {f"{name}.scale": self.grid.scale.contiguous()}
        if self.grid.zero is None:
            return {f"{name}.qweight": self.codes.to(torch.int8).contiguous(), **stored}
        codes = self.codes.to(torch.uint8)
        stored[f"{name}.qweight"] = codes[:, 0::2] | codes[:, 1::2] << 4
        stored[f"{name}.zero"] = self.grid.zero.to(torch.uint8).contiguous()
        return stored

    @classmethod
    def of(cls, tensors: dict[str, Tensor], name: str) -> Quantized:
        """What `tensors` stored."""
        packed, zero = tensors[f"{name}.qweight"], tensors.get(f"{name}.zero")
        if zero is None:
            return cls(packed.float(), Grid(tensors[f"{name}.scale"], None))
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
        return cls(codes.float(), Grid(tensors[f"{name}.scale"], zero.float()))


def grid_of(weights: Tensor, group_size: int | None, shrink: Tensor | float = 1.0) -> Grid:
    """The grid that spans `weights` [out, in]: 4 bit in groups of `group_size` columns, which must divide them; 8 bit
    for None. `shrink` (a number, or one a group [out, groups]) leaves the outermost values outside."""
    if group_size is None:
        return Grid((weights.abs().amax(1, keepdim=True) * shrink / MOST_8).clamp_min(_TINY), None)
    grouped = weights.reshape(len(weights), -1, group_size)
    low, high = grouped.amin(-1).clamp_max(0) * shrink, grouped.amax(-1).clamp_min(0) * shrink
    scale = ((high - low) / MOST_4).clamp_min(_TINY)
    return Grid(scale, (-low / scale).round().clamp(0, MOST_4))


def nearest(weights: Tensor, group_size: int | None) -> Quantized:
    """Round to nearest ("rtn")."""
    return grid_of(weights, group_size).round(weights)


_TINY = torch.finfo(torch.float32).tiny


def codes(values: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """The whole numbers nearest to `values`, within the grid's range."""
    steps = (values / scale).round_()
    return steps.clamp_(-MOST_8, MOST_8) if zero is None else steps.add_(zero).clamp_(0, MOST_4)
