"""The clients' side of the lab's two HTTP proxies: connections, requests one after the other, answers of our own.

    client ── POST /v2/models/NAME/infer ──> Front ── Request ──> the proxy's `answer` ──> whoever serves NAME

proxy.py stands before a Triton whose models are loaded when they are asked for, serverless_proxy.py before workers that
come and go. HTTP/1.1 with Content-Length, no pipelining, no TLS. A client that says which request it sends (header
Lab-Request: 17) finds it again in what the proxy tells of it.

Knows neither of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from lab.serve.eviction import Reason, Refused

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
HEAD_LIMIT = 2**16
LOOK_S = 0.25
"""How often a waiting request's connection is looked at: for a client that is gone nothing needs to come up."""

T = TypeVar("T")


@dataclass(frozen=True)
class Passed:
    """One request for a model. `number` is the client's own (None: it gave none), `waited_ns` what it waited for its
    model (0 for a hit), `refused` why it was turned away."""

    arrived_ns: int
    model: str
    number: int | None
    waited_ns: int
    refused: Reason | None


@dataclass(frozen=True)
class Request:
    """Bytes as they came; `arrived_ns` (perf_counter_ns) is when its head was whole."""

    head: bytes
    body: bytes
    arrived_ns: int

    @property
    def model(self) -> str | None:
        """The one that is to answer; None where it asks something else."""
        asked = INFERENCE.match(self.head)
        return None if asked is None else asked[1].decode(errors="replace")

    @property
    def number(self) -> int | None:
        number = NUMBER.search(self.head)
        return int(number[1]) if number else None


Answer = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Answers one request of a client's connection; whether another may come on it."""


class Front:
    """`start` it in a running event loop; there `stop` it, which takes no more connections, and `close` it, which ends
    those that there are."""

    def __init__(self, answer: Answer, body_limit: int) -> None:
        self._answer, self._body_limit = answer, body_limit
        self._server: asyncio.Server
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket) -> int:
        """The port it listens on, by a socket that is its own from now on (ports.listen)."""
        self._server = await asyncio.start_server(self._client, sock=listening, limit=HEAD_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        self._server.close()

    async def close(self) -> None:
        self.stop()
        for task in self._clients:
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
        head = await reader.readuntil(b"\r\n\r\n")
        arrived_ns = time.perf_counter_ns()
        length = LENGTH.search(head)
        if CHUNKED.search(head) or (length and int(length[1]) > self._body_limit):
            allowed = f"allowed: a body with a Content-Length up to {self._body_limit:,} bytes"
            writer.write(answered(411, "Length Required", {"error": allowed}))
            return False
        body = await reader.readexactly(int(length[1])) if length else b""
        return await self._answer(Request(head, body, arrived_ns), reader, writer) and not CLOSE.search(head)


async def unless_gone(had: Coroutine[Any, Any, T], reader: asyncio.StreamReader, give_back: Callable[[T], None]) -> T:
    """What `had` waits for, unless the client goes away first, or we close: then what came all the same is given
    back. Refused as `had` says."""
    wanted = asyncio.ensure_future(had)
    try:
        while not (await asyncio.wait([wanted], timeout=LOOK_S))[0]:
            if reader.at_eof():
                raise ConnectionResetError
        return wanted.result()
    except BaseException:
        if not wanted.cancel() and not wanted.cancelled() and wanted.exception() is None:
            give_back(wanted.result())
        raise


async def pass_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A chunked body, chunk by chunk as it comes, to its end."""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        writer.write(line + await reader.readexactly(size + 2))
        await writer.drain()
        if size == 0:
            return


def refusal(error: Refused) -> bytes:
    return answered(*STATUS[error.reason], {"error": str(error)})


def answered(status: int, reason: str, body: object) -> bytes:
    said = json.dumps(body).encode()
    retry = "Retry-After: 1\r\n" if status in (429, 503) else ""
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n{retry}Content-Length: {len(said)}\r\n\r\n"
    return head.encode() + said
