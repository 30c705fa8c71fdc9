"""What one measured block says of a server that Triton batches for, in the terms of its model (service.py).

Counters give the time of batches by size, inputs and outputs included; records give how long those took that met
nobody, and which answers came together, so when each batch began and ended; a replay of the block gives how long an
instance had been idle before each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.measure.pace import Floats
from lab.measure.planner import machine_time
from lab.measure.planner.calibration import QUIET_QUEUE, Measured, rules
from lab.measure.planner.machine_time import Stretch
from lab.measure.planner.queueing import Users
from lab.measure.planner.service import Seen, Service, fit, line
from lab.measure.planner.simulator import closing, simulate
from lab.measure.summary import Summary

BACKLOG = 0.97
"""A server that answers less than this share of what comes is never idle."""
BUSY = 0.5
"""Share of its time that an instance which is never idle computes, at the least; the rest is between batches."""
CROWD = 2
"""Users for each place in a batch: with so many there is always somebody waiting when a batch is taken."""
REPLAYED = 6_000
"""Requests of a block that are replayed."""
LEAST_INSIDE = 0.05
"""Of what a request took, the server's share that is at least assumed where it was quicker than what is outside."""


def seen(block: Measured, around: tuple[float, float]) -> Seen:
    """Of one block. `around`: (fixed, item) of the seconds that a batch's inputs and outputs take, which is the
    instance's time as well, though Triton counts it by block and not by size."""
    found = block.summary
    if not found.item_compute_s or found.compute_mean_s is None or found.compute_infer_mean_s is None:
        return Seen({}, {})
    fixed_s, item_s = around
    usual_s = fixed_s + item_s * _company(found)
    own = (found.compute_mean_s - found.compute_infer_mean_s) / usual_s if usual_s else 0.0
    batch_s = {size: size * s + own * (fixed_s + item_s * size) for size, s in found.item_compute_s.items()}
    known = found.latency_mean_s is not None and _quiet(found)
    return Seen(batch_s, found.batch_sizes, _outside(found) if known else None, _cycle_s(block))


def beside(blocks: Sequence[Measured]) -> tuple[float, float]:
    """(fixed, item) of the seconds that a batch's inputs and outputs take, over all blocks."""
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
        computed = (found.compute_mean_s or 0.0) * found.throughput_rps / found.batch_mean / of.instances
        behind = found.offered_rps is not None and found.throughput_rps < BACKLOG * found.offered_rps
        busy = behind and computed >= BUSY  # among few requests some are always behind
    return of.instances * found.batch_mean / found.throughput_rps if busy else None


def pauses(block: Measured, told: Seen) -> dict[int, Floats]:
    """{batch size: how long the instance had been idle before each such batch} in a replay of the block; {} of a block
    whose arrivals or batches are not known."""
    n = min(len(block.due_s), REPLAYED)
    if n == 0 or not told.counted:
        return {}
    guess = fit([told])
    of = replace(rules(block.model), max_queue_size=None)
    asked = block.due_s[:n] if block.users is None else Users(block.users, n, block.think_s)
    found = simulate(asked, of, guess)
    _, first = np.unique(found.start_s, return_index=True)
    sizes, idle_s = found.batch[first], found.idle_s[first]
    return {int(size): idle_s[sizes == size] for size in np.unique(sizes)}


def awake(told: Seen, idle: dict[int, Floats], asleep_s: float) -> Seen:
    """With the share of waking that its batches paid; a size that the replay did not make has that of the nearest."""
    if not idle:
        return told
    made = {size: float(np.minimum(1.0, idle_s / asleep_s).mean()) for size, idle_s in idle.items()}
    woken = {size: made[min(made, key=lambda other: abs(other - size))] for size in told.batch_s}
    return replace(told, woken=woken)


@dataclass(frozen=True)
class Batches:
    """Of one instance, one after the other: when each began and ended, seconds from the block's start, and its size."""

    start_s: Floats
    end_s: Floats
    size: Floats


def batches(block: Measured, outside_s: float) -> Batches | None:
    """Of a block in an open loop or a closed one, by its records: an instance that is free takes whoever waits, as the
    server's rules say, and is free again when they are answered, most of them together. `outside_s`: what a request
    spends elsewhere. None of several instances, who work at the same time, and of a block without records."""
    of = rules(block.model)
    known = ~np.isnan(block.took_s)
    if of.instances > 1 or not known.any():
        return None
    at_s = block.due_s[known] + outside_s / 2
    back_s = (block.due_s[known] + block.took_s[known] - outside_s / 2).tolist()
    most = of.max_batch_size
    came_s = closing(at_s.tolist(), most, of.delay_s) if most > 1 and of.delay_s > 0 else at_s.tolist()
    found: list[tuple[float, float, int]] = []
    free_s, first, n = -np.inf, 0, len(came_s)
    while first < n:
        start_s, last = max(free_s, came_s[first]), min(first + most, n)
        end = first + 1
        while end < last and came_s[end] <= start_s:
            end += 1
        done_s = sorted(back_s[first:end])[(end - first) // 2]
        if done_s > start_s:  # else they were answered together with those before
            found.append((start_s, done_s, end - first))
            free_s = done_s
        first = end
    if not found:
        return None
    return Batches(*(np.array(column, float) for column in zip(*found, strict=True)))


def stretch(made: Batches | None, found: Service, until_s: float) -> Stretch | None:
    """How the machine's speed moved in the block that made these batches, which lasted `until_s`. None: not known."""
    if made is None or len(made.size) < 2:
        return None
    idle_s = made.start_s - np.r_[-np.inf, made.end_s[:-1]]
    woken = np.minimum(1.0, idle_s / found.asleep_s)
    work_s = found.means_s(made.size) + np.where(idle_s > 0, found.wake_s * woken, _handed(made.size, found))
    return machine_time.measured(made.start_s, made.end_s, work_s, until_s)


def _handed(sizes: Floats, found: Service) -> Floats:
    """The handover that each batch but the first had to wait for."""
    return np.asarray(np.r_[0.0, found.handovers_s(sizes)[:-1]], float)


def scatter(block: Measured, found: Service, own: Stretch | None = None) -> Floats:
    """How long those took that met nobody, in a quiet block; in a busy one the same stall is seen by many. In an open
    loop without a delay, whoever came when all before were answered was taken alone and at once. Relative to what is
    expected after such a pause, with a mean of 1, so that the block's own speed is not in it; in the machine's `own`
    time where that is known."""
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
    if own is not None:
        start_s = block.due_s[1:][alone] + found.outside_s.mean() / 2
        inside_s = own.own(start_s + inside_s) - own.own(start_s)
    relative = inside_s / (found.mean_s(1) + found.wake_s * np.minimum(1.0, idle_s[alone] / found.asleep_s))
    return np.asarray(relative / relative.mean(), float)


def _quiet(found: Summary) -> bool:
    queued, computed = found.queue_mean_s, found.compute_mean_s
    return queued is not None and bool(computed) and queued < QUIET_QUEUE * (computed or 0)


def _outside(found: Summary) -> float:
    return max(0.0, (found.latency_mean_s or 0) - (found.queue_mean_s or 0) - (found.compute_mean_s or 0))
