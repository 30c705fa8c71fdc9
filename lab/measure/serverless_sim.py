"""A runner that scales to zero, simulated: which requests are cold, how long they take, which seconds are paid. Pure.

The same rules as lab/serve/serverless.py: the fullest worker with room first, another one started while more wait than
those that come up have room for, first come first served, an end after `idle_s` without a request. Service and cold
start times are drawn from those that were measured, so what is modelled is the arrivals of hours or days, and nothing
else. A worker answers several requests as fast as one: how much they slow each other down is in the measured times only
as far as it was so when they were measured.

For one worker without service or start times a request is cold exactly when the gap before it is longer than idle_s:
under Poisson arrivals exp(-rate × idle_s) of them, and the worker is up 1 - exp(-rate × idle_s) of the time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ARRIVE, READY, DONE, IDLE = range(4)


@dataclass(frozen=True)
class Rules:
    """See lab.spec.Serverless."""

    idle_s: float
    concurrency: int = 1
    max_workers: int = 1
    keep_warm: int = 0


@dataclass(frozen=True)
class Simulated:
    """By request, in order of arrival; seconds are sums over workers, from the first arrival to `span_s` later."""

    latency_s: Floats
    cold: npt.NDArray[np.bool_]
    starts: int
    start_s: float  # workers coming up
    busy_s: float  # with a request or more
    idle_s: float  # up, and waiting
    span_s: float

    @property
    def up_s(self) -> float:
        return self.start_s + self.busy_s + self.idle_s

    @property
    def cold_fraction(self) -> float | None:
        return float(self.cold.mean()) if len(self.cold) else None


@dataclass(eq=False)
class _Worker:
    kept: bool
    asked_s: float
    ready_s: float
    busy: int = 0
    since_s: float = 0.0  # of its present state: busy or idle
    mark: int = 0
    up: bool = False


def simulate(
    arrivals_s: Sequence[float] | Floats,
    service_s: Sequence[float] | Floats,
    cold_s: Sequence[float] | Floats,
    rules: Rules,
    *,
    seed: int = 0,
    span_s: float | None = None,
) -> Simulated:
    """`arrivals_s` ascend from any origin; `service_s` and `cold_s` are measured times to draw from. `span_s`: how long
    is looked at, to the last arrival and `idle_s` unless given."""
    return _Run(np.asarray(arrivals_s, float), service_s, cold_s, rules, seed, span_s).result()


class _Run:
    def __init__(
        self,
        arrivals_s: Floats,
        service_s: Sequence[float] | Floats,
        cold_s: Sequence[float] | Floats,
        rules: Rules,
        seed: int,
        span_s: float | None,
    ) -> None:
        self.rules, self.arrivals = rules, arrivals_s
        first = float(arrivals_s[0]) if len(arrivals_s) else 0.0
        last = float(arrivals_s[-1]) if len(arrivals_s) else 0.0
        self.begin = first
        self.end = first + span_s if span_s is not None else last + rules.idle_s
        random = np.random.default_rng(seed)
        self.service = random.choice(np.asarray(service_s, float), len(arrivals_s)) if len(arrivals_s) else arrivals_s
        self.cold_times = random.choice(np.asarray(cold_s, float), max(len(arrivals_s), 1))
        self.latency, self.cold = np.zeros(len(arrivals_s)), np.zeros(len(arrivals_s), bool)
        self.workers: list[_Worker] = []
        self.waiting: deque[int] = deque()
        self.events: list[tuple[float, int, int, object]] = []
        self.order = 0
        self.starts = 0
        self.totals = {"start": 0.0, "busy": 0.0, "idle": 0.0}

    def result(self) -> Simulated:
        for _ in range(self.rules.keep_warm):
            self._up(_Worker(True, self.begin, self.begin), self.begin)
        for number, at in enumerate(self.arrivals.tolist()):
            self._at(at, ARRIVE, number)
        while self.events:
            at, kind, _, what = heapq.heappop(self.events)
            self._happens(at, kind, what)
        for worker in list(self.workers):
            self._ends(worker, max(self.end, worker.since_s))
        return Simulated(
            self.latency,
            self.cold,
            self.starts,
            self.totals["start"],
            self.totals["busy"],
            self.totals["idle"],
            self.end - self.begin,
        )

    def _at(self, at: float, kind: int, what: object) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, kind, self.order, what))

    def _happens(self, at: float, kind: int, what: object) -> None:
        if kind == ARRIVE:
            assert isinstance(what, int)  # noqa: S101  by its kind
            worker = max(
                (w for w in self.workers if w.up and w.busy < self.rules.concurrency),
                key=lambda w: w.busy,
                default=None,
            )
            if worker is not None and not self.waiting:
                self._serve(worker, what, at, cold=False)
            else:
                self.waiting.append(what)
                self._scale(at)
        elif kind == READY:
            assert isinstance(what, _Worker)  # noqa: S101  by its kind
            self._up(what, at)
        elif kind == DONE:
            assert isinstance(what, _Worker)  # noqa: S101  by its kind
            if what.busy == 1:
                self._turn(what, at)
            what.busy -= 1
            self._hand_on(what, at, cold=False)
            self._watch(what, at)
        elif kind == IDLE:
            assert isinstance(what, tuple)  # noqa: S101  by its kind
            worker, mark = what
            if worker.up and not worker.busy and worker.mark == mark:
                self._ends(worker, at)

    def _up(self, worker: _Worker, at: float) -> None:
        if worker not in self.workers:
            self.workers.append(worker)
        worker.up, worker.since_s = True, at
        self.totals["start"] += max(min(at, self.end) - min(worker.asked_s, self.end), 0.0)
        self._hand_on(worker, at, cold=True)
        self._watch(worker, at)

    def _scale(self, at: float) -> None:
        coming = sum(not worker.up for worker in self.workers)
        while len(self.waiting) > coming * self.rules.concurrency and len(self.workers) < self.rules.max_workers:
            coming += 1
            took = float(self.cold_times[self.starts % len(self.cold_times)])
            worker = _Worker(False, at, at + took)
            self.starts += 1
            self.workers.append(worker)
            self._at(worker.ready_s, READY, worker)

    def _hand_on(self, worker: _Worker, at: float, *, cold: bool) -> None:
        while self.waiting and worker.busy < self.rules.concurrency:
            self._serve(worker, self.waiting.popleft(), at, cold=cold)

    def _serve(self, worker: _Worker, number: int, at: float, *, cold: bool) -> None:
        if not worker.busy:
            self._turn(worker, at)
        worker.busy += 1
        done = at + float(self.service[number])
        self.latency[number], self.cold[number] = done - self.arrivals[number], cold
        self._at(done, DONE, worker)

    def _turn(self, worker: _Worker, at: float) -> None:
        """From idle to busy, or back: what was until now is counted, within the span."""
        state = "busy" if worker.busy else "idle"
        self.totals[state] += max(min(at, self.end) - min(worker.since_s, self.end), 0.0)
        worker.since_s = at

    def _watch(self, worker: _Worker, at: float) -> None:
        if not worker.busy and not worker.kept:
            worker.mark += 1
            self._at(at + self.rules.idle_s, IDLE, (worker, worker.mark))

    def _ends(self, worker: _Worker, at: float) -> None:
        if worker.up:
            self._turn(worker, at)
        self.workers.remove(worker)
