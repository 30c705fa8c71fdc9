"""A gateway in a thread of the test, in front of the load generator's fakes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from lab.gateway.app import make_app
from lab.gateway.core import Gateway, Settings
from lab.gateway.edge import Edge
from lab.gateway.metrics import Metrics
from lab.spec import parse
from lab.track.routes import Routes
from lab.track.routing import Route
from tests.waiting import until


@dataclass
class Running:
    """`gateway` lives in another thread: read it, and `until` says when."""

    gateway: Gateway
    routes: Routes
    port: int
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> HTTPResponse:
        """Ask; the answer's head has come when this returns. Its connection is `answer.connection`."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("GET" if data is None else "POST", path, data, headers or {})
        answer = connection.getresponse()
        answer.connection = connection
        return answer

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
        """(status, what it says, its headers)."""
        answer = self.begin(path, body, headers)
        said = answer.read()
        kind = answer.headers["content-type"]
        return answer.status, json.loads(said) if kind == "application/json" else said.decode(), answer.headers

    def events(self, path: str, body: Any, headers: dict[str, str] | None = None) -> list[Any]:
        """The events of a stream, [DONE] as the text that it is."""
        _, said, _ = self.ask(path, body, headers)
        data = [line.removeprefix("data: ") for line in said.splitlines() if line]
        return [one if one == "[DONE]" else json.loads(one) for one in data]

    def settled(self) -> bool:
        """Nothing is under way."""
        return sum(self.gateway.in_flight.values()) == 0


def two_versions(url: str, model: str = "llm", share: float = 0.5, other: str | None = None) -> dict[str, Any]:
    """A route to versions 1 and 2 of a model, the second with that share, at another URL if one is given."""
    return {
        "model": model,
        "versions": [
            {"version": "1", "weight": 1 - share, "replicas": [{"url": url, "model": model}]},
            {"version": "2", "weight": share, "replicas": [{"url": other or url, "model": model}]},
        ],
    }


@contextmanager
def running(
    folder: Path, *routes: dict[str, Any], tokenizer: Path | None = None, drain_s: int | None = None, **settings: Any
) -> Iterator[Running]:
    """`drain_s`: how long it waits at its end for what is under way; for ever unless given."""
    known = Routes(folder)
    for route in routes:
        made = parse(Route, route)
        known.change(made.model, lambda _, made=made: made)
    gateway = Gateway(known, Settings(**settings))
    app = make_app(gateway, Edge(gateway, lambda replica: tokenizer))
    config = uvicorn.Config(
        app, port=0, log_level="error", loop="uvloop", http="httptools", timeout_graceful_shutdown=drain_s
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    until(lambda: server.started, "the gateway")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(gateway, known, port, server)
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("gateway")) as run:
        yield run


@pytest.fixture
def run_gateway(_shared: Running, tmp_path: Path) -> Callable[..., Any]:
    """`with run_gateway(route, …) as run`: a gateway with these routes and no others, that has counted nothing yet; the
    session's, or one of its own where settings are given."""

    @contextmanager
    def start(*routes: dict[str, Any], **settings: Any) -> Iterator[Running]:
        if settings:
            with running(tmp_path / "gateway", *routes, **settings) as run:
                yield run
            return
        known, gateway = _shared.routes, _shared.gateway
        for name in list(known.by_name):
            known.change(name, lambda _: None)
        for written in routes:
            made = parse(Route, written)
            known.change(made.model, lambda _, made=made: made)
        until(_shared.settled)
        gateway.metrics, gateway.entered = Metrics(), 0
        gateway.take_ended()
        yield _shared

    return start
