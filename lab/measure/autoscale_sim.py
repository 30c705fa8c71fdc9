"""What an autoscaler would have done: arrivals, service times and starts in, latencies and instances over time out.

One queue, first come first served, in front of instances that each work on one request at a time, as Triton's default
scheduler hands them out. While a change is on its way no other is begun, as on a server that loads one thing at a time.
A change adds and removes (a pod comes, a pod goes after the request at hand), or it `replaces`: new instances get what
comes from then on, the old ones finish what waits for them, as when Triton loads a model anew. An instance is paid from
when it was asked for until it is gone; old ones that finish are not counted. Modelled, never measured;
lab/run/scaler.py is the real thing, and benchmarks/patterns.py holds the two against each other.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.errors import InputError
from lab.measure.autoscale import ROUNDING, SAMPLE_S, Autoscaler, Sample
from lab.measure.pace import Floats
from lab.spec import Scaling


@dataclass(frozen=True)
class Change:
    """Of the instances: asked for at `asked_s`, in force from `t_s` on."""

    asked_s: float
    t_s: float
    before: int
    after: int


@dataclass(frozen=True)
class Scaled:
    """One entry a request; seconds from the first arrival's clock. `instance_s`: instances × seconds that are paid,
    until `end_s`."""

    due_s: Floats
    start_s: Floats
    done_s: Floats
    changes: tuple[Change, ...]
    first: int
    end_s: float
    instance_s: float

    @property
    def latency_s(self) -> Floats:
        return self.done_s - self.due_s

    def steps(self) -> tuple[list[float], list[int]]:
        """(times, instances from then on)."""
        return [0.0, *(one.t_s for one in self.changes)], [self.first, *(one.after for one in self.changes)]


@dataclass(frozen=True)
class Starts:
    """Seconds that a change takes, of which one is drawn: `up_s` for more instances, `down_s` for fewer."""

    up_s: Sequence[float]
    down_s: Sequence[float] = (0.0,)

    def draw(self, before: int, after: int, rng: np.random.Generator) -> float:
        return float(rng.choice(np.asarray(self.up_s if after > before else self.down_s, float)))


ARRIVES, DONE, CHANGED, LOOKS = range(4)  # at the same time, in this order


@dataclass
class _Pool:
    """Instances with a queue of their own."""

    instances: int
    busy: int = 0
    waiting: deque[int] = field(default_factory=deque)


def simulate(
    due_s: Floats,
    service_s: Floats,
    starts: Starts,
    *,
    first: int,
    rules: Scaling | None,
    end_s: float,
    outside_s: float = 0.0,
    replaces: bool = False,
    told_every_s: float = 0.0,
    seed: int = 0,
) -> Scaled:
    """Serves all of `due_s` (ascending), each taking its own of `service_s` on an instance. `rules` None: the `first`
    instances stay. `end_s`: until when the scaler works and is paid; `outside_s`: of an answer's time what is neither
    queue nor work; `told_every_s`: the scaler knows what the last report said, and they come so far apart. InputError
    when nothing would ever be served."""
    if first < 1 or len(service_s) != len(due_s):
        raise InputError(f"first {first} instances, {len(service_s)} service times for {len(due_s)} requests")
    rng = np.random.default_rng(seed)
    scaler = None if rules is None else Autoscaler(rules)
    n = len(due_s)
    start, done = np.full(n, np.nan), np.full(n, np.nan)
    pool = _Pool(first)
    where: list[_Pool] = [pool] * n  # who serves each
    events: list[tuple[float, int, int]] = [(float(due_s[0]), ARRIVES, 0)] if n else []
    arrived = answered = 0
    changes: list[Change] = []
    asked_s: float | None = None
    next_decision_s = next_report_s = 0.0
    told = 0, 0
    if scaler is not None:
        heapq.heappush(events, (0.0, LOOKS, 0))

    def begin(now: float, own: _Pool) -> None:
        while own.waiting and own.busy < own.instances:
            request = own.waiting.popleft()
            own.busy += 1
            start[request] = now
            heapq.heappush(events, (now + float(service_s[request]), DONE, request))

    while events:
        now, kind, which = heapq.heappop(events)
        if kind == ARRIVES:
            where[which] = pool
            pool.waiting.append(which)
            arrived += 1
            begin(now, pool)
            if which + 1 < n:
                heapq.heappush(events, (float(due_s[which + 1]), ARRIVES, which + 1))
        elif kind == DONE:
            done[which] = now + outside_s
            where[which].busy -= 1
            answered += 1
            begin(now, where[which])
        elif kind == CHANGED and asked_s is not None:
            changes.append(Change(asked_s, now, pool.instances, which))
            asked_s = None
            if replaces:
                pool = _Pool(which)
            else:
                pool.instances = which
                begin(now, pool)
        elif kind == LOOKS and scaler is not None and now < end_s:
            now = round(now / SAMPLE_S) * SAMPLE_S  # sums of tenths drift, and a decision would come a look late
            if now >= next_report_s:
                next_report_s = now + told_every_s
                told = arrived - answered, arrived
            scaler.observe(Sample(now, told[0], max(0, told[0] - pool.instances), told[1]))
            if now >= next_decision_s and asked_s is None:
                next_decision_s = now + scaler.rules.tick_s - ROUNDING
                wanted = scaler.decide(now, pool.instances)
                if wanted != pool.instances:
                    asked_s = now
                    heapq.heappush(events, (now + starts.draw(pool.instances, wanted, rng), CHANGED, wanted))
            heapq.heappush(events, (now + SAMPLE_S, LOOKS, 0))
    paid = paid_s(first, changes, end_s)
    return Scaled(np.asarray(due_s, float), start, done, tuple(changes), first, end_s, paid)


def paid_s(first: int, changes: Sequence[Change], end_s: float) -> float:
    """Instances × seconds until `end_s`: one that starts is paid from when it was asked for."""
    paid, since, count = 0.0, 0.0, first
    for change in changes:
        at = min(change.asked_s if change.after > change.before else change.t_s, end_s)
        paid += count * (at - since)
        since, count = at, change.after
    return paid + count * (end_s - since)


def attainment(latency_s: Floats, limit_s: float) -> float | None:
    """The share within the limit; None of none."""
    return float((latency_s <= limit_s).mean()) if len(latency_s) else None
