"""The planner on blocks of this machine that it had not seen, beside how far the machine is from itself.

    .venv/bin/python benchmarks/planner.py [--json] [--short] [--only MODEL]        about 7 minutes; --short 2, rough

A machine's speed moves by tens of percent within a minute, so calibration and held-out blocks alternate: calibrate,
hold out, the same once more, calibrate. A held-out block gives the planner its arrivals and nothing else. What it costs
to serve comes from the calibration blocks (all of them for its shape, the rounds just before and after for its speed),
which were taken at other rates, and for "unfitted" rows with another batch size, delay or precision. The two held-out
blocks of a pair have the same arrivals: what they differ by (A/A) is the machine's own noise, which no model can beat.
A block that got more than 85 % of what the model says the server can do is not judged, as on the page.
Three models: digits (real batches), a sleeper (its time is known) and a language model (continuous batching). Of the
first and the last also what a move of a slider on the page Plan takes to compute, once the run is calibrated.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.bench import own_home
from benchmarks.planner_blocks import Asks, Blocks, Plan, Rates, digits, language_model, measuring, sleeper
from benchmarks.table import Row, main, say
from lab.measure import ledger
from lab.measure.floors import Machine
from lab.measure.percentile import needed, percentile
from lab.measure.planner import answers, calibration, heldout, limits, scaling
from lab.measure.planner.calibrated import Calibrated, Ranges, Setting
from lab.measure.planner.calibration import Measured
from lab.measure.planner.calibrator import Calibrator
from lab.measure.planner.heldout import Trust
from lab.measure.planner.limits import Surroundings
from lab.measure.planner.planner import Prediction
from lab.measure.planner.scaling import Format
from lab.measure.planner.service import Service
from lab.measure.planner.steps import Steps
from lab.serve import installation, weights
from lab.spec import ModelSpec, Precision, Slo
from lab.watch.probe import probe

SHORT = "--short" in sys.argv
ONLY = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None
PERCENTILES = {"p95": 0.95, "p99": 0.99}
GOALS = {"throughput": 0.05, "p95": 0.09, "p99": 0.20, "unfitted p95": 0.15}


@dataclass(frozen=True)
class Held:
    """A held-out block and what was predicted of it; `load_fraction`: what it was asked ÷ what the model says the
    server can do."""

    asks: Asks
    pair: int
    measured: Measured
    predicted: Prediction
    load_fraction: float

    @property
    def judged(self) -> bool:
        return self.load_fraction <= heldout.MOST_USED


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
                found, pairs, model = held(plan, blocks, machine)
            rows += report(plan, found, pairs)
            if plan.name != "sleeper":
                rows.append(slider(plan, model))
        return rows


def _machine() -> Machine:
    found = probe()
    rates = {"fp32": found.matmul_fp32_flop_s, "bf16": found.matmul_bf16_flop_s, "int8": found.matmul_int8_op_s}
    return Machine(found.read_bandwidth_bytes_s, rates)


def held(
    plan: Plan, blocks: Blocks, machine: Machine
) -> tuple[list[Held], list[tuple[Measured, Measured]], Calibrated]:
    """(held-out blocks with their predictions, the pairs of equal ones, what a page would plan with)."""
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
        for one in (a, b):
            server = predict(one, near)
            load = (one.summary.offered_rps or 0.0) / heldout.capacity(one, server)
            found.append(Held(asks, pair, one, heldout.replay(one, server), load))
        for one in found[-2:]:
            errors = heldout.error(one.predicted, one.measured.summary.to_dict(), heldout.METRICS)
            told = ", ".join(f"{m.split('_')[1]} {e:+.1%}" for m, e in errors.items() if e is not None)
            of = f"{one.measured.summary.offered_rps:,.1f} req/s, {one.load_fraction:.0%} of capacity"
            say(f"  {asks.label} ({of}): {told}")
    return found, [(a, b) for _, _, a, b in pairs], _to_plan_with(every)


Predict = Callable[[Measured, Sequence[Measured]], Service | Steps]
"""The server of a held-out block, by its model and the blocks measured around it."""


def _batches(every: Sequence[Measured]) -> Predict:
    calibrator = Calibrator(every)
    tuned = calibrator.tune([one.number for one in every])

    def predict(one: Measured, near: Sequence[Measured]) -> Service:
        return calibrator.service(near=[block.number for block in near], tuned=tuned)

    return predict


def _engine(every: Sequence[Measured], machine: Machine) -> Predict:
    def predict(one: Measured, near: Sequence[Measured]) -> Steps:
        steps = calibration.engine_steps(every, near)
        if one.model.precision != every[0].model.precision:
            here, there = (_format(model, every) for model in (every[0].model, one.model))
            steps, _ = scaling.in_precision(steps, here, there, machine)
        return steps

    return predict


def _format(model: ModelSpec, every: Sequence[Measured]) -> Format:
    """Of the measured precision by the engine's own word, of another by the ledger: nothing of it was measured."""
    predicted = ledger.predict(weights.model_config(model), model)
    told = next((b.summary.engine_weight_bytes for b in every if b.model.precision == model.precision), None)
    size = told or predicted["weights"].size_bytes + predicted["scales"].size_bytes
    precision: Precision = model.precision
    return Format(precision, size, predicted.kv_bytes_per_token, predicted=told is None)


def _to_plan_with(every: Sequence[Measured]) -> Calibrated:
    last = every[-1]
    ranges = Ranges((1.0, 1.0), 1.0, frozenset(), (last.model.precision,))
    model = Calibrated(last.model, ranges, Trust((), {}))
    if last.model.family == "llm":
        steps = {last.model.precision: calibration.engine_steps(every)}
        return replace(model, steps=steps, prompt_tokens=int(last.prompt_tokens.max()), output_tokens=(8, 32))
    return replace(model, services={last.model.precision: Calibrator(every).service()})


def slider(plan: Plan, model: Calibrated) -> Row:
    """What the page computes anew at a move: the setting, the replicas, the curve, and the dearer of its two views."""
    slo = Slo(latency_s=4 * (model.pattern(Setting(0.01 * model.capacity_rps(Setting(1.0)))).latency_p95_s or 1.0))
    took = []
    for share, replicas in itertools.product((0.2, 0.5, 0.8), (1, 4)):
        setting = Setting(share * replicas * model.capacity_rps(Setting(1.0)), replicas)
        began = time.perf_counter()
        answers.tell(model, setting, slo)
        answers.needed(model, setting, slo)
        answers.curve(model, setting, slo)
        between = time.perf_counter()
        limits.limits(model, setting, slo, Surroundings())
        broke = time.perf_counter()
        if replicas > 1:
            answers.balancing(model, setting, slo)
        took.append(between - began + max(broke - between, time.perf_counter() - broke))
    note = f"median, worst {max(took):.3g}"
    return Row(f"{plan.name}: a move of a slider", statistics.median(took), " s", "<= 0.3", len(took), note)


def report(plan: Plan, found: Sequence[Held], pairs: Sequence[tuple[Measured, Measured]]) -> list[Row]:
    judged = [h for h in found if h.judged]
    fitted, unfitted = [h for h in judged if h.asks.fitted], [h for h in judged if not h.asks.fitted]
    off = [abs(_error(h, "throughput_rps") or 0.0) for h in judged]
    rows = [
        Row(
            f"{plan.name}: throughput off by, the most",
            max(off, default=None),
            "",
            f"<= {GOALS['throughput']}",
            len(off),
        )
    ]
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
        why = _few(of[0].measured, name) if of else "no such block was below 85 % of capacity"
        return Row(label, None, "", f"<= {goal}", 0, why)
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
