"""HTTP in front of a runner that scales to zero: a request waits for a worker, then passes through as it is.

    client ── POST /v2/models/NAME/infer ──> proxy: runner.acquire() ──> the worker's own port

Refusals are answers with Triton's {"error": …}: 404 another model, 507 a worker over its memory limit, 429 too many
wait, 503 it could not come up, or ended while it answered. GET /v2/serverless says which workers live. HTTP/1.1 with
Content-Length or chunks, as lab/serve/proxy.py, which does the same before a Triton.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lab.serve.cold.http import BODY_LIMIT
from lab.serve.eviction import Refused
from lab.serve.proxy import (
    CHUNKED,
    CLOSE,
    HEAD_LIMIT,
    INFERENCE,
    LENGTH,
    LOOK_S,
    NUMBER,
    STATUS,
    Passed,
    answered,
    pass_chunks,
)
from lab.serve.serverless import Had, Runner


@dataclass(frozen=True)
class PassedCold(Passed):
    """`cold`: it waited for a worker to come up."""

    cold: bool = False


class ServerlessProxy:
    """`start` it in a running event loop, `close` it there; the runner is the caller's."""

    def __init__(
        self, runner: Runner, model: str, *, on_request: Callable[[PassedCold], None] = lambda passed: None
    ) -> None:
        self._runner, self._model, self._on_request = runner, model, on_request
        self._server: asyncio.Server
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """The port it listens on."""
        self._server = await asyncio.start_server(self._client, host, port, limit=HEAD_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in one
        self._clients.add(task)
        try:
            while await self._request(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
            pass  # the client is gone, or says what is no HTTP, or we close
        finally:
            self._clients.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether another may come on this connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        arrived_ns, goes_on = time.perf_counter_ns(), not CLOSE.search(head)
        length = LENGTH.search(head)
        if CHUNKED.search(head) or (length and int(length[1]) > BODY_LIMIT):
            writer.write(
                answered(411, "Length Required", {"error": "allowed: a body with a Content-Length up to 64 MiB"})
            )
            return False
        body = await reader.readexactly(int(length[1])) if length else b""
        if head.startswith((b"GET /v2/health", b"GET /v2/serverless")):
            writer.write(answered(200, "OK", self._told()))
            return goes_on
        asked = INFERENCE.match(head)
        if asked is None or asked[1].decode(errors="replace") != self._model:
            writer.write(answered(404, "Not Found", {"error": f"allowed: POST /v2/models/{self._model}/infer"}))
            return goes_on
        number = NUMBER.search(head)
        refused: Refused | None = None
        had: Had | None = None
        try:
            had = await self._had(reader)
        except Refused as error:
            refused = error
        self._on_request(
            PassedCold(
                arrived_ns,
                self._model,
                int(number[1]) if number else None,
                time.perf_counter_ns() - arrived_ns if had is None else had.waited_ns,
                None if refused is None else refused.reason,
                had is not None and had.cold,
            )
        )
        if had is None:
            assert refused is not None  # noqa: S101
            writer.write(answered(*STATUS[refused.reason], {"error": str(refused)}))
            return goes_on
        try:
            return await self._pass(had.slot.port, head, body, writer) and goes_on
        finally:
            self._runner.release(had.slot)

    async def _had(self, reader: asyncio.StreamReader) -> Had:
        """A worker, unless the client goes away first."""
        wanted = asyncio.ensure_future(self._runner.acquire())
        try:
            while not (await asyncio.wait([wanted], timeout=LOOK_S))[0]:
                if reader.at_eof():
                    raise ConnectionResetError
            return wanted.result()
        except BaseException:
            if not wanted.cancel() and not wanted.cancelled() and wanted.exception() is None:
                self._runner.release(wanted.result().slot)
            raise

    async def _pass(self, port: int, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """The worker's answer, bytes as they come, on a connection of its own; whether it came whole."""
        begun = False
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                up_writer.write(head + body)
                answer = await up_reader.readuntil(b"\r\n\r\n")
                begun = True
                writer.write(answer)
                if length := LENGTH.search(answer):
                    writer.write(await up_reader.readexactly(int(length[1])))
                elif CHUNKED.search(answer):
                    await pass_chunks(up_reader, writer)
                return True
            finally:
                up_writer.close()
        except (OSError, asyncio.IncompleteReadError):
            if not begun:
                with suppress(OSError):
                    gone = {"error": "the worker ended while it answered"}
                    writer.write(answered(503, "Service Unavailable", gone))
            return not begun

    def _told(self) -> dict[str, object]:
        workers = [
            {"worker": slot.number, "state": slot.state, "busy": slot.busy, "answered": slot.answered}
            for slot in self._runner.workers()
        ]
        return {"workers": workers, "refusal": self._runner.refusal}
