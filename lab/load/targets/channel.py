"""One gRPC server, reached over a connection of our own (h2.py) that is replaced when it is lost.

While there is none, calls wait for the next attempt to connect, and are refused when it fails; attempts are RETRY_S
apart so that a dead server is not asked 100,000 times a second.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time

from lab.errors import InputError
from lab.load.targets.grpc_wire import Call, read_headers
from lab.load.targets.h2 import Connection, Ended, Received
from lab.measure.records import ERROR, REFUSED

RETRY_S = 0.1
SETTLE_S = 1.0
"""How long `open` waits for the server's first word; a frozen server must not hold up the start."""

TRAILERS_S = 1.0


class Channel:
    """`url` is HOST:PORT, or grpc://HOST:PORT. `ended` and `received` are the connection's."""

    def __init__(self, url: str, ended: Ended, received: Received | None = None) -> None:
        self._host, self._port = split_url(url)
        self.authority = f"{self._host}:{self._port}"
        self._ended = ended
        self._received = received
        self._connection: Connection | None = None  # takes new calls
        self._leaving: list[Connection] = []  # take none, and may still owe answers
        self._waiting: dict[int, Call] = {}  # calls without a connection
        self._connecting: asyncio.Task[None] | None = None
        self._next_try_s = 0.0

    async def open(self) -> None:
        await self._connect()
        if self._connection is not None:
            await asyncio.wait([self._connection.settled], timeout=SETTLE_S)

    def send(self, number: int, message: Call) -> None:
        if self._connection is not None:
            self._connection.send(number, message)
        else:
            self._waiting[number] = message
            self._connect()

    def cancel(self, number: int) -> None:
        if self._waiting.pop(number, None) is None:
            for connection in self._connections():
                connection.cancel(number)

    async def close(self) -> None:
        """Lets calls that are answered come to their end first: Triton keeps a model for ever (2.51) when a connection
        is closed between a stream's last response and its trailers."""
        if self._connecting is not None:
            self._connecting.cancel()
        until_s = time.monotonic() + TRAILERS_S
        while any(connection.in_flight for connection in self._connections()) and time.monotonic() < until_s:
            await asyncio.sleep(0.002)
        for connection in self._connections():
            connection.close()

    def _connections(self) -> list[Connection]:
        return self._leaving + ([self._connection] if self._connection is not None else [])

    def _connect(self) -> asyncio.Task[None]:
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(self._try_to_connect())
        return self._connecting

    async def _try_to_connect(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._next_try_s - loop.time())
        self._next_try_s = loop.time() + RETRY_S
        try:
            connection = await Connection.open(
                self._host.strip("[]"), self._port, self._ended, read_headers, self._left, self._received
            )
        except OSError as error:
            self._end_waiting(*unconnected(self.authority, error))
            return
        if connection.parting is not None:  # within the moment since it was made
            self._end_waiting(ERROR, connection.parting)
            return
        self._connection = connection
        waiting, self._waiting = self._waiting, {}
        for number, call in waiting.items():
            self.send(number, call)

    def _end_waiting(self, outcome: int, detail: str) -> None:
        now_ns = time.perf_counter_ns()
        self._connecting = None  # what `ended` sends in its turn waits for the next attempt
        waiting, self._waiting = self._waiting, {}
        for number in waiting:
            self._ended(number, outcome, detail, now_ns)

    def _left(self, connection: Connection) -> None:
        self._leaving = [old for old in self._leaving if old.in_flight]
        if connection.in_flight:
            self._leaving.append(connection)
        if connection is self._connection:
            self._connection = None


OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)
"""This process, or this machine, has no file or port left for one connection more."""


def unconnected(authority: str, error: OSError) -> tuple[int, str]:
    """Outcome and detail of a call for which there was no connection. A client that has run into its own limits was
    not refused by anybody."""
    if error.errno in OWN_LIMITS:
        return ERROR, f"the load generator's own limit: {reason(error)}"
    return REFUSED, f"{authority}: {reason(error)}"


def reason(error: OSError) -> str:
    """Why a connection could not be made, in the system's words."""
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)  # of names that are not found, whose numbers are not the system's


def split_url(url: str) -> tuple[str, int]:
    """("127.0.0.1", 8001) from "127.0.0.1:8001", with or without a scheme before it."""
    host, colon, port = url.partition("://")[2].rpartition(":") if "://" in url else url.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise InputError(f"url {url!r}: allowed is HOST:PORT, such as 127.0.0.1:8001")
    return host, int(port)
