"""The blocks that benchmarks/planner.py is held to: which models, asked what, in which order, how one is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from lab.measure.planner.calibration import Measured
from lab.measure.records import Requests, Window
from lab.measure.summary import summarize
from lab.run import planning, results, runner
from lab.run.bench import Bench
from lab.run.catalogue import single
from lab.run.folder import RunFolder, new_run_id
from lab.run.plan import Block
from lab.run.serving import managed
from lab.spec import Batching, ClosedLoop, ModelSpec, Poisson, Workload

WARMUP_S = 0.5
HELD_OUT = (0.3, 0.5, 0.7, 0.85)
"""Of the saturation that is measured in the same session, the rates that held-out blocks ask."""
Saturations = Mapping[str, float]
"""Requests a second that each closed loop was answered lately, by its name."""


@dataclass(frozen=True)
class Asks:
    """A block: which model, in an open loop at `share` of the saturation called `of`, or with `users` in a closed loop,
    which measures one."""

    label: str
    model: ModelSpec
    share: float | None = None
    of: str = ""
    users: int | None = None
    fitted: bool = True


def at(share: float, of: str, model: ModelSpec, label: str = "", *, fitted: bool = True) -> Asks:
    return Asks(label or f"{of} at {share:.0%}", model, share, of, fitted=fitted)


@dataclass(frozen=True)
class Plan:
    """`calibrating` blocks, whose closed loops give the rates that are named like them, and `held_out` ones, all once a
    round. `near`: how many calibrating blocks around a held-out one tell the machine's speed just then."""

    name: str
    calibrating: tuple[Asks, ...]
    held_out: tuple[Asks, ...]
    seconds: float
    held_seconds: float
    rounds: int
    near: int = 8
    workload: Mapping[str, object] = field(default_factory=dict)

    def order(self, number: int) -> list[Asks]:
        """The blocks of a round: the two kinds spread evenly among each other, each in an order of the round's own, so
        that each block runs after others in every round."""
        rng = np.random.default_rng(number)
        spread = [
            ((place + 0.5) / len(kind), kind[which])
            for kind in (self.calibrating, self.held_out)
            for place, which in enumerate(rng.permutation(len(kind)))
        ]
        return [asks for _, asks in sorted(spread, key=lambda row: row[0])]


def digits() -> Plan:
    alone = ModelSpec(name="digits_alone", family="digits")
    whole = ModelSpec(name="digits_whole", family="digits", batching=Batching(max_batch_size=32))
    late = Batching(max_batch_size=32, max_queue_delay_us=2000)
    small = Batching(max_batch_size=8, max_queue_delay_us=1000)
    return Plan(
        "digits",
        (
            Asks("alone", alone, users=4),
            Asks("whole", whole, users=64),
            at(0.25, "alone", alone),
            at(0.2, "whole", whole),
            at(0.58, "alone", alone),
            at(0.45, "whole", whole),
            at(0.82, "alone", alone),
            at(0.78, "whole", whole),
        ),
        (
            *(at(share, of, model) for share in HELD_OUT for of, model in (("alone", alone), ("whole", whole))),
            at(0.8, "alone", _named(alone, "digits_late", late), "delay 2 ms", fitted=False),
            at(1.0, "alone", _named(alone, "digits_small", small), "batches of 8, 1 ms", fitted=False),
        ),
        seconds=2.5,
        held_seconds=6.0,
        rounds=8,
    )


def sleeper() -> Plan:
    alone = ModelSpec(name="sleeper_alone", family="sleeper")
    whole = ModelSpec(name="sleeper_whole", family="sleeper", batching=Batching(max_batch_size=8))
    late = Batching(max_batch_size=4, max_queue_delay_us=5000)
    return Plan(
        "sleeper",
        (
            Asks("alone", alone, users=4),
            Asks("whole", whole, users=16),
            at(0.25, "alone", alone),
            at(0.4, "whole", whole),
            at(0.6, "alone", alone),
            at(0.75, "whole", whole),
        ),
        (
            *(at(share, "alone", alone) for share in HELD_OUT),
            *(at(share, "whole", whole) for share in (0.5, 0.85)),
            at(1.0, "alone", _named(alone, "sleeper_late", late), "batches of 4, 5 ms", fitted=False),
        ),
        seconds=2.5,
        held_seconds=3.0,
        rounds=6,
        workload={"sleep_s": (0.004,)},
    )


def language_model() -> Plan:
    shape = {"family": "llm", "max_batch_size": 8, "max_request_tokens": 128}
    plain = ModelSpec(name="llm_bf16", precision="bf16", **shape)
    eight = ModelSpec(name="llm_int8", precision="int8", **shape)
    return Plan(
        "language model",
        (
            Asks("one", plain, users=1),
            Asks("some", plain, users=3),
            Asks("full", plain, users=8),
            at(0.45, "full", plain),
            at(0.75, "full", plain),
        ),
        (
            *(at(share, "full", plain, f"bf16 at {share:.0%}") for share in (0.3, 0.6, 0.85)),
            *(at(share, "full", eight, f"int8 from bf16, {share:.0%}", fitted=False) for share in (0.5, 0.8)),
        ),
        seconds=5.0,
        held_seconds=11.0,
        rounds=5,
        near=8,
        workload={"prompt_tokens": 16, "output_tokens": (8, 32)},
    )


def _named(model: ModelSpec, name: str, batching: Batching) -> ModelSpec:
    return model.model_copy(update={"name": name, "batching": batching})


class Blocks:
    """Measures one block after the other into a run folder, each once it is asked for."""

    def __init__(self, folder: RunFolder, bench: Bench, plan: Plan) -> None:
        self._folder, self._bench, self._plan = folder, bench, plan
        self._number = 0

    def measure(self, asks: Asks, seconds: float, lately: Saturations, seed: int) -> Measured:
        number, self._number = self._number, self._number + 1
        rate = None if asks.share is None else asks.share * lately[asks.of]
        arrival = ClosedLoop(concurrency=asks.users or 1) if rate is None else Poisson(rate_rps=rate)
        workload = Workload(
            arrival=arrival, duration_s=seconds + WARMUP_S, warmup_s=WARMUP_S, seed=seed, **self._plan.workload
        )
        self._bench.block(number, Block("cell", 0, 0, asks.model, workload), on_tick=lambda phase, progress: None)
        start = next(e for e in self._folder.events() if e["kind"] == "block_start" and e["block"] == number)
        requests = Requests.from_table(self._folder.read("requests"), block=number)
        window = Window(start["start_ns"], start["measured_from_ns"], start["end_ns"])
        delta = results.delta(self._folder.read("server"), asks.model.name, window)
        closed = asks.users is not None
        summary = summarize(requests, window=window, planned=None, slo=None, server=delta, closed_loop=closed)
        if summary.error_fraction:
            raise SystemExit(f"{asks.label}: requests failed: {[problem.text for problem in summary.problems]}")
        return planning.block(requests, window, workload, asks.model, summary, number, asks.label)


@contextmanager
def measuring(plan: Plan) -> Iterator[Blocks]:
    first = plan.calibrating[0].model
    experiment = single(
        {"name": first.name, "family": first.family}, {"arrival": {"kind": "closed", "concurrency": 1}, "duration_s": 1}
    )
    folder = runner.create(experiment, new_run_id("planner"), quick=False, settings=[], url=None)
    folder.set_status(state="running", phase="running", progress=0.0)
    with managed(folder) as server, Bench(folder, server, workers=1, cells=1, stopped=lambda: False) as bench:
        for model in {asks.model.name: asks.model for asks in (*plan.calibrating, *plan.held_out)}.values():
            bench.put(model)
        yield Blocks(folder, bench, plan)
    folder.set_status(state="done", phase="", progress=1.0)
