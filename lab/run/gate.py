"""The proxy and the residency of a fleet, in a thread with an event loop of its own, for callers that have none.

    with Gate(server, models, budget_bytes, folder=folder) as gate:
        gate.acquire("digits_1"); gate.release("digits_1")
        … load goes to gate.url …

Writes what happens into the run folder, if there is one: each swap as an event, and what each request waited for.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import pyarrow as pa
import uvloop

from lab.errors import InputError
from lab.measure.records import WAITS
from lab.measure.words import format_bytes
from lab.run.folder import RunFolder
from lab.run.footprints import TritonShelf
from lab.run.parked import ParkingShelf
from lab.serve import weights
from lab.serve.front import Passed
from lab.serve.proxy import Proxy
from lab.serve.residency import Residency
from lab.serve.triton import Server
from lab.spec import ModelSpec, Store

FLUSH_S = 0.5
CALL_LIMIT_S = 300.0
CLOSE_LIMIT_S = 20.0

T = TypeVar("T")

UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_size(text: str) -> int:
    """Bytes of "500MiB", "1.5 GiB", "800000000"; InputError for anything else."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].lower() not in UNITS or not float(found[1]):
        raise InputError(f"size {text!r}: allowed are a number and B, KiB, MiB, GiB, kB, MB or GB, such as 500MiB")
    return round(float(found[1]) * UNITS[found[2].lower()])


@contextmanager
def behind_budget(
    server: Server,
    models: Sequence[ModelSpec],
    budget_bytes: int,
    pinned: Sequence[str] = (),
    evict_to: Store = "disk",
) -> Iterator[Gate]:
    """`python -m lab serve --budget …`: these models, loaded when they are asked for; the pinned ones at once."""
    for spec in models:
        weights.prepare(spec)
    with Gate(server, models, budget_bytes, evict_to=evict_to) as gate:
        for name in pinned:
            gate.pin(name)
            gate.acquire(name)
            gate.release(name)
        names = ", ".join(spec.name for spec in models)
        print(f"{names} behind a budget of {format_bytes(budget_bytes)}: {gate.url}", flush=True)
        yield gate


@dataclass(frozen=True)
class Limits:
    """See lab/serve/residency.py."""

    wait_s: float = 30.0
    queue_limit: int = 1024
    retry_s: float = 5.0


class Gate:
    """`url` is where requests go. Calls block until they are done; they raise Refused as the residency does."""

    def __init__(
        self,
        server: Server,
        models: Sequence[ModelSpec],
        budget_bytes: int,
        *,
        folder: RunFolder | None = None,
        limits: Limits = Limits(),
        port: int = 0,
        evict_to: Store = "disk",
    ) -> None:
        self.shelf = (ParkingShelf if evict_to == "host" else TritonShelf)(server, models)
        self._folder = folder
        self._passed: list[Passed] = []
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate", daemon=True)
        self._thread.start()
        host, http_port = server.http_url.removeprefix("http://").rsplit(":", 1)

        async def open_gate() -> tuple[Residency, Proxy, int]:
            residency = Residency(self.shelf, budget_bytes, self.shelf.specs, on_event=self._swapped, **asdict(limits))
            proxy = Proxy(
                residency, (host, int(http_port)), is_healthy=self.shelf.is_healthy, on_request=self._passed.append
            )
            opened = await proxy.start(port=port)
            if folder is not None:
                self._loop.call_later(FLUSH_S, self._flush_again)
            return residency, proxy, opened

        self.residency, self._proxy, self.port = self.call(open_gate())
        self.url = f"http://127.0.0.1:{self.port}"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_LIMIT_S)

    def acquire(self, name: str) -> int:
        """Nanoseconds waited until the model is loaded; it stays until `release`."""
        return self.call(self.residency.acquire(name))

    def release(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self.residency.release, name)

    def pin(self, name: str, pinned: bool = True) -> None:
        async def pin() -> None:
            self.residency.pin(name, pinned)

        self.call(pin())

    def unload(self, name: str) -> None:
        self.call(self.residency.unload(name))

    def set_budget(self, budget_bytes: int) -> None:
        self.call(self.residency.set_budget(budget_bytes))

    def flush(self) -> None:
        """Write down what has passed until now."""
        passed, self._passed[:] = list(self._passed), []
        if passed and self._folder is not None:
            columns = {
                "t_ns": [p.arrived_ns for p in passed],
                "model": [p.model for p in passed],
                "request": [p.number for p in passed],
                "waited_ns": [p.waited_ns for p in passed],
                "refused": [p.refused for p in passed],
            }
            self._folder.append("waits", pa.table(columns, schema=WAITS))

    def close(self) -> None:
        """Refuse who waits, let a swap end, and stop listening; loaded models stay loaded, parked ones go."""
        try:
            with suppress(TimeoutError):  # Triton may load for minutes; its own stop ends that
                asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result(CLOSE_LIMIT_S)
            asyncio.run_coroutine_threadsafe(asyncio.to_thread(self.flush), self._loop).result(CLOSE_LIMIT_S)
            self.shelf.clear()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_LIMIT_S)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush_again(self) -> None:
        self.flush()
        self._loop.call_later(FLUSH_S, self._flush_again)

    def _swapped(self, kind: str, model: str, fields: dict[str, Any]) -> None:
        if self._folder is not None:
            self._folder.event(f"model_{kind}", model=model, **fields)
