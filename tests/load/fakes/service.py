"""What a fake server does with a request: times, places, freezes and refusals that the tests know exactly.

Keeps its own book of what arrived and when: the independent truth that the load generator's records are held against.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field


class Refused(Exception):
    """To be answered with the status of this name (gRPC's) and text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass
class Service:
    """`seconds` for each request, `places` of them at a time in order of arrival (None: all at once); of those that
    wait at most `queue`, the rest are refused as Triton does. `frozen_s`: from when to when after the first arrival
    nothing goes on, as under SIGSTOP. `refuse`: refuse everything with this status and text. `silent`: accept
    requests and never answer. `refuse_every`: refuse each n-th. `together`:
    answer nothing before so many have been in flight at once. `answer_bytes`: how large each answer is."""

    seconds: float = 0.0
    places: int | None = None
    queue: int | None = None
    frozen_s: tuple[float, float] | None = None
    refuse: tuple[str, str] | None = None
    refuse_every: int | None = None
    silent: bool = False
    together: int | None = None
    answer_bytes: int = 6

    arrived_ns: list[int] = field(default_factory=list)
    answered_ns: list[int | None] = field(default_factory=list)
    """In order of arrival; None until then."""
    payloads: list[bytes] = field(default_factory=list)
    served: int = 0
    refused: int = 0
    cancelled: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    _places: asyncio.Semaphore | None = None
    _waiting: int = 0
    _complete: asyncio.Event | None = None

    _successor: Service | None = None

    def take_over(self, successor: Service) -> None:
        """From now on requests are the successor's."""
        self._successor = successor

    async def serve(self, payload: bytes) -> None:
        if self._successor is not None:
            await self._successor.serve(payload)
            return
        position = len(self.arrived_ns)
        self.arrived_ns.append(time.perf_counter_ns())
        self.answered_ns.append(None)
        self.payloads.append(payload)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            await self._serve(position + 1)
            self.answered_ns[position] = time.perf_counter_ns()
            self.served += 1
        except Refused:
            self.refused += 1
            raise
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    async def _serve(self, position: int) -> None:
        if self.refuse is not None:
            raise Refused(*self.refuse)
        if self.refuse_every is not None and position % self.refuse_every == 0:
            raise Refused("UNAVAILABLE", "Exceeds maximum queue size")
        if self.silent:
            await asyncio.Event().wait()
        if self.together is not None:
            self._complete = self._complete or asyncio.Event()
            if self.in_flight >= self.together:
                self._complete.set()
            await self._complete.wait()
        if self.places is None:
            await self._work()
            return
        self._places = self._places or asyncio.Semaphore(self.places)
        if self.queue is not None and self._places.locked() and self._waiting >= self.queue:
            raise Refused("UNAVAILABLE", "Exceeds maximum queue size")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._work()
        finally:
            self._places.release()

    async def _work(self) -> None:
        if self.frozen_s is not None:
            since_first = (time.perf_counter_ns() - self.arrived_ns[0]) / 1e9
            begin, end = self.frozen_s
            if begin <= since_first < end:
                await asyncio.sleep(end - since_first)
        if self.seconds:
            await asyncio.sleep(self.seconds)
