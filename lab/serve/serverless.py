"""A runner that scales to zero: workers are started when requests find none free, and end when they were idle.

    acquire ──▶ a worker with room ──▶ release                       (warm)
       │                                  └── idle for idle_s ──▶ it ends
       └─ none ──▶ wait, and start one ──▶ ready ──▶ who waits is served      (cold)

A worker answers up to `concurrency` requests at a time, the fullest one that has room first, so that others become
idle. Another is started while more wait than those that are starting have room for, up to `max_workers`. `keep_warm`
of them are there from the beginning and stay; one that dies is started anew. A worker over its memory limit is refused
before it is started where its weights alone are larger; else it ends, by its own allocation or by the kernel
(lab/serve/cold/limit.py), and whoever waited is told, unless other workers can serve them. A worker that dies while it
answers loses its requests, and the next one starts another.

In one event loop; what blocks (a start, an end) runs in threads. Knows nothing of HTTP: see serverless_proxy.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lab.serve.cold.line import Failed
from lab.serve.eviction import Reason, Refused
from lab.spec import Serverless

State = Literal["starting", "ready", "ended"]
OnEvent = Callable[[str, dict[str, Any]], None]


class AnyWorker(Protocol):
    """What a started worker is to the runner (lab/serve/cold/started.py)."""

    pid: int
    port: int
    stages: Any

    @property
    def socket(self) -> Any: ...

    def why_ended(self) -> str: ...

    def stop(self) -> None: ...


class AnyStarter(Protocol):
    """What starts workers (lab/serve/cold/starter.py)."""

    @property
    def weight_bytes(self) -> int: ...

    def start(self, limit_s: float) -> AnyWorker: ...


@dataclass(eq=False)
class Slot:
    """A worker from the moment it was asked for. `busy` requests are in it; `kept`: it never ends for being idle."""

    number: int
    kept: bool
    asked_ns: int
    state: State = "starting"
    worker: AnyWorker | None = None
    busy: int = 0
    answered: int = 0
    idle_mark: int = 0  # which time it became idle
    ended: str = ""
    reason: Reason = "failed"  # of one that did not come up

    @property
    def port(self) -> int:
        assert self.worker is not None  # noqa: S101  only of one that is ready
        return self.worker.port


@dataclass(frozen=True)
class Had:
    """What a request got, and what it waited. `cold`: it waited for a worker to come up."""

    slot: Slot
    waited_ns: int
    cold: bool


@dataclass(eq=False)
class _Waiting:
    since_ns: int
    had: asyncio.Future[Had] = field(repr=False)


class Runner:
    """`on_event(kind, fields)` hears of every worker: worker_starting, worker_ready, worker_failed, worker_ended."""

    def __init__(self, starter: AnyStarter, how: Serverless, *, on_event: OnEvent = lambda kind, fields: None) -> None:
        self._starter, self.how, self._on_event = starter, how, on_event
        self._slots: list[Slot] = []
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._closing = False
        self.failure = ""  # why the last worker that was started did not come up
        self.refusal = self._why_never()

    def _why_never(self) -> str:
        limit, size = self.how.memory_limit_bytes, self._starter.weight_bytes
        if limit is None or size <= limit or self.how.start.mapped_weights:
            return ""
        return f"refused: its weights are {size:,} bytes, and a worker may take {limit:,}"

    async def open(self) -> None:
        """The workers that are kept warm, ready. Refused when one does not come up."""
        for _ in range(self.how.keep_warm):
            slot = self._asked(kept=True)
            await self._come_up(slot)
            if slot.state == "ended":
                raise Refused(slot.reason, slot.ended)

    async def acquire(self) -> Had:
        """A worker with room; whoever has it calls `release`. Refused with the reason, else."""
        began_ns = time.perf_counter_ns()
        if self._closing:
            raise Refused("closed", "the runner is closing")
        if self.refusal:
            raise Refused("too_large", self.refusal)
        if not self._waiting and (slot := self._with_room()) is not None:
            slot.busy += 1
            return Had(slot, 0, False)
        if len(self._waiting) >= self.how.queue_limit:
            raise Refused("queue_full", f"{len(self._waiting)} requests wait already; allowed: {self.how.queue_limit}")
        waiting = _Waiting(began_ns, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._scale()
        try:
            return await waiting.had
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting.had.done() and not waiting.had.cancelled() and waiting.had.exception() is None:
                self.release(waiting.had.result().slot)
            raise

    def release(self, slot: Slot) -> None:
        slot.busy -= 1
        slot.answered += 1
        if slot.state == "ready":
            self._hand_on(slot, cold=False)
            self._watch_idle(slot)

    def workers(self) -> list[Slot]:
        """Those that live, or come up."""
        return [slot for slot in self._slots if slot.state != "ended"]

    async def scale_to_zero(self) -> None:
        """End every worker that nobody keeps, busy or not, and wait until they are gone."""
        for slot in self.workers():
            if slot.state == "ready" and not slot.kept:
                self._end(slot, "scaled to zero")
        while any(not slot.kept for slot in self.workers()) or self._tasks:
            await asyncio.gather(*self._tasks)
            for slot in self.workers():  # one that came up meanwhile
                if slot.state == "ready" and not slot.kept:
                    self._end(slot, "scaled to zero")
        if not self._slots:
            self._refuse_all("closed", "the runner was scaled to zero")

    async def close(self) -> None:
        """Refuse who waits, end all workers."""
        self._closing = True
        self._refuse_all("closed", "the runner is closing")
        for slot in self.workers():
            if slot.state == "ready":
                self._end(slot, "closed")
        while self._tasks:
            await asyncio.gather(*self._tasks)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _with_room(self) -> Slot | None:
        fit = [slot for slot in self._slots if slot.state == "ready" and slot.busy < self.how.concurrency]
        return max(fit, key=lambda slot: slot.busy, default=None)

    def _scale(self) -> None:
        """Start workers while more wait than those that come up have room for."""
        coming = sum(slot.state == "starting" for slot in self._slots)
        while len(self._waiting) > coming * self.how.concurrency and len(self.workers()) < self.how.max_workers:
            coming += 1
            self._spawn(self._come_up(self._asked(kept=False)))

    def _asked(self, *, kept: bool) -> Slot:
        """A new worker's place, taken at once: who comes in the same moment must see that it is on its way."""
        self._count += 1
        slot = Slot(self._count, kept, time.perf_counter_ns())
        self._slots.append(slot)
        self._on_event("worker_starting", {"worker": slot.number, "kept": kept})
        return slot

    async def _come_up(self, slot: Slot) -> None:
        try:
            worker = await asyncio.to_thread(self._starter.start, self.how.start_limit_s)
        except (Failed, OSError) as error:
            kind = getattr(error, "kind", "error")
            slot.reason = "too_large" if kind == "memory" else "failed"
            self._gone(slot, f"{'killed: memory limit' if kind == 'memory' else 'failed'}: {error}")
            self.failure = slot.ended
            self._on_event("worker_failed", {"worker": slot.number, "why": kind, "text": slot.ended})
            if not self._slots:  # else whoever waits gets one of theirs
                self._refuse_all(slot.reason, slot.ended)
            return
        self.failure = ""
        slot.worker = worker
        if self._closing:
            self._end(slot, "closed")
            return
        slot.state = "ready"
        asyncio.get_running_loop().add_reader(worker.socket, self._died, slot)
        took_s = (time.perf_counter_ns() - slot.asked_ns) / 1e9
        stages = [[stage.name, stage.seconds] for stage in worker.stages]
        self._on_event("worker_ready", {"worker": slot.number, "seconds": took_s, "stages": stages, "pid": worker.pid})
        self._hand_on(slot, cold=True)
        self._watch_idle(slot)

    def _hand_on(self, slot: Slot, *, cold: bool) -> None:
        while self._waiting and slot.busy < self.how.concurrency:
            waiting = self._waiting.popleft()
            if not waiting.had.done():
                slot.busy += 1
                waiting.had.set_result(Had(slot, time.perf_counter_ns() - waiting.since_ns, cold))

    def _watch_idle(self, slot: Slot) -> None:
        if slot.busy or slot.kept or slot.state != "ready":
            return
        slot.idle_mark += 1
        asyncio.get_running_loop().call_later(self.how.idle_s, self._end_if_idle, slot, slot.idle_mark)

    def _end_if_idle(self, slot: Slot, mark: int) -> None:
        """Unless it was asked since: a request that is under way, or came and went, made another mark."""
        if slot.state == "ready" and not slot.busy and slot.idle_mark == mark:
            self._end(slot, "idle")

    def _died(self, slot: Slot) -> None:
        """Its process is gone, and nobody asked it to."""
        assert slot.worker is not None  # noqa: S101  it serves
        if slot.state == "ready":
            self._end(slot, f"killed: {slot.worker.why_ended()}" if slot.busy else slot.worker.why_ended())
            if slot.kept and not self._closing:
                self._spawn(self._come_up(self._asked(kept=True)))
            if self._waiting:
                self._scale()

    def _end(self, slot: Slot, why: str) -> None:
        worker = slot.worker
        assert worker is not None  # noqa: S101  only of one that was ready
        if slot.state == "ready":
            asyncio.get_running_loop().remove_reader(worker.socket)
        self._gone(slot, why)
        up_s = (time.perf_counter_ns() - slot.asked_ns) / 1e9
        told = {"worker": slot.number, "why": why, "up_s": up_s, "answered": slot.answered, "asked_ns": slot.asked_ns}
        self._on_event("worker_ended", told)
        self._spawn(asyncio.to_thread(worker.stop))

    def _gone(self, slot: Slot, why: str) -> None:
        slot.state, slot.ended = "ended", why
        self._slots.remove(slot)

    def _refuse_all(self, reason: Reason, text: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if not one.had.done():
                one.had.set_exception(Refused(reason, text))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
