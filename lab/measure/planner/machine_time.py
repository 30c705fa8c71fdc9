"""How fast the machine was from moment to moment, and a clock for the simulator that goes as fast as it.

Who shares a machine slows it for stretches of tens and hundreds of milliseconds, and now and then it stands still. The
batches of such a stretch are long together, so a queue that has little time to spare grows for all of it, which the
same batches drawn one by one would not make it do. So what a measured block's batches took is kept in its order, as the
work that was done by each moment (`Stretch`), and a simulated run goes through whole measured stretches one after the
other, in an order of its own: a block bootstrap (Künsch 1989, "The jackknife and the bootstrap for general stationary
observations").

In its own time, in which equal work takes equally long, the machine never changes. Arrivals are put into that time,
served there, and put back (a random time change, as of a queue in a random environment). What single batches deviate in
that time is their own and has no memory: service.Service.spread.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.measure.pace import Floats

GRAIN_S = 0.015
"""Seconds of work over which the machine's speed is told; batches' own deviations are to even out in them."""
STALL = 4.0
"""A batch that takes so many times as long as expected was not slow: the machine stood still. And no machine that goes
is so many times as fast or as slow as it usually is."""
FEWEST = 8
"""Such spans below which a block says nothing of how its speed moved."""
BEYOND_S = 1e7


@dataclass(frozen=True)
class Stretch:
    """Seconds from a block's start (`real_s`, ascending from 0) and the seconds of its usual work that were done by
    then (`own_s`, which starts at 0 as well); in between the machine is as fast as from one to the next. `batched`: it
    computed batches, which use its cores otherwise than requests alone do."""

    real_s: Floats
    own_s: Floats
    batched: bool = False

    def own(self, real_s: Floats) -> Floats:
        """The machine's own time by the clock's."""
        return np.asarray(np.interp(real_s, self.real_s, self.own_s), float)

    def faster(self, factor: float) -> Stretch:
        """So many times as much work in the same time."""
        return replace(self, own_s=self.own_s * factor)


def measured(start_s: Floats, end_s: Floats, work_s: Floats, until_s: float) -> Stretch | None:
    """Of a block's batches one after the other, each of which would usually take `work_s`; all in all they took as long
    as usual, for how fast the block was as a whole is told elsewhere. None of too few of them.

    The speed of a span is its work ÷ the time that it took. Part of what spans differ by is their batches' own
    deviations, which are drawn again: it is taken out, by variances (as in a one-way random effects model)."""
    took_s = end_s - start_s
    if len(took_s) < 2:
        return None
    work_s = work_s * took_s.sum() / work_s.sum()
    stalled = took_s > STALL * work_s
    span = np.floor(np.cumsum(np.where(stalled, 0.0, took_s)) / GRAIN_S)
    new = np.r_[True, (np.diff(span) > 0) | stalled[1:] | stalled[:-1]]
    first = np.flatnonzero(new)
    last = np.r_[first[1:] - 1, len(new) - 1]
    work, took = np.add.reduceat(work_s, first), np.add.reduceat(took_s, first)
    count, stands = last - first + 1, stalled[first]
    going = ~stands
    if going.sum() < FEWEST:
        return None
    speed = work / took
    own = took_s / work_s * np.repeat(speed, count) - 1
    moves = np.repeat(going, count)
    free = int((count[going] - 1).sum())
    noise = float((own[moves] ** 2).sum()) / free * float(np.mean(1 / count[going])) if free else 0.0
    usual = np.log(work[going].sum() / took[going].sum())
    # A span that looks faster still, such as one whose batches' ends were seen almost at once, was not.
    logs = np.clip(np.log(speed[going]), usual - np.log(STALL), usual + np.log(STALL))
    kept = np.sqrt(max(0.0, 1 - noise / logs.var())) if logs.var() > 0 else 0.0
    speed[going] = np.exp(usual + kept * (logs - usual))
    # While it was idle it was as fast as before, and after it stood still as it is next.
    after = np.where(going, speed, np.r_[speed[1:], np.exp(usual)])
    real_s = np.r_[0.0, np.stack([start_s[first], end_s[last]], axis=1).ravel(), until_s]
    real_s = np.maximum.accumulate(np.clip(real_s, 0.0, until_s))
    speeds = np.r_[speed[0] if going[0] else np.exp(usual), np.stack([speed, after], axis=1).ravel()]
    own_s = np.r_[0.0, np.cumsum(np.diff(real_s) * np.minimum(speeds, BEYOND_S))]
    return Stretch(real_s, own_s)


def alike(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """The same with as much work as time in each of them: how the machine's speed moves within seconds is known, and
    not how fast it will be for a whole one."""
    return tuple(s.faster(float(s.real_s[-1] / s.own_s[-1])) for s in stretches)


class Clock:
    """The machine's own time by the clock's, and back; both ways seconds, ascending."""

    def __init__(self, stretches: Sequence[Stretch], span_s: float, rng: np.random.Generator) -> None:
        """Goes through whole rounds of `stretches`, each round in an order of its own, for at least `span_s`; after
        that the machine does not change."""
        every_s = sum(float(s.real_s[-1]) for s in stretches)
        rounds = int(span_s // every_s) + 1
        order = [stretches[n] for _ in range(rounds) for n in rng.permutation(len(stretches))]
        ends = np.cumsum([[s.real_s[-1], s.own_s[-1]] for s in order], axis=0)
        needed = int(np.searchsorted(ends[:, 0], span_s)) + 1
        begins = np.r_[np.zeros((1, 2)), ends]
        parts = list(zip(order[:needed], begins, strict=False))
        beyond = begins[min(needed, len(order))] + BEYOND_S
        self._real_s = np.concatenate([s.real_s + at[0] for s, at in parts] + [beyond[:1]])
        self._own_s = np.concatenate([s.own_s + at[1] for s, at in parts] + [beyond[1:]])
        self._lists: tuple[list[float], list[float]] | None = None

    def own(self, real_s: Floats) -> Floats:
        return np.asarray(np.interp(real_s, self._real_s, self._own_s), float)

    def real(self, own_s: Floats) -> Floats:
        return np.asarray(np.interp(own_s, self._own_s, self._real_s), float)

    def after(self, real_s: float, work_s: float) -> float:
        """When so much work is done that is begun then."""
        return self._at(self._at(real_s, 0) + work_s, 1)

    def worked(self, from_s: float, to_s: float) -> float:
        """The work that is done in between; `from_s` may be before all time."""
        return np.inf if from_s == -np.inf else self._at(to_s, 0) - self._at(from_s, 0)

    def _at(self, value: float, which: int) -> float:
        """Linear interpolation of one value, ten times as fast as numpy's."""
        if self._lists is None:
            self._lists = self._real_s.tolist(), self._own_s.tolist()
        x, y = self._lists[which], self._lists[1 - which]
        n = min(max(bisect.bisect_right(x, value), 1), len(x) - 1)
        width = x[n] - x[n - 1]
        return y[n - 1] + (y[n] - y[n - 1]) * (value - x[n - 1]) / width if width > 0 else y[n]
