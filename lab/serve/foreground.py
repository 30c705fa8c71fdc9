"""A managed server in the foreground: `python -m lab serve`, until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from lab import stopping
from lab.errors import ModelError, ServerError
from lab.home import home
from lab.serve.triton import DEFAULT_PORTS, Server
from lab.spec import ModelSpec


def serve_forever(
    models: Sequence[ModelSpec] = (), beside: Callable[[Server], AbstractContextManager[object]] = nullcontext
) -> None:
    """Serve `models` until a signal, with `beside` open before they are loaded.

    A model that does not load is named and the others are served. ServerError when a managed server runs already, or
    when this one dies.
    """
    if (other := Server.attach()) is not None:
        raise ServerError(
            f"the lab's Triton runs already (pid {other.pid}, gRPC {other.grpc_url}); stop that one first"
        )
    asked_to_stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: asked_to_stop.set()) for number in signals]
    try:
        with stopping.heeding(asked_to_stop.is_set):
            server = Server.start(
                repository=home() / "repository", log=home() / "triton.log", wanted_ports=DEFAULT_PORTS
            )
        print(f"Triton (pid {server.pid}): gRPC {server.grpc_url}, {server.http_url}, {server.metrics_url}", flush=True)
        try:
            with suppress(stopping.Stopped), beside(server), stopping.heeding(asked_to_stop.is_set):
                _serve(server, models, asked_to_stop)
        finally:
            print(f"Triton {server.stop()}", flush=True)
    except stopping.Stopped:  # before it was up
        return
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _serve(server: Server, models: Sequence[ModelSpec], asked_to_stop: threading.Event) -> None:
    for spec in models:
        if asked_to_stop.is_set():
            return
        try:
            print(f"{spec.name} is ready after {server.load(spec):.1f} s", flush=True)
        except ModelError as error:
            print(error, file=sys.stderr, flush=True)
    while not asked_to_stop.wait(0.5):
        if died := server.died():
            raise ServerError(died)
