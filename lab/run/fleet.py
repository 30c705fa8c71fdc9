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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import psutil

from lab.errors import InputError, RunError
from lab.load.generator import Job
from lab.run.bench import Bench, serving
from lab.run.conversation import stream
from lab.run.equality import ask, infer
from lab.run.folder import RunFolder
from lab.run.gate import Gate
from lab.run.plan import Block, cell_blocks, with_rate
from lab.serve import weights
from lab.serve.eviction import MIB, Refused
from lab.serve.triton import Server
from lab.spec import Experiment, Fleet, ModelSpec, set_paths
from lab.watch import host

EVERYTHING = 2**62
ROOM_FRACTION = 0.01
"""More than the first `fit` models take: their heaps breathe."""
KEEP_FREE_FRACTION = 0.2
"""Of the machine's free memory, which filling leaves alone."""
SATURATION_S, WARMUP_S = 1.5, 0.5
VICTIM_LOAD, DISTURBER_LOAD = 0.2, 0.6
"""Shares of its own saturation at which a model is asked while it is watched, and while it disturbs."""
PAIR_BLOCKS = 1_000_000
"""Numbers of the blocks of pairs begin here, away from those of the cells."""
MOST_KINDS = 4

Report = Callable[[str], None]


def members(experiment: Experiment, count: int) -> list[ModelSpec]:
    """The first `count` models of the fleet, most popular first: digits_1, embedder_2, digits_3, …"""
    assert experiment.fleet is not None  # noqa: S101
    kinds = [experiment.model, *experiment.fleet.others]
    chosen = [(number, kinds[(number - 1) % len(kinds)]) for number in range(1, count + 1)]
    return [set_paths(spec, [("name", f"{spec.name}_{number}"), ("family", spec.family)]) for number, spec in chosen]


def shares(models: Sequence[ModelSpec], zipf_exponent: float) -> tuple[tuple[ModelSpec, float], ...]:
    """Zipf's law: the k-th gets a share of 1 / k^exponent, in any unit."""
    return tuple((model, 1.0 / k**zipf_exponent) for k, model in enumerate(models, start=1))


class FleetBench(Bench):
    """A bench whose requests go through the gate, to several models."""

    gate: Gate
    models: list[ModelSpec]

    def put(self, model: ModelSpec) -> None:
        """The gate loads what is asked."""

    def _settle(self, model: ModelSpec) -> None:
        """Nothing of the block before waits in the gate: a request ends with its answer."""

    def _look_at(self, name: str) -> None:
        """The gate does."""

    def _scrape(self, models: Sequence[str]) -> None:
        super()._scrape([name for name, place in self.gate.residency.places().items() if place == "resident"])

    def _job(self, index: int, block: Block) -> Job:
        mix = shares(self.models[: block.workload.models], block.workload.zipf_exponent)
        return Job(index, self.gate.url, block.model, block.workload, weights.tokenizer(block.model), mix)


def measure(
    experiment: Experiment, folder: RunFolder, stopped: Callable[[], bool], report: Report, on_tick: Any
) -> bool:
    """The whole run; whether it was stopped by its inbox. `on_tick(phase, blocks_done, blocks)` keeps the status."""
    fleet = experiment.fleet
    assert fleet is not None  # noqa: S101
    models = members(experiment, max(cell.workload.models for cell in experiment.cells()))
    for model in {model.family: model for model in models}.values():
        weights.prepare(model)
    with serving(None, folder) as server, _gate(server, models, fleet, folder) as gate:
        assert isinstance(server, Server)  # noqa: S101
        folder.event("serving", triton=server.version(), grpc_url=server.grpc_url, managed=True)
        with FleetBench(
            folder, server, workers=experiment.workload.workers, cells=len(experiment.cells()), stopped=stopped
        ) as bench:
            bench.gate, bench.models = gate, models
            on_tick("starting", 0, 1)
            filled = fill(experiment, server, gate, folder, stopped, report)
            budget = fleet.budget_bytes or _room_for(gate, filled[: fleet.fit])
            gate.set_budget(budget)
            folder.event("fleet", budget_bytes=budget, stated=fleet.budget_bytes is not None, filled=len(filled))
            if fleet.pair_s and not stopped():
                pairs(experiment, bench, filled, stopped, report)
            blocks = cell_blocks(experiment)
            for index, planned in enumerate(blocks):
                block = with_rate(planned, None)
                _begin_loaded(gate, [model.name for model in models[: block.workload.models]])
                report(f"block {index + 1} of {len(blocks)}: {block.workload.models} models")
                bench.block(index, block, on_tick=lambda phase, _, i=index: on_tick(phase, i, len(blocks)))
                if bench.stop_asked or stopped():
                    return bench.stop_asked
            if not experiment.neighbours:
                _empty(gate, folder)
    return False


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
    assert fleet is not None  # noqa: S101
    budget = fleet.budget_bytes or EVERYTHING
    free = psutil.virtual_memory().available * (1 - KEEP_FREE_FRACTION)
    loaded: list[str] = []
    base = host.host_memory().value or 0.0
    plans = {name: _predicted(gate, list(shelf.specs)[: n + 1]) for n, name in enumerate(shelf.specs)}
    for name, spec in shelf.specs.items():
        predicted = shelf.size_bytes([*loaded, name]) if shelf.is_known(name) else None
        if predicted is not None and predicted > min(budget, free):
            limit = "budget" if budget <= free else "machine's free memory"
            text = f"{name} would make it {predicted / MIB:.0f} MiB; the {limit} is {min(budget, free) / MIB:.0f} MiB"
            folder.event("full", model=name, predicted_bytes=predicted, text=text)
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
            pss_bytes=shelf.pss_bytes(),
            host_bytes=(host.host_memory().value or 0.0) - base,
            predicted_bytes=predicted,
            planned_bytes=plans[name],
        )
        report(f"{name}: loaded in {load_s:.1f} s, {shelf.measured_bytes() / MIB:.0f} MiB with {len(loaded)} loaded")
        if stopped():
            break
    return loaded


def pairs(
    experiment: Experiment, bench: FleetBench, filled: list[str], stopped: Callable[[], bool], report: Report
) -> None:
    """Each model asked lightly, with the others idle and then with each at work: events "pair"."""
    fleet, gate = experiment.fleet, bench.gate
    assert fleet is not None  # noqa: S101
    kinds = 1 + len(fleet.others)
    victims = filled[: min(kinds, MOST_KINDS)]
    twins = dict(zip(victims, filled[kinds:], strict=False))  # the next copy of the same model
    names = [*victims, *twins.values()]
    try:
        for name in names:
            gate.acquire(name)
    except Refused as refusal:
        bench.folder.event("problem", text=f"No interference matrix: {refusal}.")
        return
    spec = gate.shelf.specs
    numbers = iter(range(PAIR_BLOCKS, 2 * PAIR_BLOCKS))
    saturation: dict[str, float] = {}
    for name in victims:
        saturation[name] = _saturation(experiment, bench, spec[name], next(numbers))
    for victim in victims:
        others = {name: saturation[name] for name in victims if name != victim}
        if victim in twins:
            others[twins[victim]] = saturation[victim]
        for disturber in (None, *others):
            if stopped():
                return
            report(f"{victim} at a light load, {f'{disturber} at work' if disturber else 'the others idle'}")
            rate = VICTIM_LOAD * saturation[victim]
            mix = [(spec[victim], rate)]
            if disturber is not None:
                mix.append((spec[disturber], DISTURBER_LOAD * others[disturber]))
            workload = set_paths(
                experiment.workload,
                [
                    ("arrival", {"kind": "poisson", "rate_rps": sum(share for _, share in mix)}),
                    ("duration_s", fleet.pair_s),
                    ("warmup_s", min(WARMUP_S, fleet.pair_s / 4)),
                ],
            )
            number = next(numbers)
            window = _run(bench, Job(number, gate.url, spec[victim], workload, None, tuple(mix)))
            bench.folder.event(
                "pair",
                victim=victim,
                disturber=disturber,
                block=number,
                victim_rps=rate,
                disturber_rps=mix[1][1] if disturber else None,
                **asdict(window),
            )
    for name in names:
        gate.release(name)


def _saturation(experiment: Experiment, bench: FleetBench, spec: ModelSpec, number: int) -> float:
    workload = set_paths(
        experiment.workload,
        [
            ("arrival", {"kind": "closed", "concurrency": 8}),
            ("duration_s", SATURATION_S),
            ("warmup_s", WARMUP_S),
        ],
    )
    window = _run(bench, Job(number, bench.gate.url, spec, workload, None, ((spec, 1.0),)))
    table = bench.folder.read("requests")
    rows = table.filter(
        (table["block"].to_numpy() == number) & (table["done_ns"].to_numpy() >= window.measured_from_ns)
    )
    rate = rows.num_rows / window.seconds
    if not rate:
        raise RunError(f"{spec.name} answered no request in {SATURATION_S:g} s, so no load can be a fraction of that")
    return rate


def _run(bench: FleetBench, job: Job) -> Any:
    window = bench.generator.begin(job)
    bench.generator.wait(job.workload.duration_s + job.workload.timeout_s + 5)
    return window


def _first_answer_s(server: Server, spec: ModelSpec, experiment: Experiment) -> float:
    """Seconds from asking until the whole first answer."""
    from lab.load.payload import requests_for

    workload = set_paths(experiment.workload, [("output_tokens", 8), ("sleep_s", [0.0])])
    (request,) = requests_for(spec, workload, 1, weights.tokenizer(spec))
    began = time.perf_counter()
    if spec.family == "llm":
        list(stream(server.grpc_url, spec.name, request))
    else:
        infer(server.client, spec.name, request)
    return time.perf_counter() - began


def _predicted(gate: Gate, names: list[str]) -> int | None:
    """Before anything is loaded; None when some kind among them was never measured."""
    return gate.shelf.size_bytes(names) if all(map(gate.shelf.is_known, names)) else None


def _room_for(gate: Gate, names: list[str]) -> int:
    return round(gate.shelf.size_bytes(names) * (1 + ROOM_FRACTION))


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


def _empty(gate: Gate, folder: RunFolder) -> None:
    """Unload everything and note what is left of it."""
    before = gate.shelf.measured_bytes()
    server_pid = gate.shelf.server_pid
    for name in gate.residency.resident():
        gate.unload(name)
    left = host.memory("models", [pid for pids in host.model_processes(server_pid).values() for pid in pids])
    folder.event("emptied", before_bytes=before, left_bytes=left.value)


@contextmanager
def _gate(server: Any, models: Sequence[ModelSpec], fleet: Fleet, folder: RunFolder) -> Iterator[Gate]:
    if not isinstance(server, Server) or server.pid is None:
        raise InputError(
            "a fleet loads and unloads models, which only the lab's own Triton allows; run it without --url"
        )
    limits = {"wait_s": fleet.wait_s, "queue_limit": fleet.queue_limit}
    with Gate(server, models, EVERYTHING, folder=folder, **limits) as gate:
        yield gate
