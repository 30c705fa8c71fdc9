"""`python -m lab gateway`: the gateway's process, with the guard of its rollouts beside it.

In front of the lab's Triton (the one that runs, or one of its own, which ends with it), of other servers by URL, or
both. Routes stand in LAB_HOME/gateway/routes.json and outlive it; what is served and has no route yet gets one under
its own name. gateway.json beside the routes says where it listens while it runs: one gateway follows them at a time,
since two guards on half of the requests each would both decide.

Asked to stop (SIGTERM, Ctrl-C) it takes no new connections and lets answers over HTTP come to their end, for `drain_s`
at most; what is left then is told so, in place of being cut. WebSockets are closed at once, with 1012, "service
restart". The next gateway may begin meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from lab import priority
from lab.errors import InputError, ServerError
from lab.gateway.app import make_app
from lab.gateway.core import Gateway, Settings
from lab.gateway.edge import Edge
from lab.gateway.keeping import Kept
from lab.home import home
from lab.run.serving import at
from lab.serve import ports, record
from lab.spec import ModelSpec
from lab.track.canary import Watch
from lab.track.routes import Routes
from lab.track.routing import LAB, Replica, Route, to_one

PROJECT = Path(__file__).parents[2]
TICK_S = 1.0
DRAIN_S, KEEP_ALIVE_S = 30, 75
"""How long answers under way may take when it is asked to stop, and how long a connection may be idle."""
BACKLOG = 2048
"""Connections that nobody has taken yet."""


@dataclass(frozen=True)
class Wishes:
    """The command's. `models` are loaded into the lab's Triton, which is left alone where only `urls` are given.
    `budget_bytes`: models are loaded when they are asked for. `folder`: where the routes stand, which are taken as they
    are there: a gateway of its own beside that of LAB_HOME."""

    models: Sequence[ModelSpec] = ()
    urls: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    budget_bytes: int | None = None
    folder: Path | None = None
    drain_s: int = DRAIN_S
    settings: Settings = field(default_factory=Settings)
    seed: int = 0


def serve(wishes: Wishes) -> None:
    """Until SIGINT or SIGTERM. InputError for a port that is taken and for routes that another gateway follows,
    ServerError when there is nothing to serve."""
    routes = Routes(wishes.folder)
    if (follower := routes.gateway()) is not None:
        raise InputError(f"a gateway at {follower} follows these routes; stop it, or take others: --routes FOLDER")
    with suppress(OSError):  # it serves, as Triton does, and goes first where that is allowed
        os.setpriority(os.PRIO_PROCESS, 0, priority.MEASURED)
    with suppress(OSError, ValueError):  # a connection is a file, and a shell's own limit is often 1,024
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listening = ports.listen(wishes.host, wishes.port, BACKLOG)
    with listening, _kept(wishes, routes) as kept:
        if kept is not None:
            ready = [state.name for state in kept.server.states() if state.ready]
            for name in [*ready, *(spec.name for spec in wishes.models)]:
                _route(routes, LAB, name)
        for url in wishes.urls:
            with at(url) as other:
                for state in other.states():
                    _route(routes, url if url.startswith("openai+") else f"grpc://{other.grpc_url}", state.name)
        if not routes.by_name:
            raise ServerError("nothing to serve: no model is ready; name one with --model, or a server with --url")
        _run(routes, wishes, listening, kept)


def _run(routes: Routes, wishes: Wishes, listening: socket.socket, kept: Kept | None) -> None:
    gateway = Gateway(routes, wishes.settings, residency=None if kept is None else kept.residency(), seed=wishes.seed)
    app = make_app(gateway, Edge(gateway, tokenizer_folder))
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=wishes.drain_s,
        ws_max_size=wishes.settings.body_limit_bytes,
    )
    host, port = listening.getsockname()[:2]
    watch = Watch(routes, _name_champion) if wishes.folder is None else Watch(routes)

    async def main() -> None:
        guard = asyncio.create_task(_guard(gateway, watch))
        beside = [guard]
        if kept is not None:
            beside.append(asyncio.create_task(kept.watch(gateway)))

        def leave() -> None:
            """Another may follow the routes from here on."""
            guard.cancel()
            routes.served_at(None)
            if under_way := sum(gateway.in_flight.values()):
                _said(f"stopping: {under_way} under way, waited for up to {wishes.drain_s} s; Ctrl-C again: no longer")

        try:
            await _Server(config, leave).serve(sockets=[listening])
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    # uvicorn raises the signal that ended it once more, when all is over; what is left to do must still be done.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        routes.served_at(f"http://{host}:{port}")
        print(f"gateway on http://{host}:{port} for {', '.join(routes.by_name)}", flush=True)
        print("OpenAI's clients: base_url …/v1; also /predict/MODEL, /healthz, /metrics and /routes", flush=True)
        gc.collect()
        gc.freeze()
        config.get_loop_factory()
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(main())
    finally:
        routes.served_at(None)
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """Calls `leave` when it is asked to stop, before it waits for what is under way."""

    def __init__(self, config: uvicorn.Config, leave: Callable[[], None]) -> None:
        super().__init__(config)
        self._leave = leave

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leave()
        await super().shutdown(sockets)


async def _guard(gateway: Gateway, watch: Watch) -> None:
    """What ended goes to the guard once a second. It writes files, so it works in a thread; what it can't do now it
    does the next time."""
    said = ""
    while True:
        await asyncio.sleep(TICK_S)
        try:
            await asyncio.to_thread(watch.tick, gateway.take_ended())
        except Exception as error:  # noqa: BLE001  a rollout whose guard has ended is worse than whatever it was
            found = f"guard: {type(error).__name__}: {error}"
            if found != said:
                _said(found)
            said = found


def _name_champion(route: Route) -> None:
    """After a promotion the registry's champion is the version that has the traffic, where a registry is kept. In a
    process of its own: MLflow may wait for a lock, and is no part of what serves."""
    canary = route.canary
    if canary is None or canary.state != "promoted" or not (home() / "mlflow" / "mlflow.db").is_file():
        return
    promote = ["registry", "promote", route.model, canary.challenger, "--instead-of", canary.champion]
    subprocess.Popen([sys.executable, "-m", "lab", *promote], cwd=PROJECT, stdin=subprocess.DEVNULL)


def _kept(wishes: Wishes, routes: Routes) -> AbstractContextManager[Kept | None]:
    """The lab's Triton; None where only other servers, or given routes, are wanted."""
    known = record.read()
    nobodys = known is None or known.run is not None
    if not wishes.models and (wishes.folder is not None or (wishes.urls and nobodys)):
        if wishes.budget_bytes is not None:
            raise InputError("--budget without a Triton of the lab: only its models can be loaded and unloaded")
        return nullcontext()
    return Kept(wishes.models, routes, wishes.budget_bytes)


def _route(routes: Routes, url: str, model: str) -> None:
    """A model that has no route yet gets one under its own name."""
    routes.refresh()
    if model not in routes.by_name:
        routes.change(model, lambda route: route or to_one(model, url), action="serve", by="gateway")


def tokenizer_folder(replica: Replica) -> Path | None:
    """Of a model of the lab's Triton: its weights' folder."""
    found = record.read()
    if found is None or replica.url not in (LAB, f"grpc://127.0.0.1:{found.grpc_port}"):
        return None
    folder = Path(found.repository) / replica.model / "1" / "weights"
    return folder.resolve() if (folder / "tokenizer_config.json").is_file() else None


def _said(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
