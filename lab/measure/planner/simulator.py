"""A queue in front of servers that batch as Triton does, event by event.

Requests arrive at times given beforehand, or from users who wait for their answer. A replica has one queue and some
instances. An instance that is free takes a batch when the largest size is complete, when the longest waiting request
has waited for the delay, or, without a delay, whatever is there. A router in front of several replicas sends each
request to one of them when it comes (round robin, the least outstanding, the better of two at random; Mitzenmacher
2001, "The power of two choices in randomized load balancing").

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
    0. `replica`: which one got it."""

    due_s: Floats
    start_s: Floats
    done_s: Floats
    batch: Int64s
    replica: Int64s

    @property
    def latency_s(self) -> Floats:
        return self.done_s - self.due_s

    @property
    def refused(self) -> int:
        return int(np.isnan(self.done_s).sum())


ARRIVES, IS_FREE, IS_DUE = range(3)  # at the same time, in this order


def simulate(arrivals: Floats | Users, rules: Rules, service: Service, *, seed: int = 0) -> Simulated:
    """Serves them all. `arrivals`: ascending seconds, or users. InputError for rules that fit nothing."""
    for name in ("max_batch_size", "instances", "replicas"):
        if getattr(rules, name) < 1:
            raise InputError(f"{name} {getattr(rules, name)}: allowed is 1 or more")
    return _Run(arrivals, rules, service, np.random.default_rng(seed)).run()


class _Replica:
    def __init__(self, instances: int) -> None:
        self.waiting: deque[int] = deque()
        self.free = instances
        self.outstanding = 0
        self.woken_s = -1.0  # the time of the latest timer


class _Run:
    def __init__(self, arrivals: Floats | Users, rules: Rules, service: Service, rng: np.random.Generator) -> None:
        self._rules, self._service, self._rng = rules, service, rng
        self._users = arrivals if isinstance(arrivals, Users) else None
        n = arrivals.requests if isinstance(arrivals, Users) else len(arrivals)
        self._before_s = self._after_s = rng.choice(service.outside_s, n) / 2  # half on the way there, half back
        self._spread = rng.choice(service.spread, n)  # as many batches as requests at most
        self._batches = 0
        self._due = np.full(n, np.nan)
        self._start, self._done = np.full(n, np.nan), np.full(n, np.nan)
        self._batch, self._where = np.zeros(n, np.int64), np.zeros(n, np.int64)
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
            if kind == IS_FREE:
                replica.free += 1
                self._finish(now, replica, batch)
            self._begin(now, which)
        return Simulated(self._due, self._start, self._done, self._batch, self._where)

    def _ask(self, due_s: float) -> None:
        request, self._asked = self._asked, self._asked + 1
        self._due[request] = due_s
        heapq.heappush(self._events, (due_s + self._before_s[request], ARRIVES, request, ()))

    def _arrive(self, now: float, request: int) -> None:
        which = self._route(request)
        replica = self._replicas[which]
        self._where[request] = which
        if self._rules.max_queue_size is not None and len(replica.waiting) >= self._rules.max_queue_size:
            self._again(now + self._after_s[request])
            return
        replica.waiting.append(request)
        replica.outstanding += 1
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
            first = replica.waiting[0]
            ripe_s = self._due[first] + self._before_s[first] + rules.delay_s
            if size < rules.max_batch_size and now < ripe_s:
                if replica.woken_s != ripe_s:
                    replica.woken_s = ripe_s
                    heapq.heappush(self._events, (ripe_s, IS_DUE, which, ()))
                return
            batch = tuple(replica.waiting.popleft() for _ in range(size))
            seconds = self._service.mean_s(size) * self._spread[self._batches]
            self._batches += 1
            replica.free -= 1
            for request in batch:
                self._start[request], self._batch[request] = now, size
            heapq.heappush(self._events, (now + seconds, IS_FREE, which, batch))

    def _finish(self, now: float, replica: _Replica, batch: tuple[int, ...]) -> None:
        replica.outstanding -= len(batch)
        for request in batch:
            self._done[request] = now + self._after_s[request]
            self._again(self._done[request])

    def _again(self, answered_s: float) -> None:
        if self._users is not None and self._asked < self._users.requests:
            self._ask(answered_s + self._users.think_s)
