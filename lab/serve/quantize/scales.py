"""AWQ and SmoothQuant: a factor for each input of a matrix, so that W x = (W · s) (x / s) is easier to round.

The division by s is folded into what makes x (a norm's weight, or the rows of the projection before), so serving costs
nothing. AWQ (https://arxiv.org/abs/2306.00978) widens the columns whose inputs are large on average, because their
rounding errors reach the output most; SmoothQuant (https://arxiv.org/abs/2211.10438) evens out inputs and weights, so
that one scale a token serves inputs with outliers; which share of the difficulty moves is tried out, stage by stage.

Where the papers run a layer anew to see the error of its output, here it follows from the Hessian H = Σ x xᵀ / n of the
same inputs: the mean of |ΔW x|² is tr(ΔW H ΔWᵀ).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .grid import Grid, grid_of, nearest

STEPS = 20
"""Exponents tried between 0 (rounding as it is) and 1."""
SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55)
"""Fractions of a group's span that its grid may cover."""
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ROWS = 1000
"""Tokens that tell one alpha from another."""
_LEAST = 1e-4

Tie = Callable[[Tensor], Tensor]
"""Makes values of inputs [in] equal where they must be: see Stage.tie."""


@dataclass(frozen=True)
class Inputs:
    """What a matrix sees: x over all tokens of the calibration texts."""

    hessian: Tensor  # [in, in] mean of x xᵀ
    mean: Tensor  # [in] mean of |x|
    most: Tensor  # [in] largest |x|

    @classmethod
    def of(cls, x: Tensor) -> Inputs:
        """x [..., in]"""
        rows = x.flatten(0, -2)
        size = rows.abs()
        return cls(rows.T @ rows / len(rows), size.mean(0), size.amax(0))

    def divided(self, factors: Tensor) -> Inputs:
        """The same of x / factors."""
        return Inputs(self.hessian / torch.outer(factors, factors), self.mean / factors, self.most / factors)

    def error(self, difference: Tensor) -> Tensor:
        """Mean of |difference x|² for `difference` [out, in]."""
        return ((difference @ self.hessian) * difference).sum()


def awq(weights: Tensor, seen: Inputs, group_size: int, tie: Tie) -> Tensor:
    """The factors [in] of all matrices that see these inputs, `weights` [out, in] one above the other."""
    best, least = torch.ones_like(seen.mean), None
    for step in range(STEPS):
        factors = tie(seen.mean).clamp_min(_LEAST) ** (step / STEPS)
        factors = (factors / (factors.max() * factors.min()).sqrt()).clamp_min(_LEAST)
        scaled = weights * factors
        rounded = grid_of(scaled, group_size).round(scaled).values / factors
        error = seen.error(rounded - weights)
        if least is None or error < least:
            best, least = factors, error
    return best


def fitted(weights: Tensor, seen: Inputs, group_size: int) -> Grid:
    """The grid whose groups each cover the fraction of their span that costs least at the output, taken group by group
    (AWQ's "weight clipping")."""
    groups = weights.shape[1] // group_size
    blocks = seen.hessian.reshape(groups, group_size, groups, group_size)
    blocks = torch.stack([blocks[g, :, g] for g in range(groups)])  # [groups, group_size, group_size]
    best = torch.ones(weights.shape[0], groups)
    least = torch.full_like(best, torch.inf)
    for shrink in SHRINKS:
        difference = grid_of(weights, group_size, shrink).round(weights).values - weights
        by_group = difference.reshape(-1, groups, group_size).transpose(0, 1)  # [groups, out, group_size]
        error = ((by_group @ blocks) * by_group).sum(-1).T
        better = error < least
        best[better], least[better] = shrink, error[better]
    return grid_of(weights, group_size, best)


def smoothing(weights: Tensor, seen: Inputs, tie: Tie, alpha: float) -> Tensor:
    """SmoothQuant's factors [in] (equation 4): `alpha` of the difficulty moves from inputs to weights."""
    inputs = tie(seen.most).clamp_min(_LEAST)
    return (inputs**alpha / weights.abs().amax(0).clamp_min(_LEAST) ** (1 - alpha)).clamp_min(_LEAST)


def smooth(weights: Tensor, x: Tensor, seen: Inputs, tie: Tie) -> Tensor:
    """SmoothQuant's factors for all matrices that see the inputs x [..., in], with the alpha that errs least when both
    sides are rounded to 8 bit, a scale a token and a scale a row; ones where none errs less."""
    rows = x.flatten(0, -2)
    rows = rows[:: max(len(rows) // ROWS, 1)]
    exact = rows @ weights.T
    best, least = torch.ones_like(seen.mean), None
    for factors in (best, *(smoothing(weights, seen, tie, alpha) for alpha in ALPHAS)):
        rounded = nearest(rows / factors, None).values @ nearest(weights * factors, None).values.T
        error = (rounded - exact).square().mean()
        if least is None or error < least:
            best, least = factors, error
    return best
