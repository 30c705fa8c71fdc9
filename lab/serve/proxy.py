"""An HTTP proxy before Triton that has each request's model loaded first: many models behind one budget of memory.

    client ── POST /v2/models/NAME/infer ──> proxy: residency.use(NAME) ──> Triton

Requests for a model that is loaded pass straight through, bytes as they are; one for another waits (residency.py).
Refusals are answers: 404 no such model, 507 it can never fit, 429 too many wait, 503 it could not be had in time or
does not load, each with Triton's {"error": …}. Everything else (health, metadata, the index) is passed on as it is;
GET /v2/residency says what is loaded. When Triton answers 500, the model's health is looked at, and a model whose
process is dead is unloaded, so that the next request loads it anew.

front.py is the clients' side of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from lab.serve import ports
from lab.serve.eviction import Refused
from lab.serve.front import (
    CHUNKED,
    CLOSE,
    HEAD_LIMIT,
    LENGTH,
    Front,
    Passed,
    Request,
    answered,
    pass_chunks,
    refusal,
    unless_gone,
)
from lab.serve.residency import Residency

BODY_LIMIT = 2**30
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """`start` it in a running event loop, `close` it there. `is_healthy(model)` may block and is called from a
    thread."""

    def __init__(
        self,
        residency: Residency,
        upstream: tuple[str, int],
        *,
        is_healthy: Callable[[str], bool] = lambda model: True,
        on_request: Callable[[Passed], None] = lambda passed: None,
    ) -> None:
        self.residency = residency
        self._upstream = upstream
        self._is_healthy = is_healthy
        self._on_request = on_request
        self._idle: list[Connection] = []
        self._front = Front(self._answer, BODY_LIMIT)
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """The port it listens on."""
        return await self._front.start(ports.listen(host, port))

    async def close(self) -> None:
        self._front.stop()
        await self.residency.close()  # who waits for a model is told so
        for check in self._checks.values():
            check.cancel()
        await self._front.close()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)
        for _, writer in self._idle:
            writer.close()

    async def _answer(self, asked: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        model = asked.model
        if model is None:
            if not asked.head.startswith(b"GET /v2/residency "):
                return await self._pass(asked, writer)
            writer.write(answered(200, "OK", self._told()))
            return True
        refused: Refused | None = None
        waited_ns = 0
        try:
            if not self.residency.hit(model):
                wanted = self.residency.acquire(model)
                waited_ns = await unless_gone(wanted, reader, lambda _: self.residency.release(model))
        except Refused as error:
            refused, waited_ns = error, time.perf_counter_ns() - asked.arrived_ns
        why = None if refused is None else refused.reason
        self._on_request(Passed(asked.arrived_ns, model, asked.number, waited_ns, why))
        if refused is not None:
            writer.write(refusal(refused))
            return True
        try:
            return await self._pass(asked, writer, model)
        finally:
            self.residency.release(model)

    # --- to Triton and back -------------------------------------------------------------------------------------

    async def _pass(self, asked: Request, writer: asyncio.StreamWriter, model: str | None = None) -> bool:
        """Triton's answer, bytes as they come."""
        try:
            (up_reader, up_writer), answer = await self._ask(asked.head, asked.body)
        except (OSError, asyncio.IncompleteReadError):
            writer.write(answered(503, "Service Unavailable", {"error": "Triton does not answer"}))
            return True
        whole = False
        try:
            writer.write(answer)
            if length := LENGTH.search(answer):
                left = int(length[1])
                while left:
                    part = await up_reader.read(min(left, 2**18))
                    if not part:
                        raise asyncio.IncompleteReadError(b"", left)
                    writer.write(part)
                    left -= len(part)
                    if left:
                        await writer.drain()
            elif CHUNKED.search(answer):
                await pass_chunks(up_reader, writer)
            whole = not CLOSE.search(answer)
        finally:
            if whole:
                self._idle.append((up_reader, up_writer))
            else:
                up_writer.close()
        await writer.drain()  # what is sent holds its model
        if model is not None and answer.startswith(b"HTTP/1.1 5") and model not in self._checks:
            self._checks[model] = asyncio.ensure_future(self._check(model))
        return True

    async def _ask(self, head: bytes, body: bytes) -> tuple[Connection, bytes]:
        """Send it on a connection that is free, else on a new one; the connection and the head of the answer. One that
        Triton has closed meanwhile is noticed here, before anything of an answer came, and another is taken."""
        while True:
            fresh = not self._idle
            reader, writer = await asyncio.open_connection(*self._upstream) if fresh else self._idle.pop()
            try:
                writer.write(head + body if len(body) < HEAD_LIMIT else head)
                if len(body) >= HEAD_LIMIT:
                    writer.write(body)
                return (reader, writer), await reader.readuntil(b"\r\n\r\n")
            except (OSError, asyncio.IncompleteReadError) as error:
                writer.close()
                if fresh or (isinstance(error, asyncio.IncompleteReadError) and error.partial):
                    raise

    async def _check(self, model: str) -> None:
        """After a server error: a model that is dead is unloaded, which Triton would never do."""
        try:
            if not await asyncio.to_thread(self._is_healthy, model):
                with suppress(Refused):
                    await self.residency.broken(model)
        finally:
            del self._checks[model]

    def _told(self) -> dict[str, object]:
        residency = self.residency
        return {
            "budget_bytes": residency.budget_bytes,
            "places": residency.places(),
            "least_recently_used_first": residency.resident(),
            "counts": dict(residency.counts),
        }
