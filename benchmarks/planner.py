"""The planner on blocks of this machine that it had not seen, beside how far the machine is from itself.

    .venv/bin/python benchmarks/planner.py [--json] [--short] [--only MODEL]        about 7 minutes; --short 2, rough

A machine's speed moves by tens of percent within a minute, so calibration and held-out blocks alternate: calibrate,
hold out, the same once more, calibrate. A held-out block gives the planner its arrivals and nothing else. What it costs
to serve comes from the calibration blocks (all of them for its shape, the rounds just before and after for its speed),
which were taken at other rates, and for "unfitted" rows with another batch size, delay or precision. The two held-out
blocks of a pair have the same arrivals: what they differ by (A/A) is the machine's own noise, which no model can beat.
Three models: digits (real batches), a sleeper (its time is known) and a language model (continuous batching).
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.bench import own_home
from benchmarks.table import Row, main, say
from lab.measure import ledger
from lab.measure.floors import Machine
from lab.measure.percentile import needed, percentile
from lab.measure.planner import calibration, heldout, scaling
from lab.measure.planner.calibration import Measured
from lab.measure.planner.calibrator import Calibrator
from lab.measure.planner.planner import Prediction
from lab.measure.planner.scaling import Format
from lab.measure.records import Requests, Window
from lab.measure.summary import summarize
from lab.run import planning, results, runner
from lab.run.bench import Bench, managed
from lab.run.catalogue import single
from lab.run.folder import RunFolder, new_run_id
from lab.run.plan import Block
from lab.serve import installation, weights
from lab.spec import Batching, ClosedLoop, ModelSpec, Poisson, Precision, Workload
from lab.watch.probe import probe

SHORT = "--short" in sys.argv
ONLY = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None
WARMUP_S = 0.5
PERCENTILES = {"p95": 0.95, "p99": 0.99}
GOALS = {"throughput": 0.05, "p95": 0.09, "p99": 0.20, "unfitted p95": 0.15}
Rates = dict[str, float]
"""Requests a second by name, as the latest calibration round measured them."""


@dataclass(frozen=True)
class Asks:
    """A block: which model, in an open loop at `rate` of the rates so far, or `users` of a closed one."""

    label: str
    model: ModelSpec
    rate: Callable[[Rates], float] | None = None
    users: int | None = None
    fitted: bool = True


@dataclass(frozen=True)
class Plan:
    """`calibrating` blocks make a round, whose closed loops give the rates that are named like them; `held_out` blocks
    are measured twice each. A round comes after every `every` pairs."""

    name: str
    calibrating: tuple[Asks, ...]
    held_out: tuple[Asks, ...]
    seconds: float
    held_seconds: float
    every: int = 1
    workload: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Held:
    """A held-out block and what was predicted of it."""

    asks: Asks
    pair: int
    measured: Measured
    predicted: Prediction


def digits() -> Plan:
    alone = ModelSpec(name="digits_alone", family="digits")
    whole = ModelSpec(name="digits_whole", family="digits", batching=Batching(max_batch_size=32))
    late = Batching(max_batch_size=32, max_queue_delay_us=2000)
    small = Batching(max_batch_size=8, max_queue_delay_us=1000)
    return Plan(
        "digits",
        (
            Asks("alone", alone, users=4),
            Asks("alone, light", alone, lambda rates: 0.2 * rates["alone"]),
            Asks("whole", whole, users=32),
            Asks("whole, light", whole, lambda rates: 0.5 * rates["alone"]),
            Asks("whole, heavy", whole, lambda rates: 0.55 * rates["whole"]),
        ),
        (
            Asks("alone at 50 %", alone, lambda rates: 0.5 * rates["alone"]),
            Asks("alone at 70 %", alone, lambda rates: 0.7 * rates["alone"]),
            Asks("batches of 32 at 35 %", whole, lambda rates: 0.35 * rates["whole"]),
            Asks("batches of 32 at 70 %", whole, lambda rates: 0.7 * rates["whole"]),
            Asks("delay 2 ms", _named(alone, "digits_late", late), lambda rates: 0.8 * rates["alone"], fitted=False),
            Asks(
                "batches of 8, 1 ms", _named(alone, "digits_small", small), lambda rates: rates["alone"], fitted=False
            ),
        ),
        seconds=2.5,
        held_seconds=4.0,
    )


def sleeper() -> Plan:
    alone = ModelSpec(name="sleeper_alone", family="sleeper")
    whole = ModelSpec(name="sleeper_whole", family="sleeper", batching=Batching(max_batch_size=8))
    late = Batching(max_batch_size=4, max_queue_delay_us=5000)
    return Plan(
        "sleeper",
        (
            Asks("alone", alone, users=4),
            Asks("alone, light", alone, lambda rates: 0.2 * rates["alone"]),
            Asks("whole", whole, users=16),
        ),
        (
            Asks("alone at 50 %", alone, lambda rates: 0.5 * rates["alone"]),
            Asks("alone at 70 %", alone, lambda rates: 0.7 * rates["alone"]),
            Asks("alone at 85 %", alone, lambda rates: 0.85 * rates["alone"]),
            Asks("batches of 8 at 60 %", whole, lambda rates: 0.6 * rates["whole"]),
            Asks("batches of 4, 5 ms", _named(alone, "sleeper_late", late), lambda rates: rates["alone"], fitted=False),
        ),
        seconds=2.5,
        held_seconds=4.0,
        every=2,
        workload={"sleep_s": (0.004,)},
    )


def language_model() -> Plan:
    shape = {"family": "llm", "max_batch_size": 8, "max_request_tokens": 128}
    plain = ModelSpec(name="llm_bf16", precision="bf16", **shape)
    eight = ModelSpec(name="llm_int8", precision="int8", **shape)
    return Plan(
        "language model",
        (Asks("one", plain, users=1), Asks("full", plain, users=8)),
        (
            Asks("bf16 at 45 %", plain, lambda rates: 0.45 * rates["full"]),
            Asks("bf16 at 70 %", plain, lambda rates: 0.7 * rates["full"]),
            Asks("int8 from bf16, 50 %", eight, lambda rates: 0.5 * rates["full"], fitted=False),
            Asks("int8 from bf16, 80 %", eight, lambda rates: 0.8 * rates["full"], fitted=False),
        ),
        seconds=5.0,
        held_seconds=11.0,
        workload={"prompt_tokens": 16, "output_tokens": (8, 32)},
    )


def _named(model: ModelSpec, name: str, batching: Batching) -> ModelSpec:
    return model.model_copy(update={"name": name, "batching": batching})


def measure() -> list[Row]:
    installation.fetch()
    plans = [plan for plan in (digits(), sleeper(), language_model()) if ONLY is None or plan.name.startswith(ONLY)]
    if not plans:
        raise SystemExit(f"--only {ONLY!r}: allowed: digits, sleeper, language")
    models = {asks.model.name: asks.model for plan in plans for asks in (*plan.calibrating, *plan.held_out)}
    for model in models.values():
        weights.prepare(model)
    with own_home():
        machine = _machine()
        rows = []
        for plan in plans:
            with measuring(plan) as blocks:
                rows += report(plan, *held(plan, blocks, machine))
        return rows


def _machine() -> Machine:
    found = probe()
    rates = {"fp32": found.matmul_fp32_flop_s, "bf16": found.matmul_bf16_flop_s, "int8": found.matmul_int8_op_s}
    return Machine(found.read_bandwidth_bytes_s, rates)


class Blocks:
    """Measures one block after the other into a run folder, each once it is asked for."""

    def __init__(self, folder: RunFolder, bench: Bench, plan: Plan) -> None:
        self._folder, self._bench, self._plan = folder, bench, plan
        self._number = 0

    def measure(self, asks: Asks, seconds: float, rates: Rates, seed: int) -> Measured:
        number, self._number = self._number, self._number + 1
        rate = None if asks.rate is None else asks.rate(rates)
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


def held(plan: Plan, blocks: Blocks, machine: Machine) -> tuple[list[Held], list[tuple[Measured, Measured]]]:
    """(held-out blocks with their predictions, the pairs of equal ones), once all are measured."""
    rates: Rates = {}
    rounds: list[list[Measured]] = []
    pairs: list[tuple[Asks, int, Measured, Measured]] = []

    def calibrate() -> None:
        found = []
        for asks in plan.calibrating:
            one = blocks.measure(asks, plan.seconds / (2 if SHORT else 1), rates, seed=len(rounds))
            if asks.users is not None:
                rates[asks.label] = one.summary.throughput_rps or 0.0
            found.append(one)
        rounds.append(found)
        say(f"{plan.name}: " + ", ".join(f"{name} {rate:,.1f} req/s" for name, rate in rates.items()))

    calibrate()
    for place, asks in enumerate(plan.held_out):
        seconds = plan.held_seconds / (3 if SHORT else 1)
        a, b = (blocks.measure(asks, seconds, rates, seed=1000 + place) for _ in range(2))
        pairs.append((asks, len(rounds) - 1, a, b))
        if asks is plan.held_out[-1] or (not SHORT and (place + 1) % plan.every == 0):
            calibrate()
    every = list(itertools.chain.from_iterable(rounds))
    predict = _engine(every, machine) if plan.name == "language model" else _batches(every)
    found = []
    for pair, (asks, before, a, b) in enumerate(pairs):
        near = [one for part in rounds[before : before + 2] for one in part]
        found += [Held(asks, pair, one, predict(one, near)) for one in (a, b)]
        for one in found[-2:]:
            errors = heldout.error(one.predicted, one.measured.summary.to_dict(), heldout.METRICS)
            told = ", ".join(f"{m.split('_')[1]} {e:+.1%}" for m, e in errors.items() if e is not None)
            say(f"  {asks.label} ({one.measured.summary.offered_rps:,.1f} req/s): {told}")
    return found, [(a, b) for _, _, a, b in pairs]


Predict = Callable[[Measured, Sequence[Measured]], Prediction]


def _batches(every: Sequence[Measured]) -> Predict:
    calibrator = Calibrator(every)
    tuned = calibrator.tune([one.number for one in every])

    def predict(one: Measured, near: Sequence[Measured]) -> Prediction:
        return heldout.replay(one, calibrator.service(near=[block.number for block in near], tuned=tuned))

    return predict


def _engine(every: Sequence[Measured], machine: Machine) -> Predict:
    def predict(one: Measured, near: Sequence[Measured]) -> Prediction:
        steps = calibration.engine_steps(every, near)
        if one.model.precision != every[0].model.precision:
            here, there = (_format(model, every) for model in (every[0].model, one.model))
            steps, _ = scaling.in_precision(steps, here, there, machine)
        return heldout.replay(one, steps)

    return predict


def _format(model: ModelSpec, every: Sequence[Measured]) -> Format:
    """Of the measured precision by the engine's own word, of another by the ledger: nothing of it was measured."""
    predicted = ledger.predict(weights.model_config(model), model)
    told = next((b.summary.engine_weight_bytes for b in every if b.model.precision == model.precision), None)
    size = told or predicted["weights"].size_bytes + predicted["scales"].size_bytes
    precision: Precision = model.precision
    return Format(precision, size, predicted.kv_bytes_per_token, predicted=told is None)


def report(plan: Plan, found: Sequence[Held], pairs: Sequence[tuple[Measured, Measured]]) -> list[Row]:
    fitted, unfitted = [h for h in found if h.asks.fitted], [h for h in found if not h.asks.fitted]
    off = [abs(_error(h, "throughput_rps") or 0.0) for h in found]
    rows = [Row(f"{plan.name}: throughput off by, the most", max(off), "", f"<= {GOALS['throughput']}", len(off))]
    for name in PERCENTILES:
        rows.append(_row(f"{plan.name}: {name} off by", name, fitted, GOALS[name]))
    rows.append(_row(f"{plan.name}: p95 off by, unfitted factor", "p95", unfitted, GOALS["unfitted p95"]))
    for name in PERCENTILES:
        own = [sorted(at) for a, b in pairs if None not in (at := [_at(one.latency_s, name) for one in (a, b)])]
        apart = [high / low - 1 for low, high in own]
        note = f"median, worst {max(apart):.3g}; the machine's own noise" if apart else _few(pairs[0][0], name)
        label = f"{plan.name}: A/A, {name} of two equal blocks apart by"
        rows.append(Row(label, statistics.median(apart) if apart else None, "", None, len(apart), note))
    return rows


def _row(label: str, name: str, of: Sequence[Held], goal: float) -> Row:
    errors = [abs(e) for h in of if (e := _error(h, f"latency_{name}_s")) is not None]
    if not errors:
        return Row(label, None, "", f"<= {goal}", 0, _few(of[0].measured, name))
    return Row(label, statistics.median(errors), "", f"<= {goal}", len(errors), f"median, worst {max(errors):.3g}")


def _error(one: Held, metric: str) -> float | None:
    return heldout.error(one.predicted, one.measured.summary.to_dict(), [metric])[metric]


def _at(latency_s: np.ndarray, name: str) -> float | None:
    p = PERCENTILES[name]
    return percentile(latency_s, p) if len(latency_s) >= needed(p) else None


def _few(one: Measured, name: str) -> str:
    return f"needs {needed(PERCENTILES[name])} answers in a block, has {len(one.latency_s)}"


if __name__ == "__main__":
    sys.argv = [one for one in sys.argv if one not in ("--short", "--only", ONLY)]
    sys.exit(main(__doc__.splitlines()[0], measure))
