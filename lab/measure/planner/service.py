"""How long a server works on a batch: a curve over batch sizes with the spread around it, fitted to measured blocks.

    seconds of a batch of b = fixed_s + b × item_s, times a draw of `spread` (mean 1)

`fixed_s` is what batching shares, `item_s` what every request costs in any company. Both come from Triton's own count
of compute time by batch size (`batch_stats`), weighted by executions. The time that is no queue and no compute (client,
network, Triton's front) is `outside_s`, drawn for each request. Nothing here knows of queues: see simulator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats


@dataclass(frozen=True)
class Seen:
    """What one measured block says of the server: seconds a whole batch took by its size, how many there were of each,
    and the mean seconds a request spent outside queue and compute (None: not measured)."""

    batch_s: dict[int, float]
    executions: dict[int, int]
    outside_s: float | None = None


@dataclass(frozen=True)
class Service:
    """`spread` and `outside_s` are samples to draw from, each of one or more; the mean of `spread` is 1."""

    fixed_s: float
    item_s: float
    spread: Floats
    outside_s: Floats

    def mean_s(self, size: float) -> float:
        """Seconds of a batch of `size` on average."""
        return self.fixed_s + self.item_s * size

    def capacity_rps(self, size: int, instances: int = 1) -> float:
        """Requests a second of `instances` that never wait and always run batches of `size`."""
        return instances * size / self.mean_s(size)

    def scaled(self, factor: float) -> Service:
        """The same server when every batch takes `factor` times as long; what happens outside stays."""
        return replace(self, fixed_s=self.fixed_s * factor, item_s=self.item_s * factor)


def steady(fixed_s: float, item_s: float = 0.0, outside_s: float = 0.0) -> Service:
    """A service without any spread."""
    return Service(fixed_s, item_s, np.ones(1), np.array([outside_s]))


def fit(blocks: Sequence[Seen], spread: Floats | None = None) -> Service:
    """The line through all batches of all blocks, least squares by executions, neither part negative.

    `spread`: relative deviations of single batches from the line, such as `spread_of` finds; none when None.
    InputError when no block says how long its batches took."""
    points = [
        (size, seconds, block.executions.get(size, 0))
        for block in blocks
        for size, seconds in block.batch_s.items()
        if block.executions.get(size, 0) > 0
    ]
    if not points:
        raise InputError("no block says how long batches took: nothing to calibrate on")
    size, seconds, weight = (np.array(column, float) for column in zip(*points, strict=True))
    fixed_s, item_s = _line(size, seconds, weight)
    outside = [block.outside_s for block in blocks if block.outside_s is not None]
    return Service(
        fixed_s,
        item_s,
        np.ones(1) if spread is None or len(spread) == 0 else spread / spread.mean(),
        np.array([max(0.0, value) for value in outside] or [0.0]),
    )


def spread_of(alone_s: Floats, outside_s: float) -> Floats:
    """How single executions scatter, seen from requests that met nobody: their latencies less what is outside, over
    the mean. What a client's own jitter adds is in it, which errs to the side of caution. Empty of fewer than two."""
    if len(alone_s) < 2:
        return np.empty(0)
    inside = np.maximum(alone_s - outside_s, 0.05 * alone_s)
    return np.asarray(inside / inside.mean(), float)


def _line(size: Floats, seconds: Floats, weight: Floats) -> tuple[float, float]:
    """(fixed, item) of the weighted least squares line through (size, seconds), with both at least 0."""
    mean_size, mean_s = np.average(size, weights=weight), np.average(seconds, weights=weight)
    variance = np.average((size - mean_size) ** 2, weights=weight)
    if variance == 0:  # one size only: all that is known is a whole
        return float(mean_s), 0.0
    item_s = float(np.average((size - mean_size) * (seconds - mean_s), weights=weight) / variance)
    fixed_s = float(mean_s - item_s * mean_size)
    if item_s < 0:
        return float(mean_s), 0.0
    if fixed_s < 0:
        return 0.0, float(np.sum(weight * size * seconds) / np.sum(weight * size**2))
    return fixed_s, item_s
