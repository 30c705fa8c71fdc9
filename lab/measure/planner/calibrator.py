"""Calibrates a server that Triton batches for, out of measured blocks, from all of them or from all but a few.

Counters tell what batches took by size. What no counter tells is found by replaying blocks, arrival by arrival, at the
speed that their own counters tell: how often an instance had to wake; of what scatters, how much is the server's own
work, which makes others wait, and how much is outside; and what Triton's batcher takes to notice a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.measure.pace import Floats
from lab.measure.percentile import percentile
from lab.measure.planner.calibration import QUIET_QUEUE, Measured, rules
from lab.measure.planner.service import Seen, Service, divided, fit, line, misfit
from lab.measure.planner.simulator import Users, simulate
from lab.measure.summary import Summary

BACKLOG = 0.97
"""A server that answers less than this share of what comes is never idle."""
CROWD = 2
"""Users for each place in a batch: with so many there is always somebody waiting when a batch is taken."""
REPLAYED = 2_000
"""Requests of a block that are replayed, and SHOWN blocks at the most."""
SHOWN = 6
PAUSES_S = tuple(float(pause_s) for pause_s in np.geomspace(0.0001, 0.02, 12))
"""Tried for `asleep_s`."""
NOTICES_S = (0.0, 0.0001, 0.0002, 0.0004)
INSIDES = (0.4, 0.6, 0.8, 1.0)
"""Tried for the other two."""
FEWEST = 30
"""Requests that met nobody, below which nothing is said of scatter."""
LEAST_INSIDE = 0.05
"""Of what a request took, the server's share that is at least assumed where it was quicker than what is outside."""
WEIGHTS = {0.5: 1.0, 0.95: 1.0, 0.99: 0.5}
"""How much a replay's percentile counts."""


@dataclass(frozen=True)
class Tuned:
    """What replays told; `inside`: of what scatters, the server's own share."""

    asleep_s: float = 0.001
    notice_s: float = 0.0
    inside: float = 1.0


def service(blocks: Sequence[Measured], near: Sequence[Measured] = ()) -> Service:
    """Of a model that Triton batches: its shape by all `blocks`, its speed by those of them that are `near` (by all
    where none is). InputError when the blocks say nothing of it."""
    return Calibrator(blocks).service(near=[block.number for block in near])


class Calibrator:
    """Blocks of one model, each looked at once. They are named by their numbers, which differ."""

    def __init__(self, blocks: Sequence[Measured]) -> None:
        self._blocks = {block.number: block for block in blocks}
        beside = _beside(blocks)
        self._seen = {block.number: _seen(block, beside) for block in blocks}
        self._pauses = {number: _pauses(block, self._seen[number]) for number, block in self._blocks.items()}

    def service(self, among: Sequence[int] = (), near: Sequence[int] = (), tuned: Tuned | None = None) -> Service:
        """From the blocks `among` (all when empty), with the speed of those that are `near`."""
        numbers = list(among or self._blocks)
        how = tuned or self.tune(numbers)
        found = self._fit(numbers, how)
        speeds = [ratio for number in near if (ratio := found.ratio(self._told(number, how.asleep_s)))]
        return found.scaled(float(np.exp(np.mean(np.log(speeds))))) if speeds else found

    def tune(self, among: Sequence[int]) -> Tuned:
        """What fits these blocks best."""
        numbers = list(among)
        awake = []
        for asleep_s in PAUSES_S:
            told = [self._told(number, asleep_s) for number in numbers]
            awake.append((misfit(fit(told, None, asleep_s), told), asleep_s))
        asleep_s = min(awake)[1]
        shown = self._telling(numbers)
        if not shown:
            return Tuned(asleep_s)
        tried = []
        for notice_s in NOTICES_S:
            for inside in INSIDES:
                how = Tuned(asleep_s, notice_s, inside)
                found = self._fit(numbers, how)
                tried.append((sum(self._off(number, found, how) for number in shown), notice_s, inside))
        _, notice_s, inside = min(tried)
        return Tuned(asleep_s, notice_s, inside)

    def _fit(self, numbers: Sequence[int], how: Tuned) -> Service:
        found = fit([self._told(number, how.asleep_s) for number in numbers], None, how.asleep_s)
        scatter = [_scatter(self._blocks[number], found) for number in numbers]
        spread = np.concatenate(scatter) if scatter else np.empty(0)
        if len(spread) >= FEWEST:
            found = replace(found, spread=spread / spread.mean())
        return replace(divided(found, how.inside), notice_s=how.notice_s)

    def _told(self, number: int, asleep_s: float) -> Seen:
        return _awake(self._seen[number], self._pauses[number], asleep_s)

    def _off(self, number: int, found: Service, how: Tuned) -> float:
        """How far a replay of the block is from what was measured, at the block's own speed."""
        block = self._blocks[number]
        own = found.scaled(found.ratio(self._told(number, how.asleep_s)) or 1.0)
        due_s = block.due_s[:REPLAYED]
        replayed = simulate(due_s, replace(rules(block.model), max_queue_size=None), own)
        latency_s = replayed.latency_s[due_s >= block.window_s[0]]
        off = 0.0
        for p, weight in WEIGHTS.items():
            modelled, true = percentile(latency_s, p), percentile(block.latency_s, p)
            if modelled and true:
                off += weight * abs(float(np.log(modelled / true)))
        return off

    def _telling(self, among: Sequence[int]) -> list[int]:
        """Up to SHOWN blocks of an open loop that kept up, from the least asked to the most."""
        rows = []
        for number in among:
            block = self._blocks[number]
            offered, served = block.summary.offered_rps or 0.0, block.summary.throughput_rps or 0.0
            if block.users is None and len(block.due_s) and len(block.latency_s) and served >= BACKLOG * offered:
                rows.append((offered, number))
        rows.sort()
        places = np.linspace(0, len(rows) - 1, min(len(rows), SHOWN)).round().astype(int)
        return [rows[place][1] for place in sorted(set(places.tolist()))]


def _seen(block: Measured, beside: tuple[float, float]) -> Seen:
    """`beside`: (fixed, item) of the seconds that a batch's inputs and outputs take, which is the instance's time as
    well, though Triton counts it by block and not by size."""
    found = block.summary
    if not found.item_compute_s or found.compute_mean_s is None or found.compute_infer_mean_s is None:
        return Seen({}, {})
    fixed_s, item_s = beside
    usual_s = fixed_s + item_s * _company(found)
    own = (found.compute_mean_s - found.compute_infer_mean_s) / usual_s if usual_s else 0.0
    batch_s = {size: size * s + own * (fixed_s + item_s * size) for size, s in found.item_compute_s.items()}
    known = found.latency_mean_s is not None and _quiet(found)
    return Seen(batch_s, found.batch_sizes, _outside(found) if known else None, _cycle_s(block))


def _beside(blocks: Sequence[Measured]) -> tuple[float, float]:
    rows = [
        (_company(b.summary), b.summary.compute_mean_s - b.summary.compute_infer_mean_s, b.summary.executions or 1)
        for b in blocks
        if b.summary.compute_mean_s is not None and b.summary.compute_infer_mean_s is not None
    ]
    if not rows:
        return 0.0, 0.0
    size, seconds, weight = (np.array(column, float) for column in zip(*rows, strict=True))
    return line(size, seconds, weight)


def _company(found: Summary) -> float:
    """The size of the batch that a request finds itself in, on average."""
    requests = sum(size * count for size, count in found.batch_sizes.items())
    return sum(size**2 * count for size, count in found.batch_sizes.items()) / requests if requests else 1.0


def _cycle_s(block: Measured) -> float | None:
    """Seconds from batch to batch of an instance that was never idle; None where instances may have been."""
    found, of = block.summary, rules(block.model)
    if not found.throughput_rps or not found.batch_mean:
        return None
    if block.users is not None:
        busy = of.delay_s == 0 and block.users >= CROWD * of.instances * found.batch_mean and not block.think_s
    else:
        busy = found.offered_rps is not None and found.throughput_rps < BACKLOG * found.offered_rps
    return of.instances * found.batch_mean / found.throughput_rps if busy else None


def _pauses(block: Measured, seen: Seen) -> dict[int, Floats]:
    """{batch size: how long the instance had been idle before each such batch} in a replay of the block; {} of a block
    whose arrivals or batches are not known."""
    n = min(len(block.due_s), REPLAYED)
    if n == 0 or not seen.counted:
        return {}
    guess = fit([seen])
    of = replace(rules(block.model), max_queue_size=None)
    asked = block.due_s[:n] if block.users is None else Users(block.users, n, block.think_s)
    found = simulate(asked, of, guess)
    _, first = np.unique(found.start_s, return_index=True)
    sizes, idle_s = found.batch[first], found.idle_s[first]
    return {int(size): idle_s[sizes == size] for size in np.unique(sizes)}


def _awake(seen: Seen, pauses: dict[int, Floats], asleep_s: float) -> Seen:
    """With the share of waking that its batches paid; a size that the replay did not make has that of the nearest."""
    if not pauses:
        return seen
    made = {size: float(np.minimum(1.0, idle_s / asleep_s).mean()) for size, idle_s in pauses.items()}
    woken = {size: made[min(made, key=lambda other: abs(other - size))] for size in seen.batch_s}
    return replace(seen, woken=woken)


def _scatter(block: Measured, found: Service) -> Floats:
    """How long those took that met nobody, in a quiet block; in a busy one the same stall is seen by many. In an open
    loop without a delay, whoever came when all before were answered was taken alone and at once. Relative to what is
    expected after such a pause, with a mean of 1, so that the block's own speed is not in it."""
    of = rules(block.model)
    gathers = of.delay_s > 0 and of.max_batch_size > 1
    if block.users is not None or of.instances > 1 or gathers or len(block.took_s) < 2 or not _quiet(block.summary):
        return np.empty(0)
    done_s = block.due_s + block.took_s
    before_s = np.maximum.accumulate(np.where(np.isnan(done_s), -np.inf, done_s))[:-1]
    idle_s = block.due_s[1:] - before_s
    alone = (idle_s > 0) & np.isfinite(idle_s) & ~np.isnan(block.took_s[1:])
    if not alone.any():
        return np.empty(0)
    took_s = block.took_s[1:][alone]
    inside_s = np.maximum(took_s - found.outside_s.mean(), LEAST_INSIDE * took_s)
    relative = inside_s / (found.mean_s(1) + found.wake_s * np.minimum(1.0, idle_s[alone] / found.asleep_s))
    return np.asarray(relative / relative.mean(), float)


def _quiet(found: Summary) -> bool:
    queued, computed = found.queue_mean_s, found.compute_mean_s
    return queued is not None and bool(computed) and queued < QUIET_QUEUE * (computed or 0)


def _outside(found: Summary) -> float:
    return max(0.0, (found.latency_mean_s or 0) - (found.queue_mean_s or 0) - (found.compute_mean_s or 0))
