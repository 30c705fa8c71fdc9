"""Runs an experiment with a fleet: many models behind one budget of memory.

    fill       load them one by one until the budget is reached: how long each takes, its memory, its first answer
    pairs      two models at a time: what one at work does to the other's latency (the interference matrix)
    cells      requests over N models by Zipf's law, through the proxy that swaps (lab/serve/proxy.py)

The cells are blocks as those of every experiment, so the same figures and the same verdict come of them. What is the
fleet's own is in the events (fleet, filled, pair, model_loaded, model_unloaded) and in waits.arrows;
lab/measure/fleet.py makes sense of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lab.errors import InputError, RunError
from lab.load.generator import Progress
from lab.load.payload import requests_for
from lab.run.conversation import stream
from lab.run.equality import ask, infer
from lab.run.fleet_bench import FleetBench, members, room_for
from lab.run.folder import RunFolder
from lab.run.gate import Gate, Limits
from lab.run.interference import pairs
from lab.run.leak import Meter
from lab.run.parked import spare_bytes
from lab.run.plan import Block, cell_blocks, with_rate
from lab.run.serving import serving
from lab.serve import weights
from lab.serve.eviction import MIB, Refused
from lab.serve.triton import Server
from lab.spec import Experiment, Fleet, ModelSpec, set_paths
from lab.watch import host
from lab.watch.gpu import used_bytes

EVERYTHING = 2**62
Report = Callable[[str], None]


def measure(
    experiment: Experiment,
    folder: RunFolder,
    stopped: Callable[[], bool],
    report: Report,
    on_tick: Callable[[str, str, float], None],
) -> bool:
    """The whole run; whether a page asked it to stop. `on_tick(state, phase, progress)` keeps the status."""
    fleet = experiment.fleet
    assert fleet is not None  # noqa: S101  it is a fleet's run
    models = members(experiment, max(cell.workload.models for cell in experiment.cells()))
    for model in {model.family: model for model in models}.values():
        weights.prepare(model)
    with serving(None, folder) as server, _gate(server, models, fleet, folder) as gate:
        assert isinstance(server, Server)  # noqa: S101  without a URL it is the lab's own
        folder.event("serving", triton=server.version(), grpc_url=server.grpc_url, managed=True)
        workers, cells = experiment.workload.workers, len(experiment.cells())
        with FleetBench(folder, server, workers=workers, cells=cells, stopped=stopped) as bench:
            bench.gate, bench.models = gate, models

            def stop() -> bool:
                if any("stop" in change for change in bench.inbox.new()):
                    bench.stop_asked = True
                return bench.stop_asked or stopped()

            meter = Meter(server)
            nothing = meter.settled()
            on_tick("starting", "loading the models", 0.0)
            filled = fill(experiment, server, gate, folder, stop, report)
            if fleet.pair_s and not stop():  # while all that were loaded are there
                on_tick("running", "two models at a time", 0.0)
                pairs(experiment, bench, filled, stop, report)
            budget = fleet.budget_bytes or room_for(_together(gate, filled), fleet.fit)
            report(f"a budget of {budget / MIB:.0f} MiB")
            gate.set_budget(budget)
            folder.event("fleet", budget_bytes=budget, stated=fleet.budget_bytes is not None, filled=len(filled))
            blocks = cell_blocks(experiment)
            for index, planned in enumerate(blocks):
                if stop():
                    return bench.stop_asked
                block, where = with_rate(planned, None), f"block {index + 1} of {len(blocks)}"
                _begin_loaded(gate, [model.name for model in models[: block.workload.models]])
                report(f"{where}: {block.workload.models} models")

                def tick(state: str, _: Progress, where: str = where, done: float = index / len(blocks)) -> None:
                    on_tick(state, where, done)

                bench.block(index, block, on_tick=tick)
            _empty(gate, meter, nothing, experiment.model.device == "gpu", folder)
            return bench.stop_asked


def fill(
    experiment: Experiment,
    server: Server,
    gate: Gate,
    folder: RunFolder,
    stopped: Callable[[], bool],
    report: Report,
) -> list[str]:
    """Load the models in turn, each asked once it is there, until one more would not fit; the names of those loaded."""
    fleet, shelf = experiment.fleet, gate.shelf
    assert fleet is not None  # noqa: S101  it is a fleet's run
    budget = fleet.budget_bytes or EVERYTHING
    free = spare_bytes()
    loaded: list[str] = []
    on_gpu = experiment.model.device == "gpu"
    in_use = used_bytes if on_gpu else lambda: host.host_memory().value
    before = in_use()
    plan: dict[str, int] = {}
    for name, spec in shelf.specs.items():
        plan = plan or _plan(gate)
        predicted = shelf.size_bytes([*loaded, name]) if shelf.is_known(name) else None
        if predicted is not None and predicted > min(budget, free):
            limit = "budget" if budget <= free else "machine's free memory"
            text = f"{name} would make it {predicted / MIB:.0f} MiB; the {limit} is {min(budget, free) / MIB:.0f} MiB"
            folder.event("full", model=name, predicted_bytes=predicted, text=text)
            if not loaded:
                raise RunError(text)
            report(text)
            break
        began = time.perf_counter()
        try:
            gate.acquire(name)
        except Refused as refusal:
            if not loaded:
                raise RunError(str(refusal)) from None
            folder.event("full", model=name, predicted_bytes=predicted, text=str(refusal))
            break
        load_s = time.perf_counter() - began
        first_s = _first_answer_s(server, spec, experiment)
        ask(server.grpc_url, Block("cell", 0, 0, spec, experiment.workload), weights.tokenizer(spec))  # as if in use
        gate.release(name)
        loaded.append(name)
        own = [shelf.look(other) for other in loaded][-1]
        folder.event(
            "filled",
            model=name,
            family=spec.family,
            load_s=load_s,
            first_answer_s=first_s,
            alone_bytes=own and own.alone_bytes,
            own_bytes=own and own.own_bytes,
            total_bytes=shelf.measured_bytes(),
            pss_bytes=None if on_gpu else shelf.pss_bytes(),
            **{"gpu_bytes" if on_gpu else "host_bytes": _grown(before, in_use())},
            predicted_bytes=predicted,
            planned_bytes=plan.get(name),
        )
        if shelf.measured_bytes() > budget:  # of a kind that nobody had measured: it stays out
            folder.event(
                "full",
                model=name,
                predicted_bytes=shelf.measured_bytes(),
                text=f"{name} makes it {shelf.measured_bytes() / MIB:.0f} MiB; the budget is {budget / MIB:.0f} MiB",
            )
            loaded.remove(name)
            gate.unload(name)
            break
        report(f"{name}: loaded in {load_s:.1f} s, {shelf.measured_bytes() / MIB:.0f} MiB with {len(loaded)} loaded")
        if stopped():
            break
    return loaded


def _grown(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before


def _first_answer_s(server: Server, spec: ModelSpec, experiment: Experiment) -> float:
    """Seconds from asking until the whole first answer."""
    workload = set_paths(experiment.workload, [("output_tokens", 8), ("sleep_s", [0.0])])
    (request,) = requests_for(spec, workload, 1, weights.tokenizer(spec))
    began = time.perf_counter()
    if spec.family == "llm":
        list(stream(server.grpc_url, spec.name, request))
    else:
        infer(server.client, spec.name, request)
    return time.perf_counter() - began


def _plan(gate: Gate) -> dict[str, int]:
    """What the models take together up to each, predicted from one of each kind; empty while some kind is unknown."""
    names = list(gate.shelf.specs)
    if not all(map(gate.shelf.is_known, names)):
        return {}
    return dict(zip(names, _together(gate, names), strict=True))


def _together(gate: Gate, names: Sequence[str]) -> list[int]:
    """Bytes that the models take up to each."""
    return [gate.shelf.size_bytes(names[: n + 1]) for n in range(len(names))]


def _begin_loaded(gate: Gate, names: list[str]) -> None:
    """Load the most popular that fit, and count them as used in that order: a block begins with a warm house."""
    fits: list[str] = []
    for name in names:
        if gate.shelf.size_bytes([*fits, name]) > gate.residency.budget_bytes:
            break
        fits.append(name)
    for name in reversed(fits):
        gate.acquire(name)
        gate.release(name)


def _empty(gate: Gate, meter: Meter, nothing: Mapping[str, float], on_gpu: bool, folder: RunFolder) -> None:
    """Unload the fleet and note what is left of it: what the server, processes and shared memory (or the GPUs) hold
    beyond `nothing`, as `meter` read it before anything was loaded."""
    before = gate.shelf.measured_bytes()
    for name in gate.residency.resident():
        gate.unload(name)
    gate.shelf.clear()
    left = {part: size - nothing.get(part, 0.0) for part, size in meter.settled().items() if (part == "gpu") == on_gpu}
    folder.event("emptied", before_bytes=before, left_bytes=max(0.0, sum(left.values())) if left else None, parts=left)
    for name, why in gate.shelf.refused.items():
        folder.event("problem", text=f"{name} was evicted to disk and not to host memory: {why}.")


@contextmanager
def _gate(server: Any, models: Sequence[ModelSpec], fleet: Fleet, folder: RunFolder) -> Iterator[Gate]:
    if not isinstance(server, Server) or server.pid is None:
        raise InputError(
            "a fleet loads and unloads models, which only the lab's own Triton allows; run it without --url"
        )
    limits = Limits(wait_s=fleet.wait_s, queue_limit=fleet.queue_limit)
    with Gate(server, models, EVERYTHING, folder=folder, limits=limits, evict_to=fleet.evict_to) as gate:
        yield gate
