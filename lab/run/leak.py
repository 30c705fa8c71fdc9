"""The leak hunt: load a model, ask it, unload it, and see whether the memory is back; again and again.

    python -m lab leak digits --cycles 10
    python -m lab leak path/to/model_folder --cycles 10      a folder as Triton reads it, with its config.pbtxt

On a Triton of its own, with no other model unless `neighbours` are given, so that nobody's work is in the figures.
What is read after each cycle is everything that can keep something: the server's own pages, every process that was born
of the server (also one that outlived the model that started it), the neighbours, the regions in /dev/shm, and GPUs.
Memory that a model leaks *while* it is loaded goes with its process and is no leak of this kind.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from lab.errors import InputError, ModelError
from lab.home import home
from lab.load.payload import requests_for
from lab.measure.leak import Cycle, Leak, judge
from lab.run.conversation import stream, tensors_of
from lab.run.equality import infer
from lab.run.lock import MeasureLock
from lab.serve import leftovers, weights
from lab.serve.triton import Server
from lab.spec import FAMILIES, ClosedLoop, ModelSpec, Workload, nearest, parse, set_paths
from lab.watch import host, smaps
from lab.watch.gpu import read_gpus

REQUESTS = 8
UNCOUNTED = 2
"""Cycles before the counted ones, in which a server sets up what it keeps."""
SETTLE_S, SETTLE_LIMIT_S, SETTLED_BYTES = 0.1, 2.0, 64 * 1024
"""After an unload: two looks this far apart that differ by less, or the last look at the limit."""
MOST_CYCLES = 1000

Report = Callable[[str], None]


class Subject(Protocol):
    """A model that comes and goes on `server`."""

    name: str

    def load(self, server: Server) -> float: ...

    def ask(self, server: Server) -> None: ...


class Declared:
    """A model of the lab, by its spec."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.name = spec, spec.name

    def load(self, server: Server) -> float:
        return server.load(self.spec)

    def ask(self, server: Server) -> None:
        # One after the other: many at a time would grow the server's own pools, which stay.
        workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, sleep_s=(0.0,), output_tokens=8)
        for request in requests_for(self.spec, workload, REQUESTS, weights.tokenizer(self.spec)):
            if self.spec.family == "llm":
                list(stream(server.grpc_url, self.name, request))
            else:
                infer(server.client, self.name, request)


class Folder:
    """Anybody's model: a folder with a config.pbtxt. It is asked with ones of the shapes that its config gives."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.name = path.resolve().name
        try:
            self.config = text_format.Parse((path / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        except OSError as error:
            raise InputError(f"{path}: no model folder of Triton's: config.pbtxt: {error.strerror}") from None
        except text_format.ParseError as error:
            raise InputError(f"{path / 'config.pbtxt'}: {error}") from None

    def load(self, server: Server) -> float:
        assert server.managed is not None  # noqa: S101  it is our own
        shutil.copytree(self.path, Path(server.managed.repository) / self.name, dirs_exist_ok=True, symlinks=False)
        began = time.perf_counter()
        try:
            server.client.load_model(self.name)
        except InferenceServerException as error:
            raise ModelError(f"model {self.name} did not load: {error.message()}") from None
        return time.perf_counter() - began

    def ask(self, server: Server) -> None:
        if self.config.model_transaction_policy.decoupled:
            return
        request = {}
        for tensor in self.config.input:
            shape = [1] * (self.config.max_batch_size > 0) + [max(1, length) for length in tensor.dims]
            kind = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
            dtype = triton_to_np_dtype(kind)
            request[tensor.name] = np.full(shape, b"1", object) if kind == "BYTES" else np.ones(shape, dtype)
        try:
            for _ in range(REQUESTS):
                server.client.infer(self.name, tensors_of(request), client_timeout=30)
        except InferenceServerException as error:
            raise ModelError(f"model {self.name} did not answer: {error.message()}") from None


def subject(model: str, settings: Sequence[tuple[str, Any]] = ()) -> Subject:
    """What the command line names: a folder, or a family with settings of its spec."""
    if "/" in model or Path(model, "config.pbtxt").is_file():
        if settings:
            raise InputError("--set with a model folder: its config.pbtxt says what it is; allowed: no --set")
        return Folder(Path(model))
    if model not in FAMILIES:
        raise InputError(
            f"model {model!r}: no folder with a config.pbtxt, and no model of the lab's{nearest(model, FAMILIES)}"
        )
    return Declared(set_paths(parse(ModelSpec, {"name": model}), [(p.removeprefix("model."), v) for p, v in settings]))


def leak(model: Subject, cycles: int, *, neighbours: Sequence[ModelSpec] = (), report: Report) -> Leak:
    """`cycles` counted cycles and UNCOUNTED before them, while no run measures. InputError for too few or too many."""
    if not 2 <= cycles <= MOST_CYCLES:
        raise InputError(f"cycles {cycles}: a line with an interval needs 2; allowed: 2 to {MOST_CYCLES}")
    if isinstance(model, Declared):
        weights.prepare(model.spec)
    with MeasureLock("leak-hunt") as lock:
        lock.acquire(lambda place, holder: report(f"waiting to measure: place {place} behind {holder}"))
        with own_server(neighbours) as server:
            return hunt(server, model, cycles, report=report)


def hunt(server: Server, model: Subject, cycles: int, *, report: Report) -> Leak:
    """The same on a server that is there."""
    meter = Meter(server)
    found: list[Cycle] = []
    for number in range(1 - UNCOUNTED, cycles + 1):
        before = meter.settled()
        load_s = model.load(server)
        model.ask(server)
        loaded = meter.read()
        began = time.perf_counter()
        server.unload(model.name)
        unload_s = time.perf_counter() - began
        after = meter.settled()
        found.append(Cycle(load_s, unload_s, before, loaded, after))
        kept = (sum(after.values()) - sum(before.values())) / 2**20
        what = f"cycle {number} of {cycles}" if number > 0 else "a first cycle, not counted"
        report(f"{what}: loaded in {load_s:.1f} s, unloaded in {unload_s:.1f} s, {kept:+.2f} MiB left")
    first = found[0]
    once_bytes = sum(found[UNCOUNTED - 1].before.values()) - sum(first.before.values())
    return judge(found[UNCOUNTED - 1 :], meter.not_measured, once_bytes)


class Meter:
    """Reads what a server and all that it brought into the world hold now, in bytes by the keys of measure.leak.WHERE.
    What was there at the start as a model is a neighbour."""

    def __init__(self, server: Server) -> None:
        assert server.managed is not None and server.pid is not None  # noqa: S101  only for the lab's own
        self._pid = server.pid
        self._prefix = server.managed.prefix
        self._neighbours = {pid for pids in host.model_processes(self._pid).values() for pid in pids}
        self._since = time.time() - 1.0
        self.not_measured: dict[str, str] = {}

    def read(self) -> dict[str, float]:
        born = set(host.born_of(self._prefix)) - {self._pid}
        parts = {
            "server": self._own([self._pid]),
            "processes": self._own(born - self._neighbours),
            "neighbours": self._own(born & self._neighbours),
            "shared_memory": float(leftovers.born_since(self._prefix, self._since)),
        }
        used = {r.subject: r for r in read_gpus() if r.field == "memory_used_bytes"}
        known = [r.value for r in used.values() if r.value is not None]
        if known:
            parts["gpu"] = float(sum(known))
        else:
            self.not_measured["gpu"] = next((r.reason or "" for r in used.values()), "no GPU")
        return parts

    def settled(self) -> dict[str, float]:
        """The reading once it no longer falls."""
        until = time.monotonic() + SETTLE_LIMIT_S
        last = self.read()
        while time.monotonic() < until:
            time.sleep(SETTLE_S)
            new = self.read()
            if abs(sum(last.values()) - sum(new.values())) < SETTLED_BYTES:
                return new
            last = new
        return last

    @staticmethod
    def _own(pids: set[int] | list[int]) -> float:
        """Anonymous pages: those of files are the page cache's, and regions are counted by themselves. A process that
        ends meanwhile holds nothing."""
        return float(sum(f.own_bytes for pid in pids if (f := smaps.footprint([pid])) is not None))


@contextmanager
def own_server(neighbours: Sequence[ModelSpec]) -> Iterator[Server]:
    """A Triton that nobody else finds, gone with the block."""
    with tempfile.TemporaryDirectory(prefix="leak-", dir=home()) as folder:
        place = Path(folder)
        log = place / "triton.log"
        with Server.start(repository=place / "repository", log=log, models=neighbours, shared=False) as server:
            yield server
