"""Fake Tritons: gRPC's own server and aiohttp's, each in a thread with a loop of its own, in front of a Service."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from aiohttp import web
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.load.fakes.service import Refused, Service
from tests.waiting import LIMIT_S

HTTP_STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "UNAVAILABLE": 503, "INTERNAL": 500}


class FakeServer:
    """A running fake. `url` is HOST:PORT; `kill` closes every connection at once."""

    def __init__(
        self, service: Any, start: Callable[[int], Awaitable[tuple[int, Callable[[], Awaitable[Any]]]]], port: int
    ) -> None:
        self.service = service
        self._loop = asyncio.new_event_loop()
        self._stop: Callable[[], Awaitable[Any]] | None = None
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.port, self._stop = self._in_loop(start(port))
        self.url = f"127.0.0.1:{self.port}"

    def _in_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def kill(self) -> None:
        if self._stop is not None:
            stop, self._stop = self._stop, None
            self._in_loop(stop())
            self._loop.call_soon_threadsafe(self._loop.stop)


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, service: Service) -> None:
        self.service = service
        self.requests: list[service_pb2.ModelInferRequest] = []

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        try:
            await self.service.serve(request.raw_input_contents[0])
        except Refused as refused:
            await context.abort(grpc.StatusCode[refused.status], refused.text)
        bulk = bytes(self.service.answer_bytes)
        return service_pb2.ModelInferResponse(model_name=request.model_name, raw_output_contents=[bulk])


@contextmanager
def grpc_server(service: Service, *, port: int = 0, options: Any = ()) -> Iterator[FakeServer]:
    async def start(port: int) -> tuple[int, Callable[[], Awaitable[Any]]]:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(service), server)
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        return bound, lambda: server.stop(None)

    server = FakeServer(service, start, port)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def http_server(service: Service) -> Iterator[FakeServer]:
    async def infer(request: web.Request) -> web.Response:
        body = await request.read()
        size = int(request.headers["Inference-Header-Content-Length"])
        described = json.loads(body[:size])["inputs"]
        assert sum(i["parameters"]["binary_data_size"] for i in described) == len(body) - size
        try:
            await service.serve(body[size:])
        except Refused as refused:
            return web.json_response({"error": refused.text}, status=HTTP_STATUS[refused.status])
        return web.Response(body=bytes(service.answer_bytes))

    with http_app([web.post("/v2/models/{model}/infer", infer)], service) as server:
        yield server


@contextmanager
def http_app(routes: Sequence[web.RouteDef], service: Any) -> Iterator[FakeServer]:
    """aiohttp's server with these routes; a handler is cancelled when its client goes."""

    async def start(port: int) -> tuple[int, Callable[[], Awaitable[Any]]]:
        app = web.Application()
        app.router.add_routes(routes)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)  # 0 is "no limit"
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()

        async def stop() -> None:
            for connection in list(runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

        return runner.addresses[0][1], stop

    server = FakeServer(service, start, 0)
    try:
        yield server
    finally:
        server.kill()


def free_port() -> int:
    """A port where nobody listens, and no other test will: it stays bound as long as the tests run."""
    _BOUND.append(socket.socket())
    _BOUND[-1].bind(("127.0.0.1", 0))
    return int(_BOUND[-1].getsockname()[1])


_BOUND: list[socket.socket] = []
