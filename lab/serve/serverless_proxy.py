"""HTTP in front of a runner that scales to zero: a request waits for a worker, then passes through as it is.

    client ── POST /v2/models/NAME/infer ──> proxy: runner.acquire() ──> the worker's own port

Refusals are answers with Triton's {"error": …}: 404 another model, 507 a worker over its memory limit, 429 too many
wait, 503 it could not come up, or ended while it answered. GET /v2/serverless says which workers live. front.py is the
clients' side of it; proxy.py does the same before a Triton.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lab.serve import ports
from lab.serve.cold.http import BODY_LIMIT
from lab.serve.eviction import Refused
from lab.serve.front import CHUNKED, LENGTH, Front, Passed, Request, answered, pass_chunks, refusal, unless_gone
from lab.serve.serverless import Runner


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
        self._front = Front(self._answer, BODY_LIMIT)

    async def start(self, listening: socket.socket | None = None) -> int:
        """The port it listens on: that of `listening`, which is its own from now on, or a free one."""
        return await self._front.start(listening or ports.listen(ports.HOST, 0))

    async def close(self) -> None:
        await self._front.close()

    async def _answer(self, asked: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if asked.head.startswith((b"GET /v2/health", b"GET /v2/serverless")):
            writer.write(answered(200, "OK", self._told()))
            return True
        if asked.model != self._model:
            writer.write(answered(404, "Not Found", {"error": f"allowed: POST /v2/models/{self._model}/infer"}))
            return True
        try:
            had = await unless_gone(self._runner.acquire(), reader, lambda had: self._runner.release(had.slot))
        except Refused as error:
            self._tell(asked, time.perf_counter_ns() - asked.arrived_ns, error)
            writer.write(refusal(error))
            return True
        self._tell(asked, had.waited_ns, cold=had.cold)
        try:
            return await self._pass(had.slot.port, asked.head + asked.body, writer)
        finally:
            self._runner.release(had.slot)

    def _tell(self, asked: Request, waited_ns: int, refused: Refused | None = None, cold: bool = False) -> None:
        why = None if refused is None else refused.reason
        self._on_request(PassedCold(asked.arrived_ns, self._model, asked.number, waited_ns, why, cold))

    async def _pass(self, port: int, sent: bytes, writer: asyncio.StreamWriter) -> bool:
        """The worker's answer, bytes as they come, on a connection of its own; whether it came whole."""
        begun = False
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                up_writer.write(sent)
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
        return {"workers": workers, "refusal": self._runner.refusal, "failure": self._runner.failure}
