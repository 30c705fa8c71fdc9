"""How long a server works on a batch: a curve over batch sizes with the spread around it, fitted to measured blocks.

    seconds of a batch of b = (curve(b) + wake_s × min(1, idle ÷ asleep_s)) × a draw of `spread` (mean 1)

The curve comes from Triton's own count of compute time by batch size (`batch_stats`), weighted by executions: a value
for each size that ran often, and for all others the straight line through them, `fixed_s` (what batching shares) + b ×
`item_s` (what every request costs in any company). An instance that stood idle has gone to sleep, its caches are cold:
the first batch after `asleep_s` or longer takes `wake_s` more, one after a shorter pause a part of it. So a server
computes faster when it is asked more, by a third on some machines. `handover`: how much longer than Triton counts as
compute an instance takes from batch to batch when it always has work, as a share, by batch size: a batch of many has
many answers to send. `notice_s`: what Triton's batcher takes to see
that a request is there. The time that is no queue and no compute (client, network, Triton's front) is `outside_s`,
drawn for each request. All of it is in the machine's own time: how fast the machine itself was from moment to moment
is in `stretches` (machine_time.py). Nothing here knows of queues: see simulator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.discrepancy import Rest
from lab.measure.planner.machine_time import Clock, Stretch

TELLING_WAKE = 0.2
"""Blocks whose shares of waking differ by less than this cannot tell waking from the rest."""
OFTEN = 20
"""Executions from which on a batch size has a value of its own."""


@dataclass(frozen=True)
class Seen:
    """What one measured block says of the server: seconds a whole batch took by its size, how many there were of each,
    the share of `wake_s` that they paid on average (0 of a size that is missing), the mean seconds a request spent
    outside queue and compute, and the mean seconds from one batch to the next of an instance that was never idle
    (None: not measured)."""

    batch_s: dict[int, float]
    executions: dict[int, int]
    outside_s: float | None = None
    cycle_s: float | None = None
    woken: dict[int, float] = field(default_factory=dict)

    @property
    def counted(self) -> list[tuple[int, float, int, float]]:
        """(size, seconds, executions, share of waking) of each size that was executed."""
        return [
            (size, seconds, self.executions[size], self.woken.get(size, 0.0))
            for size, seconds in self.batch_s.items()
            if self.executions.get(size, 0) > 0
        ]

    def times(self, factor: float) -> Seen:
        """The same block on a machine on which every batch takes `factor` times as long."""
        cycle_s = None if self.cycle_s is None else self.cycle_s * factor
        return replace(
            self, batch_s={size: seconds * factor for size, seconds in self.batch_s.items()}, cycle_s=cycle_s
        )

    @property
    def mean_s(self) -> float | None:
        """Of a batch, over all executions."""
        total = sum(count for _, _, count, _ in self.counted)
        return sum(seconds * count for _, seconds, count, _ in self.counted) / total if total else None


@dataclass(frozen=True)
class Service:
    """`spread` and `outside_s` are samples to draw from, each of one or more; the mean of `spread` is 1. `stretches`:
    how the machine's speed moved in measured blocks, as fast as usual in all of them together; none: it never changes.
    `rests`: what all of this left unexplained in the blocks that it was fitted to; planner.py adds it to what it
    predicts."""

    fixed_s: float
    item_s: float
    spread: Floats
    outside_s: Floats
    handover: tuple[tuple[float, float], ...] = ()
    wake_s: float = 0.0
    asleep_s: float = 0.001
    notice_s: float = 0.0
    curve: tuple[tuple[int, float], ...] = ()
    rests: tuple[Rest, ...] = ()
    stretches: tuple[Stretch, ...] = ()

    def mean_s(self, size: float) -> float:
        """Seconds of a batch of `size` on average, of an instance that is awake."""
        return float(self.means_s(np.array([size], float))[0])

    def means_s(self, sizes: Floats) -> Floats:
        """The same of each of them."""
        if not self.curve:
            return np.asarray(self.fixed_s + self.item_s * sizes, float)
        known, seconds = np.array(self.curve, float).T
        beyond = self.item_s * np.where(sizes > known[-1], sizes - known[-1], np.minimum(sizes - known[0], 0.0))
        return np.asarray(np.maximum(np.interp(sizes, known, seconds) + beyond, 0.0), float)

    def handovers_s(self, sizes: Floats) -> Floats:
        """Seconds after batches of these sizes until their instance is free."""
        if not self.handover:
            return np.zeros(len(sizes))
        known, shares = zip(*self.handover, strict=True)
        return np.asarray(self.means_s(sizes) * np.interp(sizes, known, shares), float)

    def handover_s(self, size: float) -> float:
        """The same of one."""
        return float(self.handovers_s(np.array([size], float))[0])

    def seconds(self, most: int) -> tuple[list[float], list[float]]:
        """(a batch, its handover) of each size from 0 to `most`."""
        sizes = np.arange(most + 1, dtype=float)
        return self.means_s(sizes).tolist(), self.handovers_s(sizes).tolist()

    def woken(self, idle_s: float) -> float:
        """The share of `wake_s` that a batch pays after a pause."""
        return min(1.0, idle_s / self.asleep_s)

    @property
    def alone_s(self) -> float:
        """Seconds of a request that meets nobody, from its arrival to its answer, on average."""
        return self.mean_s(1) + self.wake_s + float(self.outside_s.mean())

    def capacity_rps(self, size: int, instances: int = 1) -> float:
        """Requests a second of `instances` that never wait and always run batches of `size`."""
        return instances * size / (self.mean_s(size) + self.handover_s(size))

    def most_rps(self, most: int, instances: int = 1) -> float:
        """The same of the size, up to `most`, that gives the most."""
        sizes = np.arange(1, most + 1, dtype=float)
        return instances * float((sizes / (self.means_s(sizes) + self.handovers_s(sizes))).max())

    def scaled(self, factor: float) -> Service:
        """The same server when every batch takes `factor` times as long; what happens outside stays."""
        return replace(
            self,
            fixed_s=self.fixed_s * factor,
            item_s=self.item_s * factor,
            wake_s=self.wake_s * factor,
            curve=tuple((size, seconds * factor) for size, seconds in self.curve),
        )

    def as_warm(self, woken: float) -> Service:
        """The same server when every batch pays this share of waking, whatever the pause before it."""
        added_s = self.wake_s * woken
        curve = tuple((size, seconds + added_s) for size, seconds in self.curve)
        return replace(self, fixed_s=self.fixed_s + added_s, wake_s=0.0, curve=curve)

    def clocks(self, count: int, span_s: float, rng: np.random.Generator, *, batched: bool) -> list[Clock]:
        """Those of so many machines, each with an order of stretches of its own, of the kind that is asked about where
        there are such; none where no machine changes."""
        of = [one for one in self.stretches if one.batched == batched] or self.stretches
        return [Clock(of, span_s, rng) for _ in range(count)] if of else []

    def ratio(self, block: Seen) -> float | None:
        """How many times as long as modelled the block's batches took; None when it counted none."""
        if not block.counted:
            return None
        size, seconds, count, woken = np.array(block.counted, float).T
        modelled = float((count * (self.means_s(size) + self.wake_s * woken)).sum())
        return float((count * seconds).sum()) / modelled if modelled else None


def steady(fixed_s: float, item_s: float = 0.0, outside_s: float = 0.0) -> Service:
    """A service without any spread."""
    return Service(fixed_s, item_s, np.ones(1), np.array([outside_s]))


def fit(blocks: Sequence[Seen], spread: Floats | None = None, asleep_s: float = 0.001) -> Service:
    """The plane through all batches of all blocks, least squares by executions, no part negative.

    `spread`: relative deviations of single batches from it; none when None.
    InputError when no block says how long its batches took."""
    rows = [row for block in blocks for row in block.counted]
    if not rows:
        raise InputError("no block says how long batches took: nothing to calibrate on")
    size, seconds, weight, woken = (np.array(column, float) for column in zip(*rows, strict=True))
    fixed_s, item_s, wake_s, curve = _curve(size, seconds, weight, woken)
    outside = [block.outside_s for block in blocks if block.outside_s is not None]
    return Service(
        fixed_s,
        item_s,
        np.ones(1) if spread is None or len(spread) == 0 else spread / spread.mean(),
        np.array([max(0.0, value) for value in outside] or [0.0]),
        _handover(blocks),
        wake_s,
        asleep_s,
        curve=curve,
    )


def _handover(blocks: Sequence[Seen]) -> tuple[tuple[float, float], ...]:
    """(batch size, share) of the blocks whose instance was never idle, the middle one of those of about one size."""
    shares: dict[int, list[float]] = {}
    for block in blocks:
        if block.cycle_s is not None and block.mean_s is not None:
            executions = sum(count for _, _, count, _ in block.counted)
            size = round(sum(size * count for size, _, count, _ in block.counted) / executions)
            shares.setdefault(size, []).append(max(0.0, block.cycle_s / block.mean_s - 1))
    return tuple((size, float(np.median(found))) for size, found in sorted(shares.items()))


def misfit(service: Service, blocks: Sequence[Seen]) -> float:
    """The mean relative deviation of the blocks' batches, by executions."""
    rows = [row for block in blocks for row in block.counted]
    off = sum(
        count * abs((service.mean_s(size) + service.wake_s * woken) / seconds - 1)
        for size, seconds, count, woken in rows
        if seconds > 0
    )
    return off / sum(count for _, _, count, _ in rows)


def divided(service: Service, inside: float) -> Service:
    """The same server when only the share `inside` of the spread is its own, and the rest is of what is outside: a
    request alone scatters as before, but fewer others wait for it."""
    apart = service.spread - 1
    work_s, mean_s = service.mean_s(1) + service.wake_s, float(service.outside_s.mean())
    outside_s = np.maximum(mean_s + work_s * np.sqrt(1 - inside**2) * apart, 0.0)
    if outside_s.mean() > 0:
        outside_s = outside_s * mean_s / outside_s.mean()
    return replace(service, spread=1 + inside * apart, outside_s=outside_s)


def line(size: Floats, seconds: Floats, weight: Floats) -> tuple[float, float]:
    """(fixed, item) of the weighted least squares line through (size, seconds), with both at least 0; what a single
    size costs is all fixed."""
    columns = [np.ones_like(size)] + ([size] if len(set(size)) > 1 else [])
    parts = _least_squares(np.stack(columns, axis=1), seconds, weight)
    return parts[0], parts[1] if len(parts) > 1 else 0.0


def _curve(
    size: Floats, seconds: Floats, weight: Floats, woken: Floats
) -> tuple[float, float, float, tuple[tuple[int, float], ...]]:
    """(fixed, item, wake, curve). Each size that ran often has a column of its own, the others share a line."""
    tells_wake = float(np.ptp(woken)) >= TELLING_WAKE
    often = [int(one) for one in np.unique(size) if weight[size == one].sum() >= OFTEN]
    rare = ~np.isin(size, often)
    columns = [(size == one).astype(float) for one in often]
    if rare.any():
        columns += [rare.astype(float), np.where(rare, size, 0.0)]
    if tells_wake:
        columns.append(woken)
    parts = _least_squares(np.stack(columns, axis=1), seconds, weight)
    wake_s = parts[-1] if tells_wake else 0.0
    fixed_s, item_s = line(size, np.maximum(seconds - wake_s * woken, 0.0), weight)
    return fixed_s, item_s, wake_s, tuple(zip(often, parts[: len(often)], strict=True)) if len(often) > 1 else ()


def _least_squares(columns: np.ndarray, seconds: Floats, weight: Floats) -> list[float]:
    """The parts by which the columns add up to the seconds, none of them negative."""
    from scipy.optimize import nnls  # a second of imports that only a planner needs

    root = np.sqrt(weight / weight.sum())
    scale = float(seconds.mean()) or 1.0
    parts, _ = nnls(columns * root[:, None], seconds / scale * root)
    return [float(part) * scale for part in parts]


def in_rounds(samples: Floats, count: int, rng: np.random.Generator) -> Floats:
    """So many draws, of which every len(samples) in a row are all of the samples, in an order of their own."""
    rounds = -(-count // len(samples))
    return np.asarray(rng.permuted(np.tile(samples, (rounds, 1)), axis=1).ravel()[:count], float)
