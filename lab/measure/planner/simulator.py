"""A queue in front of servers that batch as Triton does, event by event.

Requests arrive at times given beforehand, or from users who wait for their answer. A replica has one queue and some
instances. Without a delay an instance that is free takes whatever waits, up to the largest size. With one, requests
gather in a group, which closes when its first member has waited for the delay or the largest size is complete, and only
closed groups can be taken: while an instance works, several close and are taken together, but who came just now is left
for the next batch (Triton's batcher adds to a batch that is staged for an instance, and only what has waited its delay;
core/src/dynamic_batch_scheduler.cc). A router in front of several replicas sends each
request to one of them when it comes (round robin, the least outstanding, the better of two at random; Mitzenmacher
2001, "The power of two choices in randomized load balancing").

An answer leaves as soon as its batch is computed, and the instance is free `handover_s` later. Where requests are dealt
out in turn, no replica knows of the others, and each is served by a loop over its batches, some ten times as fast as
the events that users, full queues and routers that look need; tests hold the two against each other.

The k-th batch of a replica takes the draw of the k-th request that came to it, and draws come in rounds, in each of
which every sample has its turn: so settings that are compared meet the same stalls, and as many as were measured.

The clock is simulated, so the same seed gives the same answer on any machine. Checked against closed forms (M/M/1,
M/D/1, machine repair) in tests/measure/planner.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.service import Service
from lab.measure.records import Int64s

Routing = Literal["round_robin", "least_outstanding", "two_choices"]


@dataclass(frozen=True)
class Rules:
    """How requests are put together and spread: Triton's dynamic batching, instances of a replica, replicas."""

    max_batch_size: int = 1
    delay_s: float = 0.0
    max_queue_size: int | None = None
    instances: int = 1
    replicas: int = 1
    routing: Routing = "round_robin"


@dataclass(frozen=True)
class Users:
    """A closed loop: each user asks again `think_s` after the last answer, until `requests` have been asked in all."""

    concurrency: int
    requests: int
    think_s: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """One entry a request, in the order of arrival; seconds. Refused ones have NaN in `start_s` and `done_s`, and size
    0. `came_s`: when it was in the queue; `replica`: which one got it; `idle_s`: how long the instance had been idle
    when it took the batch; `busy_s`: what all instances worked."""

    due_s: Floats
    came_s: Floats
    start_s: Floats
    done_s: Floats
    batch: Int64s
    replica: Int64s
    idle_s: Floats
    busy_s: float

    @property
    def latency_s(self) -> Floats:
        return self.done_s - self.due_s

    @property
    def waited_s(self) -> Floats:
        """In the queue, a batcher's delay included."""
        return self.start_s - self.came_s

    @property
    def refused(self) -> int:
        return int(np.isnan(self.done_s).sum())


ARRIVES, DONE, IS_FREE, IS_DUE = range(4)  # at the same time, in this order


def simulate(arrivals: Floats | Users, rules: Rules, service: Service, *, seed: int = 0) -> Simulated:
    """Serves them all. `arrivals`: ascending seconds, or users. InputError for rules that fit nothing."""
    for name in ("max_batch_size", "instances", "replicas"):
        if getattr(rules, name) < 1:
            raise InputError(f"{name} {getattr(rules, name)}: allowed is 1 or more")
    rng = np.random.default_rng(seed)
    in_turn = rules.replicas == 1 or rules.routing == "round_robin"
    if in_turn and rules.max_queue_size is None and not isinstance(arrivals, Users):
        return _in_turn(arrivals, rules, service, rng)
    return _Run(arrivals, rules, service, rng).run()


def _in_turn(due_s: Floats, rules: Rules, service: Service, rng: np.random.Generator) -> Simulated:
    """The same as _Run where every replica is on its own."""
    n = len(due_s)
    outside_s = rng.choice(service.outside_s, n) / 2
    spread = in_rounds(service.spread, n, rng)
    start_s, done_s, idle_s = np.empty(n), np.empty(n), np.empty(n)
    batch, where = np.empty(n, np.int64), np.arange(n) % rules.replicas
    busy_s = 0.0
    for replica in range(min(rules.replicas, n)):
        own = np.flatnonzero(where == replica)
        at_s = due_s[own] + outside_s[own]
        order = np.argsort(at_s, kind="stable")
        rows = own[order]
        begun, ended, sizes, idle = _serve(at_s[order].tolist(), rules, service, spread[rows].tolist())
        for column, values in ((start_s, begun), (done_s, ended), (batch, sizes), (idle_s, idle)):
            column[rows] = np.repeat(values, sizes)
        busy_s += float(np.sum(ended) - np.sum(begun))
    return Simulated(due_s, due_s + outside_s, start_s, done_s + outside_s, batch, where, idle_s, busy_s)


def _serve(
    at_s: list[float], rules: Rules, service: Service, spread: list[float]
) -> tuple[list[float], list[float], list[int], list[float]]:
    """(start, end, size, idle before) of each batch of one replica whose requests come at `at_s`, ascending."""
    n, most = len(at_s), rules.max_batch_size
    delay_s = rules.delay_s + service.notice_s if most > 1 else 0.0
    gathers = delay_s > 0
    if gathers:
        at_s = _closing(at_s, most, delay_s)
    takes_s = [service.mean_s(size) for size in range(most + 1)]
    wake_s, asleep_s = service.wake_s, service.asleep_s
    free_s = [-np.inf] * rules.instances
    begun: list[float] = []
    ended: list[float] = []
    sizes: list[int] = []
    idle: list[float] = []
    first = 0
    while first < n:
        came_s = at_s[first]
        now_s = max(free_s[0], came_s)
        end = first + 1
        if gathers or free_s[0] >= came_s:  # else an idle instance takes the first at once
            last = min(first + most, n)
            while end < last and at_s[end] <= now_s:
                end += 1
        size = end - first
        idle_s = now_s - free_s[0]
        waking_s = wake_s if idle_s >= asleep_s else wake_s * idle_s / asleep_s  # service.woken, in the inmost loop
        done_s = now_s + (takes_s[size] + waking_s) * spread[len(begun)]
        heapq.heapreplace(free_s, done_s + service.handover_s)
        begun.append(now_s)
        ended.append(done_s)
        sizes.append(size)
        idle.append(idle_s)
        first = end
    return begun, ended, sizes, idle


def _closing(at_s: list[float], most: int, delay_s: float) -> list[float]:
    """When the group of each request closes."""
    closing: list[float] = []
    first, n = 0, len(at_s)
    while first < n:
        until_s, end, last = at_s[first] + delay_s, first + 1, min(first + most, n)
        while end < last and at_s[end] <= until_s:
            end += 1
        closing += [at_s[end - 1] if end - first == most else until_s] * (end - first)
        first = end
    return closing


def in_rounds(samples: Floats, count: int, rng: np.random.Generator) -> Floats:
    """So many draws, of which every len(samples) in a row are all of the samples, in an order of their own."""
    rounds = -(-count // len(samples))
    return np.asarray(rng.permuted(np.tile(samples, (rounds, 1)), axis=1).ravel()[:count], float)


class _Replica:
    def __init__(self, instances: int) -> None:
        self.came: list[int] = []
        self.begun = 0  # batches
        self.gathering: list[int] = []
        self.groups = 0  # that have closed
        self.waiting: deque[int] = deque()
        self.free: deque[float] = deque([-np.inf] * instances)  # since when, the longest idle first
        self.outstanding = 0

    def close(self) -> None:
        self.waiting.extend(self.gathering)
        self.gathering.clear()
        self.groups += 1


class _Run:
    def __init__(self, arrivals: Floats | Users, rules: Rules, service: Service, rng: np.random.Generator) -> None:
        self._rules, self._service, self._rng = rules, service, rng
        self._users = arrivals if isinstance(arrivals, Users) else None
        n = arrivals.requests if isinstance(arrivals, Users) else len(arrivals)
        self._before_s = self._after_s = rng.choice(service.outside_s, n) / 2  # half on the way there, half back
        self._spread = in_rounds(service.spread, n, rng)
        self._takes_s = [service.mean_s(size) for size in range(rules.max_batch_size + 1)]
        self._due = np.full(n, np.nan)
        self._start, self._done = np.full(n, np.nan), np.full(n, np.nan)
        self._batch, self._where = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._idle, self._busy_s = np.full(n, np.nan), 0.0
        self._replicas = [_Replica(rules.instances) for _ in range(rules.replicas)]
        self._events: list[tuple[float, int, int, tuple[int, ...]]] = []
        self._asked = 0
        if isinstance(arrivals, Users):
            for _ in range(min(arrivals.concurrency, n)):
                self._ask(0.0)
        else:
            for due_s in arrivals:
                self._ask(float(due_s))

    def run(self) -> Simulated:
        while self._events:
            now, kind, which, batch = heapq.heappop(self._events)
            if kind == ARRIVES:
                self._arrive(now, which)
                continue
            replica = self._replicas[which]
            if kind == DONE:
                self._finish(now, replica, batch)
                if self._service.handover_s:
                    continue  # it is free later
            if kind == IS_DUE:
                if batch[0] == replica.groups:  # else it was complete before
                    replica.close()
            else:
                replica.free.append(now)
            self._begin(now, which)
        came_s = self._due + self._before_s
        return Simulated(self._due, came_s, self._start, self._done, self._batch, self._where, self._idle, self._busy_s)

    def _ask(self, due_s: float) -> None:
        request, self._asked = self._asked, self._asked + 1
        self._due[request] = due_s
        heapq.heappush(self._events, (due_s + self._before_s[request], ARRIVES, request, ()))

    def _arrive(self, now: float, request: int) -> None:
        which = self._route(request)
        replica = self._replicas[which]
        self._where[request] = which
        rules = self._rules
        queued = len(replica.waiting) + len(replica.gathering)
        if rules.max_queue_size is not None and queued >= rules.max_queue_size:
            self._again(now + self._after_s[request])
            return
        replica.came.append(request)
        replica.outstanding += 1
        delay_s = rules.delay_s + self._service.notice_s
        if delay_s == 0 or rules.max_batch_size == 1:
            replica.waiting.append(request)
        else:
            replica.gathering.append(request)
            if len(replica.gathering) == 1:
                heapq.heappush(self._events, (now + delay_s, IS_DUE, which, (replica.groups,)))
            if len(replica.gathering) < rules.max_batch_size:
                return
            replica.close()
        self._begin(now, which)

    def _route(self, request: int) -> int:
        count = len(self._replicas)
        if count == 1:
            return 0
        if self._rules.routing == "round_robin":
            return request % count
        if self._rules.routing == "two_choices":
            asked: Sequence[int] = self._rng.choice(count, 2, replace=False).tolist()
        else:
            first = request % count  # ties go round
            asked = [(first + i) % count for i in range(count)]
        return min(asked, key=lambda i: self._replicas[i].outstanding)

    def _begin(self, now: float, which: int) -> None:
        replica, rules = self._replicas[which], self._rules
        while replica.free and replica.waiting:
            size = min(len(replica.waiting), rules.max_batch_size)
            batch = tuple(replica.waiting.popleft() for _ in range(size))
            idle_s = now - replica.free.popleft()
            service = self._service
            draw = self._spread[replica.came[replica.begun]]
            replica.begun += 1
            seconds = (self._takes_s[size] + service.wake_s * service.woken(idle_s)) * draw
            self._busy_s += seconds
            for request in batch:
                self._start[request], self._batch[request], self._idle[request] = now, size, idle_s
            heapq.heappush(self._events, (now + seconds, DONE, which, batch))
            if service.handover_s:
                heapq.heappush(self._events, (now + seconds + service.handover_s, IS_FREE, which, ()))

    def _finish(self, now: float, replica: _Replica, batch: tuple[int, ...]) -> None:
        replica.outstanding -= len(batch)
        for request in batch:
            self._done[request] = now + self._after_s[request]
            self._again(self._done[request])

    def _again(self, answered_s: float) -> None:
        if self._users is not None and self._asked < self._users.requests:
            self._ask(answered_s + self._users.think_s)
