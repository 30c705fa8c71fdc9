"""An HTTP proxy before Triton that has each request's model loaded first: many models behind one budget of memory.

    client ── POST /v2/models/NAME/infer ──> proxy: residency.use(NAME) ──> Triton

Requests for a model that is loaded pass straight through, bytes as they are; one for another waits (residency.py).
Refusals are answers: 404 no such model, 507 it can never fit, 429 too many wait, 503 it could not be had in time or
does not load, each with Triton's {"error": …}. Everything else (health, metadata, the index) is passed on as it is;
GET /v2/residency says what is loaded. When Triton answers 500, the model's health is looked at, and a model whose
process is dead is unloaded, so that the next request loads it anew.

HTTP/1.1 with Content-Length or chunks, no pipelining, no TLS. A client that says which request it sends (header
Lab-Request: 17) finds it again in what `on_request` is told.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lab.serve.eviction import Reason, Refused
from lab.serve.residency import Residency

STATUS: dict[Reason, tuple[int, str]] = {
    "unknown": (404, "Not Found"),
    "too_large": (507, "Insufficient Storage"),
    "queue_full": (429, "Too Many Requests"),
    "too_late": (503, "Service Unavailable"),
    "failed": (503, "Service Unavailable"),
    "pinned": (409, "Conflict"),
    "closed": (503, "Service Unavailable"),
}
INFERENCE = re.compile(rb"POST /v2/models/([^/? ]+)(?:/versions/\d+)?/(?:infer|generate|generate_stream)[? ]")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
NUMBER = re.compile(rb"\r\nlab-request: *(\d+)", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
HEAD_LIMIT, BODY_LIMIT = 2**16, 2**30
LOOK_S = 0.25
"""How often a waiting request's connection is looked at: a client that is gone needs no model."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Passed:
    """One request for a model. `number` is the client's own (None: it gave none), `waited_ns` what it waited for its
    model (0 for a hit), `refused` why it was turned away."""

    arrived_ns: int
    model: str
    number: int | None
    waited_ns: int
    refused: Reason | None


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
        self._server: asyncio.Server
        self._clients: set[asyncio.Task[None]] = set()
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """The port it listens on."""
        self._server = await asyncio.start_server(self._client, host, port, limit=HEAD_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        await self.residency.close()
        for task in [*self._clients, *self._checks.values()]:
            task.cancel()
        await asyncio.gather(*self._clients, *self._checks.values(), return_exceptions=True)
        for _, writer in self._idle:
            writer.close()

    # --- one client's connection --------------------------------------------------------------------------------

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in one
        self._clients.add(task)
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
            pass  # the client is gone, or says what is no HTTP, or we close
        finally:
            self._clients.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether another may come on this connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        arrived_ns = time.perf_counter_ns()
        length = LENGTH.search(head)
        if CHUNKED.search(head) or (length and int(length[1]) > BODY_LIMIT):
            writer.write(
                answered(411, "Length Required", {"error": "allowed: a body with a Content-Length up to 1 GiB"})
            )
            return False
        body = await reader.readexactly(int(length[1])) if length else b""
        asked = INFERENCE.match(head)
        if asked is None:
            if head.startswith(b"GET /v2/residency "):
                writer.write(answered(200, "OK", self._told()))
                return True
            return await self._pass(head, body, writer, "")
        model = asked[1].decode(errors="replace")
        number = NUMBER.search(head)
        refusal: Refused | None = None
        try:
            waited_ns = await self._had(model, reader)
        except Refused as error:
            refusal, waited_ns = error, time.perf_counter_ns() - arrived_ns
        why = None if refusal is None else refusal.reason
        passed = Passed(arrived_ns, model, int(number[1]) if number else None, waited_ns, why)
        self._on_request(passed)
        if refusal is not None:
            writer.write(answered(*STATUS[refusal.reason], {"error": str(refusal)}))
            return True
        try:
            return await self._pass(head, body, writer, model)
        finally:
            self.residency.release(model)

    async def _had(self, model: str, reader: asyncio.StreamReader) -> int:
        """Acquire the model, unless the client goes away first."""
        if self.residency.hit(model):
            return 0
        wanted = asyncio.ensure_future(self.residency.acquire(model))
        try:
            while not (await asyncio.wait([wanted], timeout=LOOK_S))[0]:
                if reader.at_eof():
                    raise ConnectionResetError
            return wanted.result()
        except BaseException:
            if not wanted.cancel() and not wanted.cancelled() and wanted.exception() is None:
                self.residency.release(model)
            raise

    # --- to Triton and back -------------------------------------------------------------------------------------

    async def _pass(self, head: bytes, body: bytes, writer: asyncio.StreamWriter, model: str) -> bool:
        """Triton's answer, bytes as they come."""
        try:
            (up_reader, up_writer), answer = await self._ask(head, body)
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
        await writer.drain()
        if model and answer.startswith(b"HTTP/1.1 5") and model not in self._checks:
            self._checks[model] = asyncio.ensure_future(self._check(model))
        return not CLOSE.search(head)

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


async def pass_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A chunked body, chunk by chunk as it comes, to its end."""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        writer.write(line + await reader.readexactly(size + 2))
        await writer.drain()
        if size == 0:
            return


def answered(status: int, reason: str, body: object) -> bytes:
    said = json.dumps(body).encode()
    retry = "Retry-After: 1\r\n" if status in (429, 503) else ""
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n{retry}Content-Length: {len(said)}\r\n\r\n"
    return head.encode() + said
