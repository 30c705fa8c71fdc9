"""A real Triton server: start, attach, load and unload models, ask how each is, stop.

Three ways to have one. `Server.start` owns a process: its own ports, its state in LAB_HOME/server.json unless it is
nobody else's, dead when its owner dies. `Server.attach` finds the one that server.json tells of, if pid and start time
still agree. `Server.at` talks to somebody else's by URL and controls nothing.

Health is per model (lab/serve/health.py): Triton's own "server ready" turns false for good after one model failed to
load, and stays true while a model's process is dead.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from lab import stopping
from lab.errors import InputError, ModelError, ServerError
from lab.serve import forgotten, health, installation, launch, ports, record, repository, weights
from lab.serve.address import address, unreachable
from lab.serve.health import ModelState
from lab.serve.http_client import HttpClient
from lab.serve.process import Process, exit_status_of, last_lines
from lab.serve.record import ServerRecord
from lab.spec import ModelSpec

LOAD_LIMIT_S = 180.0
UNLOAD_LIMIT_S = 60.0
BROKEN_LIMIT_S = 3.0
CALL_LIMIT_S = 10.0
"""Limits, not expectations: a load takes 0.1 to 2 s, an unload 1.5 s, a question milliseconds."""

LEFT_LIMIT_S = 2.0
"""For a server whose load nobody waits for any more: Triton itself ends after it."""

FORGOTTEN_S = 5.0
"""A process of a model that is replaced or unloaded ends a second later, or with the last answer."""

POLL_S = 0.02

FRAME = re.compile(r"\s*\d+# ")
"""A line of the stack that Triton prints when it aborts."""

UP = "Started GRPCInferenceService"
"""In the log once it serves; what it lacks, such as a GPU, is said before."""

LOOPBACK = ("127.0.0.1", "localhost")

LARGEST_PORT = 65_535
DEFAULT_PORTS = (8000, 8001, 8002)
"""HTTP, gRPC, metrics, as Triton itself numbers them."""


class Server:
    """A Triton server that answers at `grpc_url` ("127.0.0.1:8001") and `http_url` ("http://127.0.0.1:8000").

    `metrics_url` is where Prometheus text may be had, `pid` None for somebody else's server. `owned`: this object
    started the process and stops it. Use it as a context manager, or call `stop`. Threads may share one.
    """

    owned = False

    def __init__(self, host: str, http_port: int, grpc_port: int, metrics_port: int | None) -> None:
        self.http_url = f"http://{host}:{http_port}"
        self.grpc_url = f"{host}:{grpc_port}"
        self.called = self.grpc_url
        """What messages call it: the URL by which it was given."""
        self.metrics_url = None if metrics_port is None else f"http://{host}:{metrics_port}/metrics"
        self.client: Any = triton.InferenceServerClient(self.grpc_url)
        self.managed: ServerRecord | None = None
        self._process: Process | None = None
        self._shared = True
        self._left_loading = False

    # --- three ways to have one ---------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        *,
        repository: Path,
        log: Path,
        models: Sequence[ModelSpec] = (),
        wanted_ports: Sequence[int] = (),
        shared: bool = True,
    ) -> Server:
        """A server of our own, answering, with `models` loaded; it dies with this process.

        Takes any free ports, or `wanted_ports` (HTTP, gRPC, metrics), and says on stderr which of these are not free.
        `shared`: others may find it (`attach`). One that lasts only as long as some work is not: who came to use it
        would lose it at the end of that.
        ServerError when it does not come up, ModelError when one of `models` does not load.
        """
        process, managed = launch.launch(repository, log, wanted_ports)
        server = cls._of(managed)
        server.owned = True
        server._process = process
        server._shared = shared
        try:
            server._ask(server.client.is_server_live)
            if shared:
                record.write(managed)
            for spec in models:
                server.load(spec)
        except BaseException:
            server.stop()
            raise
        return server

    @classmethod
    def attach(cls) -> Server | None:
        """The live server that LAB_HOME/server.json tells of; None when there is none, or its pid is another's."""
        managed = record.read()
        return None if managed is None else cls._of(managed)

    @classmethod
    def at(cls, url: str) -> Server:
        """Somebody else's server: "grpc://HOST:8001", "HOST:8001" or "http://HOST:8000", and asked by that protocol
        alone. The other ports are taken to be where Triton puts them (HTTP, HTTP+1 gRPC, HTTP+2 metrics); of the lab's
        own server they are known. InputError for another URL; ServerError, which says who listens there, when no
        Triton answers."""
        there = address(url)
        if not there.speaks_triton:
            raise InputError(
                f"url {url!r}: allowed for a Triton is grpc://HOST:PORT (or HOST:PORT) or http://HOST:PORT"
            )
        http = there.port - (there.scheme == "grpc")
        http_port, grpc_port, metrics_port = http, http + 1, http + 2 if http + 2 <= LARGEST_PORT else None
        own = record.read()
        if own is not None and there.host in LOOPBACK and there.port in (own.http_port, own.grpc_port):
            # The lab's takes any free ports.
            http_port, grpc_port, metrics_port = own.http_port, own.grpc_port, own.metrics_port
        server = cls(there.host, http_port, grpc_port, metrics_port)
        if there.scheme == "http":
            server.client.close()
            server.client = HttpClient(server.http_url)
        server.called = url
        try:
            server._ask(server.client.is_server_live)
        except ServerError as error:
            server.client.close()
            raise unreachable(there, str(error)) from None
        return server

    @classmethod
    def _of(cls, managed: ServerRecord) -> Server:
        server = cls(ports.HOST, managed.http_port, managed.grpc_port, managed.metrics_port)
        server.managed = managed
        return server

    @property
    def pid(self) -> int | None:
        return None if self.managed is None else self.managed.pid

    def version(self) -> str:
        """Triton's own, such as "2.51.0"."""
        return str(self._ask(self.client.get_server_metadata).version)

    # --- models -------------------------------------------------------------------------------------------------

    def load(self, spec: ModelSpec, files: Path | None = None) -> float:
        """Writes the model and loads it, in place of an earlier configuration of that name; no restart. `files`: a
        folder whose weights it serves in place of the family's own.

        Seconds from writing until it is ready; fetching or training missing weights comes before and is not counted.
        ModelError with Triton's reason when it does not load: other models still serve, and so does this one's
        earlier configuration if it had one.
        """
        managed = self._controlled("load")
        repository.check(spec)
        if spec.device == "gpu" and installation.gpus() == 0:
            raise InputError(f"{spec.name}: device gpu on a machine without an NVIDIA GPU; allowed here: cpu")
        if files is None:
            weights.prepare(spec)
        began = time.perf_counter()
        repository.write_model(spec, Path(managed.repository), files)
        self._loaded(spec.name, began)
        return time.perf_counter() - began

    def load_again(self, name: str) -> None:
        """Loads the model as it was last written, in place of what is left of it: one whose process died, or whose load
        failed for a reason that is gone. ModelError as `load`, and for a name that was never written."""
        place = Path(self._controlled("load").repository) / name
        code = [] if Path(name).name != name else [path for path in place.glob("*/*") if path.is_file()]
        if not code:
            raise ModelError(f"model {name}: nothing is written of it in this server's repository")
        for path in code:
            path.touch()  # Triton loads nothing that it takes for unchanged
        self._loaded(name, time.perf_counter())

    def _loaded(self, name: str, began: float) -> None:
        self._left_loading = True
        try:
            stopping.heeded(lambda: self.client.load_model(name, client_timeout=LOAD_LIMIT_S))
        except InferenceServerException as error:
            self._left_loading = False
            raise self._load_failed(name, error) from None
        self._left_loading = False
        while not self._ask(self.client.is_model_ready, name):
            stopping.check()
            if time.perf_counter() - began > LOAD_LIMIT_S:
                raise ModelError(f"model {name} was not ready after {LOAD_LIMIT_S:g} s")
            time.sleep(POLL_S)
        self._remember(loaded={name})

    def unload(self, name: str) -> None:
        """Unloads and returns once the model's processes are gone and their memory with them, which Triton's own
        call does not wait for. Triton waits for the answers under way, and for every client whose gRPC stream is still
        open after one; what does nothing for FORGOTTEN_S meanwhile is ended. ModelError when that takes longer than a
        minute. Of a model with a dead process Triton keeps the name in "unloading" for good once a request met it
        (2.51): there what is left of its processes is ended instead."""
        managed = self._controlled("unload")
        broken = health.BROKEN in (self.state(name).reason or "")
        self._ask(self.client.unload_model, name)
        began = time.monotonic()
        while self.state(name).reason == "unloading" or health.live_processes(managed.pid).get(name, 0):
            if broken and time.monotonic() - began > BROKEN_LIMIT_S:
                launch.end_model(managed.prefix, name)
                break
            if time.monotonic() - began > FORGOTTEN_S and self.end_forgotten(name):
                break
            if time.monotonic() - began > UNLOAD_LIMIT_S:
                raise ModelError(
                    f"model {name} was not unloaded after {UNLOAD_LIMIT_S:g} s; clients may keep a stream of it open"
                )
            time.sleep(POLL_S)
        self._remember(unloaded={name})

    def end_forgotten(self, name: str) -> int:
        """Ends the processes that Triton keeps of a model which it has replaced or unloaded, if it never will (see
        lab/serve/forgotten.py); how many. To be asked once they have had FORGOTTEN_S to end by themselves."""
        managed = self._controlled("end_forgotten")
        if self.state(name).reason in ("unloading", "unloaded"):
            return forgotten.end(managed.pid, name, serving=0)
        with suppress(ModelError):  # it does not say how many serve: then all of them may
            instances = sum(group["count"] for group in self.config(name).get("instance_group", []))
            return forgotten.end(managed.pid, name, serving=instances)
        return 0

    def state(self, name: str) -> ModelState:
        """ModelState(ready=False, reason="no such model …") for a name that the repository does not hold."""
        found = [model for model in self.states() if model.name == name]
        return found[0] if found else ModelState(name, False, "no such model in this server's repository")

    def states(self) -> list[ModelState]:
        """Every model of the server's repository, in order of name."""
        index = self._ask(self.client.get_model_repository_index, as_json=True).get("models", [])
        entries = {entry["name"]: entry for entry in sorted(index, key=lambda entry: int(entry.get("version", 0)))}
        living = None if self.managed is None else health.live_processes(self.managed.pid)
        log = None if self.managed is None else Path(self.managed.log)
        states = []
        for name in sorted(entries):
            processes, instances = None, 0
            if living is not None and entries[name].get("state") == "READY":
                with suppress(ModelError):  # unloaded since the index was read
                    instances = sum(group["count"] for group in self.config(name).get("instance_group", []))
                    processes = living.get(name, 0)
            states.append(health.judge(entries[name], processes, instances, log))
        return states

    def config(self, name: str) -> dict[str, Any]:
        """The configuration in force, read back from the server. ModelError when the model is not loaded."""
        try:
            read: dict[str, Any] = self.client.get_model_config(name, as_json=True, client_timeout=CALL_LIMIT_S)
            return dict(read["config"])
        except InferenceServerException as error:
            raise ModelError(f"model {name} has no configuration in force: {_said(error)}") from None

    # --- the process --------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether the process lives; for somebody else's server, whether it answers."""
        if self._process is not None:
            return self._process.exit_status is None
        if self.managed is not None:
            return self.managed.alive()
        try:
            return bool(self.client.is_server_live(client_timeout=CALL_LIMIT_S))
        except InferenceServerException:
            return False

    def died(self) -> str | None:
        """None while it lives; else how it ended and the last lines of its log, in one line."""
        if self.alive():
            return None
        if self.managed is None:
            return f"{self.called} does not answer"
        log = Path(self.managed.log)
        status = exit_status_of(self.managed.pid, log) if self._process is None else self._process.exit_status
        how = "" if status is None else f" ({launch.ending(status)})"
        # Nothing from before it was up; neither information (I…), such as that a model was loaded long before, nor
        # tables, nor the stack below the reason.
        last = last_lines(log, 60)
        started = max((number for number, line in enumerate(last, 1) if UP in line), default=0)
        words = [line for line in last[started:] if not line.startswith(("I", "|", "+")) and not FRAME.match(line)][-3:]
        return (
            f"Triton ended{how}; its last words: {' | '.join(words)}" if words else f"Triton ended{how}, without a word"
        )

    def stop(self) -> str:
        """Stops the process, started here or attached to; how it ended: "stopped", "killed after 30 s"."""
        managed = self._controlled("stop")
        self.client.close()
        record.remove(managed)  # first: nobody shall find one that is about to go
        return launch.end(managed, LEFT_LIMIT_S if self._left_loading else launch.STOP_LIMIT_S)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.owned:
            self.stop()
        else:
            self.client.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _controlled(self, what: str) -> ServerRecord:
        if self.managed is None:
            raise ServerError(f"{what}: the server at {self.called} was given by URL and is not the lab's to control")
        return self.managed

    def _ask(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """A call to the server; ServerError in one line when it does not work."""
        try:
            return call(*args, client_timeout=CALL_LIMIT_S, **kwargs)
        except InferenceServerException as error:
            died = None if self.managed is None else self.died()
            raise ServerError(died or f"Triton at {self.called}: {_said(error)}") from None

    def _load_failed(self, name: str, error: InferenceServerException) -> ServerError:
        if died := self.died():
            return ServerError(died)
        managed = self._controlled("load")
        reason = health.why_in_log(name, Path(managed.log)) or _said(error)
        kept = "; its earlier configuration still serves" if self.state(name).ready else ""
        return ModelError(f"model {name} did not load: {reason}{kept}")

    def _remember(self, loaded: Set[str] = frozenset(), unloaded: Set[str] = frozenset()) -> None:
        managed = self._controlled("load")
        recorded = record.read()
        if recorded is not None and recorded.prefix == managed.prefix:
            managed = recorded  # another process may have loaded models meanwhile
        self.managed = dataclasses.replace(managed, models=tuple(sorted({*managed.models, *loaded} - unloaded)))
        if self._shared:
            record.write(self.managed)


def _said(error: InferenceServerException) -> str:
    return health.one_line(error.message() or str(error))
