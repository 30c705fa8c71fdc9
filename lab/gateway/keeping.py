"""The lab's Triton behind a gateway: found or started, its models loaded, and replaced when it ends.

One that was found belongs to somebody else (`lab serve`, `lab up`) and ends when its owner does; any may die. The
gateway then says so and starts one of its own; requests meanwhile are told why there is no answer and to come again
(503, Retry-After). What the routes name is loaded then, and when the gateway begins. One of the gateway's own ends with
it. A run's own is left alone: it ends with the run, whose figures a second user would falsify.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

from tritonclient.utils import InferenceServerException

from lab import stopping
from lab.errors import LabError, ServerError
from lab.gateway.core import Gateway
from lab.home import home
from lab.run.footprints import TritonShelf
from lab.serve import weights
from lab.serve.residency import Residency
from lab.serve.triton import DEFAULT_PORTS, LOAD_LIMIT_S, Server
from lab.spec import ModelSpec
from lab.track.routes import Routes
from lab.track.routing import LAB

LOOK_S = 0.5
RETRY_S = 5.0
"""After a start that failed."""

NOBODY = "no Triton of the lab runs; name models with --model to start one, or a server with --url"


class Kept:
    """As a context: there is a server from its beginning to its end. `models` are loaded, or with `budget_bytes` when
    they are asked for. ServerError when nothing runs and no models are named, and while a run has one for itself."""

    def __init__(self, models: Sequence[ModelSpec], routes: Routes, budget_bytes: int | None = None) -> None:
        self._models, self._routes, self._budget_bytes = models, routes, budget_bytes
        found = attached()
        if found is None and not models:
            raise ServerError(NOBODY)
        self.server = found or _started()

    def __enter__(self) -> Kept:
        try:
            if self._budget_bytes is None:
                self._load_all(_said)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends a server of the gateway's own."""
        self.server.__exit__()

    def residency(self) -> Residency | None:
        """Who is loaded, where a budget decides that; of the server as it is now."""
        if self._budget_bytes is None:
            return None
        for spec in self._models:
            weights.prepare(spec)
        return Residency(TritonShelf(self.server, self._models), self._budget_bytes, [m.name for m in self._models])

    async def watch(self, gateway: Gateway, say: Callable[[str], None] | None = None) -> None:
        """Until it is cancelled: look, and replace what has ended. A server that cannot be had is tried for again."""
        say, over = say or _said, threading.Event()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if self.server.alive():
                    continue
                pid = self.server.pid
                gateway.absent = f"the lab's Triton, pid {pid}, has ended; the gateway starts one of its own"
                why = await asyncio.to_thread(self.server.died)  # who knows it may be another process
                say(f"{gateway.absent} ({why})")
                with stopping.heeding(over.is_set):  # in the thread too
                    await self._replaced(gateway, say)
                say(f"Triton (pid {self.server.pid}) at {self.server.grpc_url} serves the routes again")
        finally:
            over.set()

    async def _replaced(self, gateway: Gateway, say: Callable[[str], None]) -> None:
        while gateway.absent is not None:
            try:
                await asyncio.to_thread(self._replace, say)
                gateway.residency = self.residency()
                gateway.absent = None
            except (LabError, OSError) as error:
                gateway.absent = f"the lab's Triton has ended, and there is no other: {error}"
                say(gateway.absent)
                await asyncio.sleep(RETRY_S)

    # --- inside -------------------------------------------------------------------------------------------------

    def _replace(self, say: Callable[[str], None]) -> None:
        self.close()
        self.server = attached() or _started()
        if self._budget_bytes is None:
            self._load_all(say)

    def _load_all(self, say: Callable[[str], None]) -> None:
        """What is asked for, and what routes of an earlier gateway name: their traffic comes here."""
        for spec in self._models:
            self._load(spec)
        self._routes.refresh()
        replicas = [r for route in self._routes.by_name.values() for v in route.versions for r in v.replicas]
        named = {replica.model for replica in replicas if replica.url == LAB}
        for name in sorted(named - {state.name for state in self.server.states() if state.ready}):
            try:  # as its repository has it: who had it loaded wrote it there
                stopping.heeded(partial(self.server.client.load_model, name, client_timeout=LOAD_LIMIT_S))
            except InferenceServerException as error:  # the others are served
                say(f"model {name}, which a route names, could not be loaded; deploy it anew ({error.message()})")
            else:
                say(f"{name} is ready: a route names it")

    def _load(self, spec: ModelSpec) -> None:
        if not self.server.state(spec.name).ready:
            print(f"{spec.name} is ready after {self.server.load(spec):.1f} s", flush=True)


def attached() -> Server | None:
    """The lab's Triton that runs. ServerError for one that a run has started for itself."""
    found = Server.attach()
    if found is not None and found.managed is not None and (run := found.managed.run) is not None:
        raise ServerError(f"run {run} measures with a Triton of its own, which ends with it; wait for that, or stop it")
    return found


def _started() -> Server:
    return Server.start(repository=home() / "repository", log=home() / "triton.log", wanted_ports=DEFAULT_PORTS)


def _said(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
