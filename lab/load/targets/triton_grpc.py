"""Triton over gRPC: tensors become serialized ModelInferRequests, sent over a connection of our own (h2.py).

Keeps one connection and replaces it when it is lost. While there is none, requests wait for the next attempt to
connect, and are refused when it fails; attempts are RETRY_S apart so that a dead server is not asked 100,000 times a
second. Messages come from tritonclient's own protobuf classes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from lab.errors import InputError
from lab.load.targets import Done, Tensors
from lab.load.targets.grpc_wire import Call, Method, read_headers
from lab.load.targets.h2 import Connection
from lab.measure.records import ERROR, REFUSED

PATH = "/inference.GRPCInferenceService/ModelInfer"
RETRY_S = 0.1
SETTLE_S = 1.0
"""How long `open` waits for the server's first word; a frozen server must not hold up the start."""


class TritonGrpc:
    """`url` is HOST:PORT, or grpc://HOST:PORT."""

    def __init__(self, url: str, done: Done) -> None:
        self._host, self._port = split_url(url)
        self._method = Method(f"{self._host}:{self._port}", PATH)
        self._done = done
        self._connection: Connection | None = None  # takes new calls
        self._leaving: list[Connection] = []  # take none, and may still owe answers
        self._waiting: dict[int, Call] = {}  # calls without a connection
        self._connecting: asyncio.Task[None] | None = None
        self._next_try_s = 0.0

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Call]:
        return [self._method.call(infer_request(model, request)) for request in requests]

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
        if self._connecting is not None:
            self._connecting.cancel()
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
            connection = await Connection.open(self._host, self._port, self._done, read_headers, self._left)
        except OSError as error:
            self._end_waiting(REFUSED, f"{self._host}:{self._port}: {reason(error)}")
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
        self._connecting = None  # what `done` sends in its turn waits for the next attempt
        waiting, self._waiting = self._waiting, {}
        for number in waiting:
            self._done(number, outcome, detail, now_ns)

    def _left(self, connection: Connection) -> None:
        self._leaving = [old for old in self._leaving if old.in_flight]
        if connection.in_flight:
            self._leaving.append(connection)
        if connection is self._connection:
            self._connection = None


def infer_request(model: str, request: Tensors) -> bytes:
    """A serialized ModelInferRequest; arrays float32, int32, … as they are, object arrays of str or bytes as BYTES.

    Two serialized messages one behind the other are their merger (protobuf's encoding says so), so what requests of
    one shape have in common is serialized once."""
    common = _described(model, tuple((name, array.dtype, array.shape) for name, array in request.items()))
    contents = service_pb2.ModelInferRequest(raw_input_contents=[raw(array) for array in request.values()])
    return common + bytes(contents.SerializeToString())


@lru_cache(maxsize=4_096)
def _described(model: str, tensors: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, dtype, shape in tensors:
        message.inputs.add(name=name, datatype=np_to_triton_dtype(dtype), shape=shape)
    return bytes(message.SerializeToString())


def raw(array: np.ndarray) -> bytes:
    """The array's elements as Triton's raw tensor format has them."""
    return bytes(serialize_byte_tensor(array).item()) if array.dtype.kind in "OSU" else array.tobytes()


def reason(error: OSError) -> str:
    """Why a connection could not be made, in the system's words."""
    return os.strerror(error.errno) if error.errno else str(error)


def split_url(url: str) -> tuple[str, int]:
    """("127.0.0.1", 8001) from "127.0.0.1:8001", with or without a scheme before it."""
    host, colon, port = url.partition("://")[2].rpartition(":") if "://" in url else url.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise InputError(f"url {url!r}: allowed is HOST:PORT, such as 127.0.0.1:8001")
    return host, int(port)
