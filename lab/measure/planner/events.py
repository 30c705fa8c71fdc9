"""The queue of simulator.py event by event: for users who wait for their answer, full queues and routers that look."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

import numpy as np

from lab.measure.pace import Floats
from lab.measure.planner.queueing import Rules, Simulated, Users
from lab.measure.planner.service import Service, in_rounds

ARRIVES, DONE, IS_FREE, IS_DUE = range(4)  # at the same time, in this order


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


class Events:
    def __init__(self, arrivals: Floats | Users, rules: Rules, service: Service, rng: np.random.Generator) -> None:
        self._rules, self._service, self._rng = rules, service, rng
        self._users = arrivals if isinstance(arrivals, Users) else None
        n = arrivals.requests if isinstance(arrivals, Users) else len(arrivals)
        self._before_s = self._after_s = rng.choice(service.outside_s, n) / 2  # half on the way there, half back
        self._spread = in_rounds(service.spread, n, rng)
        # Users take as long as one after the other would, or less.
        span_s = n * service.mean_s(1) if isinstance(arrivals, Users) else float(arrivals[-1]) if n else 0.0
        self._clocks = service.clocks(rules.replicas, span_s, rng, batched=rules.max_batch_size > 1)
        self._takes_s, self._hands_s = service.seconds(rules.max_batch_size)
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
                if self._service.handover:
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
            free_s, service = replica.free.popleft(), self._service
            clock = self._clocks[which] if self._clocks else None
            idle_s = clock.worked(free_s, now) if clock is not None and service.wake_s else now - free_s
            draw = self._spread[replica.came[replica.begun]]
            replica.begun += 1
            work_s = (self._takes_s[size] + service.wake_s * service.woken(idle_s)) * draw
            done_s = now + work_s if clock is None else clock.after(now, work_s)
            self._busy_s += done_s - now
            for request in batch:
                self._start[request], self._batch[request], self._idle[request] = now, size, idle_s
            heapq.heappush(self._events, (done_s, DONE, which, batch))
            if service.handover:
                after_s = work_s + self._hands_s[size]
                free_s = now + after_s if clock is None else clock.after(now, after_s)
                heapq.heappush(self._events, (free_s, IS_FREE, which, ()))

    def _finish(self, now: float, replica: _Replica, batch: tuple[int, ...]) -> None:
        replica.outstanding -= len(batch)
        for request in batch:
            self._done[request] = now + self._after_s[request]
            self._again(self._done[request])

    def _again(self, answered_s: float) -> None:
        if self._users is not None and self._asked < self._users.requests:
            self._ask(answered_s + self._users.think_s)
