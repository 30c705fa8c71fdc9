"""Runs an experiment with a rollout: its blocks in turn, with the figures of every experiment and an event of its own.

    canary        each block has a version 2 of its own beside the same version 1, in one Triton
    blue_green    both environments stand in a Triton of their own, warmed before the first block

With a reference load, the first block finds what comes through at all (ceiling.py). Version 1 is the experiment's model
in the lab's Triton; the routes, their audit log and the gateway's log are in the run's folder. Events: block_start and
block_end as everywhere, and "rehearsed" with what came of the block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from lab import priority
from lab.errors import InputError
from lab.load import schedule
from lab.load.recorder import Recorder
from lab.measure.records import Int64s
from lab.measure.words import level_label
from lab.run.control import Inbox
from lab.run.folder import RunFolder
from lab.run.plan import Block, cell_blocks, level_blocks, with_rate
from lab.run.results import baseline_saturation
from lab.run.serving import managed
from lab.serve import scratch, weights
from lab.serve.triton import Server
from lab.spec import Cell, ClosedLoop, Experiment, ModelSpec, Reference, Rollout, parse
from lab.track.deploy import warm
from lab.track.rehearsal import blue_green, canary, ceiling, planted
from lab.track.rehearsal.canary import Played
from lab.track.rehearsal.stage import Stage, stage
from lab.track.routes import Routes
from lab.track.routing import Route
from lab.watch.sampler import Sampler

LEAD_NS = 200_000_000
"""Between the plan of a block and its first request."""

Stopped = Callable[[], bool]
Report = Callable[[str], None]
Tick = Callable[[str, str, float], None]


def measure(experiment: Experiment, folder: RunFolder, stopped: Stopped, report: Report, on_tick: Tick) -> bool:
    """The whole run; whether a page asked it to stop. `on_tick(state, phase, progress)` keeps the status. RunError once
    the gateway has ended."""
    assert experiment.rollout is not None  # noqa: S101  it is a rehearsal
    asked = _Asked(folder, stopped)
    # The users are part of this process: beside a Triton that goes first they would ask late.
    with managed(folder) as server, priority.raised(), ExitStack() as ends:
        folder.event("serving", triton=server.version(), grpc_url=server.grpc_url, managed=True)
        on_tick("starting", "loading the models", 0.0)
        report("loading and warming version 1")
        for spec in (experiment.model, *experiment.neighbours):
            _serve(server, spec)
        cells = experiment.cells()
        routes = Routes(folder.path / "gateway")
        kind: _Canaries | _Environments
        if experiment.rollout.way == "canary":
            kind = _Canaries(experiment, server)
        else:
            kind = _Environments(experiment, server, folder, report, ends)
        kind.route(routes, cells[0])
        extra: dict[str, Sequence[int]] = {}
        ends.enter_context(Sampler(folder, server_pid=server.pid, extra_pids=extra))
        report("starting the gateway")
        place = ends.enter_context(stage(routes, folder.path / "gateway.log"))
        extra["gateway"] = [place.pid]
        recorder = Recorder(folder.path / "requests-0.arrows")
        ends.callback(recorder.close)
        blocks = [*(level_blocks(experiment) if experiment.reference else []), *cell_blocks(experiment)]
        saturation_rps: float | None = None
        for index, planned in enumerate(blocks):
            if asked():
                break
            block, where = with_rate(planned, saturation_rps), f"block {index + 1} of {len(blocks)}"
            told = "how much comes through at all" if block.role == "saturation" else kind.told(cells[block.cell])
            report(f"{where}: {told}")

            def tick(where: str = where, done: float = index / len(blocks)) -> bool:
                on_tick("running", where, done)
                place.check()
                return asked()

            if block.role == "saturation":
                _block(index, block, cells[block.cell], _Ceiling(experiment), place, recorder, folder, tick)
                saturation_rps = None if asked() else baseline_saturation(folder, experiment)
                continue
            with kind.ready(routes, cells[block.cell], block):
                _block(index, block, cells[block.cell], kind, place, recorder, folder, tick)
    return asked.by_page


def _block(
    index: int,
    block: Block,
    cell: Cell,
    kind: _Canaries | _Environments | _Ceiling,
    place: Stage,
    recorder: Recorder,
    folder: RunFolder,
    tick: Callable[[], bool],
) -> None:
    workload = block.workload
    start_ns = time.perf_counter_ns() + LEAD_NS
    closed = isinstance(workload.arrival, ClosedLoop)  # its users decide when they ask
    due_ns = np.zeros(0, np.int64)
    if not closed:
        due_ns = schedule.arrivals(workload.arrival, workload.duration_s, workload.seed) + start_ns
    planned: int | None = None if closed else len(due_ns)
    window = {
        "start_ns": start_ns,
        "measured_from_ns": start_ns + round(workload.warmup_s * 1e9),
        "end_ns": start_ns + round(workload.duration_s * 1e9),
    }
    folder.event(
        "block_start",
        block=index,
        role=block.role,
        cell=block.cell,
        repeat=block.repeat,
        planned=planned,
        workload=workload.model_dump(mode="json"),
        model=block.model.model_dump(mode="json"),
        wall_ns=time.time_ns(),
        **window,
    )
    recorder.begin(index)
    end_ns = window["end_ns"]
    try:
        played = kind.play(place, cell, due_ns, window, recorder, tick)
        planned, end_ns = None if closed else played.asked, min(played.end_ns, window["end_ns"])
        if block.role == "cell":
            rollout = _rollout(cell)
            folder.event(
                "rehearsed", block=index, way=rollout.way, challenger=rollout.challenger, repeat=block.repeat,
                rate_rps=getattr(workload.arrival, "rate_rps", None), **played.told,
            )  # fmt: skip
    finally:
        recorder.flush()
        folder.event("block_end", block=index, planned=planned, end_ns=end_ns, wall_ns=time.time_ns())


class _Ceiling:
    """What comes through, by version 1, with the streams that the rollout has."""

    def __init__(self, experiment: Experiment) -> None:
        self._name = experiment.model.name
        self._talker = experiment.neighbours[-1].name if experiment.neighbours else self._name
        self._concurrency = (experiment.reference or Reference()).concurrency

    def play(
        self, place: Stage, cell: Cell, due_ns: Int64s, window: dict[str, int], recorder: Recorder, tick: Stopped
    ) -> Played:
        return ceiling.play(
            place,
            self._name,
            self._talker,
            window["end_ns"],
            concurrency=self._concurrency,
            streams=_rollout(cell).streams,
            timeout_s=cell.workload.timeout_s,
            recorder=recorder,
            stopped=tick,
        )


class _Canaries:
    """Version 2 is another one in each block, in the same Triton."""

    def __init__(self, experiment: Experiment, server: Server) -> None:
        self._name, self._server = experiment.model.name, server

    def told(self, cell: Cell) -> str:
        return level_label("rollout.challenger", _rollout(cell).challenger)

    def route(self, routes: Routes, cell: Cell) -> None:
        _lay(routes, self._name, {canary.ONE: (self._server, cell.model)})

    @contextmanager
    def ready(self, routes: Routes, cell: Cell, block: Block) -> Iterator[None]:
        """Version 2 loaded, warmed and routed without weight; unloaded in the end."""
        two = planted.serve(self._server, cell.model, _rollout(cell).challenger, seed=block.workload.seed)
        try:
            _lay(routes, self._name, {canary.ONE: (self._server, cell.model), canary.TWO: (self._server, two)})
            yield
        finally:
            self.route(routes, cell)
            self._server.unload(two.name)

    def play(
        self, place: Stage, cell: Cell, due_ns: Int64s, window: dict[str, int], recorder: Recorder, tick: Stopped
    ) -> Played:
        return canary.play(
            place,
            self._name,
            _rollout(cell),
            due_ns,
            window["measured_from_ns"],
            timeout_s=cell.workload.timeout_s,
            recorder=recorder,
            stopped=tick,
        )


class _Environments:
    """Two of them, each with its version of all models; green has a Triton of its own as long as the run goes on."""

    def __init__(
        self, experiment: Experiment, server: Server, folder: RunFolder, report: Report, ends: ExitStack
    ) -> None:
        assert experiment.rollout is not None  # noqa: S101  it is a rehearsal
        report("loading and warming the second environment")
        repository = ends.enter_context(scratch.folder("lab-green-"))
        green = ends.enter_context(Server.start(repository=repository, log=folder.path / "green.log"))
        two = planted.serve(green, experiment.model, experiment.rollout.challenger)
        for spec in experiment.neighbours:
            _serve(green, spec)
        self._served = {
            experiment.model.name: {blue_green.BLUE: (server, experiment.model), blue_green.GREEN: (green, two)},
            **{n.name: {blue_green.BLUE: (server, n), blue_green.GREEN: (green, n)} for n in experiment.neighbours},
        }

    def told(self, cell: Cell) -> str:
        return "all traffic to the second environment, and back"

    def route(self, routes: Routes, cell: Cell) -> None:
        for name, versions in self._served.items():
            _lay(routes, name, versions)

    @contextmanager
    def ready(self, routes: Routes, cell: Cell, block: Block) -> Iterator[None]:
        self.route(routes, cell)
        yield

    def play(
        self, place: Stage, cell: Cell, due_ns: Int64s, window: dict[str, int], recorder: Recorder, tick: Stopped
    ) -> Played:
        """There after a third of what is measured, and back after two thirds."""
        third_ns = (window["end_ns"] - window["measured_from_ns"]) // 3
        names = list(self._served)
        return blue_green.play(
            place,
            names,
            [(server, spec.name) for server, spec in self._served[names[0]].values()],
            due_ns,
            (window["measured_from_ns"] + third_ns, window["measured_from_ns"] + 2 * third_ns),
            streams=_rollout(cell).streams,
            timeout_s=cell.workload.timeout_s,
            recorder=recorder,
            stopped=tick,
        )


def _serve(server: Server, spec: ModelSpec) -> None:
    weights.prepare(spec)
    server.load(spec)
    warm(server, spec)


def _lay(routes: Routes, name: str, versions: dict[str, tuple[Server, ModelSpec]]) -> None:
    """`name` is routed to these versions, the first of which has all of the traffic."""
    written = [
        {
            "version": version,
            "weight": float(n == 0),
            "replicas": [{"url": f"grpc://{server.grpc_url}", "model": spec.name}],
        }
        for n, (version, (server, spec)) in enumerate(versions.items())
    ]
    routes.change(name, lambda _: parse(Route, {"model": name, "versions": written}), action="lay", by="rehearsal")


def _rollout(cell: Cell) -> Rollout:
    if cell.rollout is None:
        raise InputError("rollout is left out; allowed: one with a way")
    return cell.rollout


class _Asked:
    """Whether a stop was asked for, by a signal or by a page."""

    def __init__(self, folder: RunFolder, stopped: Stopped) -> None:
        self._inbox, self._stopped = Inbox(folder.path), stopped
        self.by_page = False

    def __call__(self) -> bool:
        self.by_page = self.by_page or any("stop" in change for change in self._inbox.new())
        return self.by_page or self._stopped()
