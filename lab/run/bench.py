"""The bench: one server, one load generator and the instruments, measuring one block at a time.

The runner, `lab load` and the self-test all measure through `Bench.block`, so their figures are made in one way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab import priority
from lab.errors import InputError, LabError, ModelError, RunError
from lab.load.generator import Generator, Job, Progress
from lab.run.control import MODEL_FIELDS, Inbox, checked
from lab.run.copies import served_as
from lab.run.equality import Answer, ask, workload_of
from lab.run.folder import RunFolder
from lab.run.plan import Block
from lab.run.scaler import Scaler, scaling
from lab.run.serving import AnyServer
from lab.serve import weights
from lab.serve.borrowed import Borrowed
from lab.serve.health import live_processes
from lab.serve.metrics import pending, scrape
from lab.serve.traces import Traces
from lab.serve.triton import FORGOTTEN_S, Server
from lab.spec import ModelSpec, Workload
from lab.watch import smaps
from lab.watch.host import model_processes
from lab.watch.sampler import Sampler

TICK_S = 0.1
SCRAPE_PERIOD_NS = 1_000_000_000
SETTLE_LIMIT_S = 15.0
UNWRITTEN = "Triton had not written all of its traces in time: some requests lack theirs."

Stopped = Callable[[], bool]


class Bench:
    """Owns the load generator and the sampler; borrows the server. Use as a context manager.

    `stopped` is asked once a tick and ends the block early when it says so. `cells` is the number of cells of the
    experiment, which decides what may be changed by hand.
    """

    def __init__(self, folder: RunFolder, server: AnyServer, *, workers: int, cells: int, stopped: Stopped) -> None:
        self.folder = folder
        self.server = self._own = server
        self.inbox = Inbox(folder.path)
        self.stop_asked = False
        self._cells = cells
        self._stopped = stopped
        self._in_force: dict[str, ModelSpec] = {}
        self._borrowed: dict[str, Borrowed] = {}
        self._unasked: set[str] = set()  # loaded, and not asked anything since
        self._next_scrape_ns = 0
        self._died_ns: int | None = None
        self.generator = Generator(folder.path, workers)
        self._sampler = Sampler(folder, server_pid=server.pid, extra_pids={"client": self.generator.pids})

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.generator.close()
        self._sampler.stop()
        for borrowed in self._borrowed.values():
            if said := borrowed.close():
                self.folder.event("put_back", text=said)

    @contextmanager
    def elsewhere(self, server: AnyServer) -> Iterator[None]:
        """Blocks meanwhile ask this server, of which nothing is loaded, read or waited for."""
        self.server, self._died_ns = server, None
        try:
            yield
        finally:
            self.server = self._own

    def in_force(self, model: ModelSpec) -> None:
        """Somebody else has loaded it just now."""
        self._in_force[model.name] = model

    def put(self, model: ModelSpec) -> None:
        """Bring `model` into force: written and reloaded when it differs from what is loaded. On a server that the lab
        does not manage only its batching can be changed, where that server allows it; it is put back in the end."""
        if self.server is not self._own:
            return
        for own in served_as(model):
            if isinstance(self.server, Server) and self.server.managed and self._in_force.get(own.name) != own:
                seconds = self.server.load(own)
                self.folder.event("loaded", model=own.model_dump(mode="json"), seconds=seconds)
                self._unasked.add(own.name)
            elif isinstance(self.server, Server) and not self.server.managed and own.family != "llm":
                self._borrow(self.server, own)
            self._in_force[own.name] = own

    def anew(self, model: ModelSpec) -> None:
        """Bring `model` into force by loading it, also where it is."""
        self._in_force.pop(model.name, None)
        self.put(model)

    def _borrow(self, server: Server, model: ModelSpec) -> None:
        if model.name not in self._borrowed:
            self._borrowed[model.name] = Borrowed(server, model.name, self.folder.path / "borrowed.log")
        seconds = self._borrowed[model.name].put(model.batching)
        if seconds is not None:
            self.folder.event("loaded", model=model.model_dump(mode="json"), seconds=seconds)

    def ask(self, block: Block) -> list[Answer]:
        """What the block's model answers to the requests that every level is asked."""
        self.put(block.model)
        self._settle(block.model)
        if (asked := workload_of(block)) is not None:
            self.folder.event("asked", model=block.model.name, workload=asked.model_dump(mode="json"))
        return ask(self.server.grpc_url, block, _tokenizer(block.model))

    def block(self, index: int, block: Block, *, on_tick: Callable[[str, Progress], None]) -> Progress:
        """Measure one block to its end and return what was sent and answered. Calls `on_tick(phase, progress)` ten
        times a second. RunError when the server or a load worker dies; what was measured until then is kept."""
        self.put(block.model)
        if self.server is self._own:
            for own in served_as(block.model):
                self._settle(own)
        with (
            self._traced(block, self.folder.path / f"traces-{index}"),
            scaling(self.server, block.model, self.folder, index) as scaler,
        ):

            def ticked(phase: str, progress: Progress) -> None:
                if scaler is not None:
                    scaler.tick(progress)
                on_tick(phase, progress)

            if block.model.scaling is not None:  # it will not stay as it was loaded
                self._in_force.pop(block.model.name, None)
            return self._measured(index, block, ticked, scaler)

    def _measured(
        self, index: int, block: Block, on_tick: Callable[[str, Progress], None], scaler: Scaler | None
    ) -> Progress:
        generator, folder = self.generator, self.folder
        model, workload = block.model, block.workload
        window = generator.begin(self._job(index, block))
        if scaler is not None:
            scaler.begin(window.start_ns)
        self._sampler.look()  # while it warms up: a short block of dear models would else have no reading
        progress = generator.poll()
        folder.event(
            "block_start",
            block=index,
            role=block.role,
            cell=block.cell,
            repeat=block.repeat,
            planned=progress.planned,
            workload=workload.model_dump(mode="json"),
            model=model.model_dump(mode="json"),
            niceness=self._niceness(),
            wall_ns=time.time_ns(),
            **asdict(window),
        )
        boundaries = [window.start_ns, window.measured_from_ns, window.end_ns]
        cut_ns: int | None = None
        planned = progress.planned
        try:
            while not progress.done:
                now = time.perf_counter_ns()
                if cut_ns is None:
                    # A stop forgets the arrivals that will not come; the block still owes them.
                    planned = progress.planned
                if now >= self._next_scrape_ns or (boundaries and now >= boundaries[0]):
                    self._scrape([own.name for own in served_as(model)])
                    boundaries = [b for b in boundaries if b > now]
                for raw in self.inbox.new():
                    model, workload = self._change(raw, model, workload)
                if (self.stop_asked or self._stopped()) and cut_ns is None:
                    cut_ns = time.perf_counter_ns()
                    generator.cancel()
                self._check_server()
                on_tick(_phase(now, window.measured_from_ns, window.end_ns, cut_ns), progress)
                time.sleep(TICK_S)
                progress = generator.poll()
            self._scrape([own.name for own in served_as(model)])
            for own in served_as(model):
                self._note_memory("held", own)
                if progress.errors:
                    self._look_at(own.name)
        except (LabError, OSError):
            cut_ns = self._died_ns or time.perf_counter_ns()
            raise
        finally:
            # Figures end where the load did, which a stop or a death makes earlier than planned.
            end_ns = window.end_ns if cut_ns is None else min(cut_ns, window.end_ns)
            cached = {name: getattr(progress, name) for name in ("prompt_tokens", "cached_tokens")}
            more = cached if progress.prompt_tokens else {}
            folder.event("block_end", block=index, planned=planned, end_ns=end_ns, wall_ns=time.time_ns(), **more)
        return progress

    def _job(self, index: int, block: Block) -> Job:
        url, several = _url(self.server, block.workload.protocol), served_as(block.model)
        mix = tuple((own, 1.0) for own in several) if len(several) > 1 else ()
        return Job(index, url, several[0], block.workload, _tokenizer(block.model), mix)

    @contextmanager
    def _traced(self, block: Block, folder: Path) -> Iterator[None]:
        """Each request's way through the server is written down meanwhile, into `folder`, where that was asked for and
        is possible: from before the first is sent, until what was written of the last is whole."""
        if not block.workload.trace or not isinstance(self.server, Server) or self.server.managed is None:
            yield
            return
        traces = Traces(self.server, block.model.name)
        traces.begin()
        try:
            yield
        finally:
            if not traces.end(folder) or not folder.exists():
                self.folder.event("problem", text=UNWRITTEN)

    def _settle(self, model: ModelSpec) -> None:
        """Wait until nothing of the block before is left in the server: requests that the client gave up on stay in
        Triton's queue, and the processes of what a reload replaced live on for seconds with all their memory."""
        began = time.monotonic()
        while (left := self._left_behind(model)) and not self._stopped():
            waited_s = time.monotonic() - began
            if waited_s > SETTLE_LIMIT_S:
                self.folder.event("problem", text=f"After {SETTLE_LIMIT_S:g} s there are still {left}.")
                break
            if waited_s > FORGOTTEN_S and isinstance(self.server, Server) and self.server.managed:
                self.server.end_forgotten(model.name)
            time.sleep(TICK_S)
        if model.name in self._unasked:
            self._unasked.discard(model.name)
            if not left:
                self._note_memory("idle", model)

    def _note_memory(self, kind: str, model: ModelSpec) -> None:
        """What the model's processes hold, "idle" before anything is asked and "held" after a block: in what they grow
        they seldom shrink."""
        pids = [] if self.server.pid is None else model_processes(self.server.pid).get(model.name, [])
        if pids and (found := smaps.footprint(pids)) is not None:
            own = found.own_bytes + sum(found.regions.values())
            self.folder.event(kind, model=model.name, own_bytes=own, file_bytes=sum(found.files.values()))

    def _left_behind(self, model: ModelSpec) -> str:
        """What is still there of earlier blocks, in words; "" when there is nothing."""
        if waiting := pending(self.server.metrics_url, model.name):
            return f"{waiting} requests of the block before in Triton's queue"
        replaced = 0
        if self.server.pid is not None:
            replaced = live_processes(self.server.pid).get(model.name, 0) - model.instances
        return f"{replaced} processes of the model as it was before" if replaced > 0 else ""

    def _look_at(self, name: str) -> None:
        """After failures: a model whose process is dead is named, and loaded anew before it is measured again.
        Triton's own health does not say so (it stays ready)."""
        if isinstance(self.server, Server) and self.server.managed and not (state := self.server.state(name)).ready:
            self._in_force.pop(name, None)
            self.folder.event("problem", text=f"Model {name} no longer serves: {state.reason}.")

    def _niceness(self) -> dict[str, int | None]:
        server = None if self.server.pid is None else priority.of(self.server.pid)
        return {"client": priority.of(self.generator.pids[0]), "server": server}

    def _change(self, raw: dict[str, Any], model: ModelSpec, workload: Workload) -> tuple[ModelSpec, Workload]:
        """Apply one change and return what is in force after it: what was before when it is refused."""
        asked_ns = time.perf_counter_ns()
        try:
            change = checked(raw, model, workload, cells=self._cells)
            if change.field == "stop":
                self.stop_asked = True
                return model, workload
            if change.field in MODEL_FIELDS:
                self.put(change.model)
                effect_ns = time.perf_counter_ns()
            else:
                effect_ns = self.generator.change(**{change.field: change.value})
        except (InputError, ModelError) as error:
            self.folder.event("problem", text=f"change refused: {error}")
            return model, workload
        self.folder.event(
            "change", id=change.id, field=change.field, to=change.value, asked_ns=asked_ns, t_ns=effect_ns
        )
        return change.model, change.workload

    def _scrape(self, models: Sequence[str]) -> None:
        self._next_scrape_ns = time.perf_counter_ns() + SCRAPE_PERIOD_NS
        if isinstance(self.server, Server) and self.server is self._own:
            self.folder.append("server", scrape(self.server, models))

    def _check_server(self) -> None:
        if self.server.alive():
            return
        self._died_ns = time.perf_counter_ns()
        reason = self.server.died() or "no reason given"
        self.folder.event("died", text=reason)
        self.generator.cancel()
        self.generator.wait(timeout_s=5)
        raise RunError(f"the server died at {datetime.now(UTC):%H:%M:%S} UTC, while the load ran: {reason}")


def _phase(now_ns: int, measured_from_ns: int, end_ns: int, cut_ns: int | None) -> str:
    if cut_ns is not None or now_ns >= end_ns:
        return "draining"
    return "warm-up" if now_ns < measured_from_ns else "running"


def _url(server: AnyServer, protocol: str) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


def _tokenizer(model: ModelSpec) -> Path | None:
    """The model's tokenizer.json where it is on this machine: somebody else's model need not be."""
    place = weights.tokenizer(model)
    return place if place is not None and place.is_file() else None
