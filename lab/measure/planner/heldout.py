"""How far the model is off on this machine: each measured block in turn is left out, predicted, and compared.

A block is predicted from all others of the same weights and precision (a language model's at the speed of those that
ran just before and after it), and it is asked what the real one was asked, arrival by arrival. "Fitted" settings (batch
size, delay) were measured in another block as well; for an "unfitted" one every block of that setting is left out.

Blocks that were asked more than MOST_USED of what the server can do are not judged: there its latency says more about
the last percent of its speed than about anything else (a closed loop asks no more than is answered). And two blocks of
one cell are compared with each other: no model can be closer than the machine is to itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner import calibration
from lab.measure.planner.calibration import Measured
from lab.measure.planner.calibrator import Calibrator
from lab.measure.planner.engine_calibrator import AGAIN, EngineCalibrator, asked, filled
from lab.measure.planner.planner import capacity_rps, error, simulated_engine_run, simulated_run
from lab.measure.planner.prediction import Prediction, SimulatedRun, put_together
from lab.measure.planner.queueing import Users
from lab.measure.planner.service import Service
from lab.measure.planner.steps import Steps
from lab.spec import ModelSpec, Slo

MOST_USED = 0.85
"""Of capacity; beyond it no held-out block is judged and no interval is told."""
METRICS = ("throughput_rps", "latency_p50_s", "latency_p95_s", "latency_p99_s")
FOLDS = 4
RUNS = 8
"""Replays of an open loop's block, with draws of their own, that a prediction of it is put together from. A closed
loop's, which are slow, are of many more requests each."""
BESIDE = 4
"""Blocks around one that tell how fast the machine was."""
FEW = 20
"""Errors below which their extremes are the interval, and from which 90 % of them are."""
SAME = ("family", "weights", "precision", "quantizer", "group_size", "kv_cache_precision", "kv_cache", "device")
"""Fields in which blocks agree that calibrate each other; and these: seed, instances and threads."""


@dataclass(frozen=True)
class HeldOut:
    """One block: `errors` is predicted ÷ measured - 1 by metric, None where it was not measured; `fitted`: whether
    other blocks of its setting were known; `load_fraction`: its rate ÷ what the model says that the server can do, None
    in a closed loop."""

    label: str
    number: int
    rate_rps: float
    load_fraction: float | None
    fitted: bool
    predicted: Prediction
    measured: dict[str, float | None]
    errors: dict[str, float | None]

    @property
    def judged(self) -> bool:
        return self.load_fraction is None or self.load_fraction <= MOST_USED


@dataclass(frozen=True)
class Trust:
    """What held-out blocks say of predictions on this machine. `noise`: by metric, how far two blocks of one cell are
    from each other, larger ÷ smaller - 1 each."""

    held_out: tuple[HeldOut, ...]
    noise: dict[str, tuple[float, ...]]

    @property
    def known(self) -> bool:
        """Whether any block could be left out and judged."""
        return any(h.judged for h in self.held_out)

    def errors(self, metric: str, *, fitted: bool) -> list[float]:
        """Of judged blocks; those of unfitted settings, where a plan asks about such a one."""
        rows = [h for h in self.held_out if h.judged and h.fitted == fitted]
        return [found for h in rows if (found := h.errors.get(metric)) is not None]

    def typical(self, metric: str, *, fitted: bool) -> float | None:
        """The middle one of the errors' sizes; None of none."""
        sizes = [abs(found) for found in self.errors(metric, fitted=fitted)]
        return float(np.median(sizes)) if sizes else None

    def worst(self, metric: str, *, fitted: bool) -> float | None:
        sizes = [abs(found) for found in self.errors(metric, fitted=fitted)]
        return max(sizes) if sizes else None

    def typical_noise(self, metric: str) -> float | None:
        return float(np.median(self.noise[metric])) if self.noise.get(metric) else None

    def span(self, metric: str, *, fitted: bool) -> tuple[float, float] | None:
        """The errors' extremes, or 5th and 95th percentile of FEW and more; None of none. 0 is always within."""
        found = self.errors(metric, fitted=fitted)
        if not found:
            return None
        low, high = (min(found), max(found)) if len(found) < FEW else np.quantile(found, (0.05, 0.95))
        return min(0.0, float(low)), max(0.0, float(high))

    def interval(self, metric: str, predicted: float | None, *, fitted: bool) -> tuple[float, float] | None:
        """Where the truth is by these errors: a model that says 10 % too much means that the truth is ÷ 1.1."""
        span = self.span(metric, fitted=fitted)
        if span is None or predicted is None:
            return None
        return predicted / (1 + span[1]), predicted / max(1 + span[0], 0.05)


def trust(blocks: Sequence[Measured], slo: Slo | None = None) -> Trust:
    """Every block that can be predicted from others, once fitted and once unfitted where both can be had. What replays
    tune is tuned anew for each of FOLDS parts of the run, on all but that part."""
    found: list[HeldOut] = []
    for family in families(blocks):
        calibrator = (EngineCalibrator if family[0].model.family == "llm" else Calibrator)(family)
        for part in np.array_split(np.arange(len(family)), min(FOLDS, len(family))):
            rest = [family[place] for place in range(len(family)) if place not in part]
            tuned: Tuned | None = None
            for block in (family[place] for place in part):
                if block.reference or not len(block.due_s) or block.summary.latency_p50_s is None or not rest:
                    continue
                if tuned is None:
                    tuned = _tuned(calibrator, [other.number for other in rest])
                found += _held_out(block, [b for b in family if b.number != block.number], tuned, slo)
    return Trust(tuple(sorted(found, key=lambda h: (h.number, not h.fitted))), _noise(blocks))


Tuned = Callable[[Sequence[int], Sequence[int]], Service | Steps]
"""A calibrated server, by the numbers of the blocks that give its shape and of those that give its speed."""


def _tuned(calibrator: Calibrator | EngineCalibrator, among: Sequence[int]) -> Tuned:
    if isinstance(calibrator, EngineCalibrator):
        return partial(calibrator.steps, tuned=calibrator.tune(among))
    tuned = calibrator.tune(among)
    return lambda known, near: calibrator.service(known, tuned)


def _held_out(block: Measured, others: Sequence[Measured], tuned: Tuned, slo: Slo | None) -> list[HeldOut]:
    strangers = [other for other in others if setting(other.model) != setting(block.model)]
    found = []
    for fitted, known in ((True, others), (False, strangers)):
        if not known or (fitted and len(strangers) == len(others)):
            continue
        server = _server(block, known, tuned)
        if server is None:
            continue
        predicted, measured = replay(block, server, slo), block.summary.to_dict()
        rate = block.summary.offered_rps or 0.0
        load = rate / capacity(block, server) if block.users is None else None
        errors = error(predicted, measured, METRICS)
        found.append(HeldOut(block.label, block.number, rate, load, fitted, predicted, measured, errors))
    return found


def capacity(block: Measured, server: Service | Steps) -> float:
    """Requests a second that the server could answer if they were like the block's."""
    if isinstance(server, Service):
        return capacity_rps(server, calibration.rules(block.model))
    tokens = [float(filled(counts).mean()) for counts in (block.prompt_tokens, block.output_tokens)]
    return capacity_rps(server, calibration.engine_rules(block.model), *tokens)


def replay(
    block: Measured, server: Service | Steps, slo: Slo | None = None, seed: int = 0, *, model: ModelSpec | None = None
) -> Prediction:
    """What a calibrated server does when it is asked what the block was, as a summary would tell it. `model`: with
    these rules in place of the block's own."""
    return put_together(replays(block, server, seed, model=model), slo)


def replays(
    block: Measured, server: Service | Steps, seed: int = 0, *, model: ModelSpec | None = None
) -> list[SimulatedRun]:
    """The same as runs, so that several blocks can be put together."""
    of = model or block.model
    seeds = range(seed, seed + (RUNS if block.users is None else 1))
    if isinstance(server, Service):
        arrivals, rules = _arrivals(block), calibration.rules(of)
        return [simulated_run(arrivals, rules, server, one, block.window_s) for one in seeds]
    engine = calibration.engine_rules(of)
    return [simulated_engine_run(asked(block), engine, server, one, block.window_s) for one in seeds]


def _arrivals(block: Measured) -> Floats | Users:
    return block.due_s if block.users is None else Users(block.users, AGAIN * len(block.due_s), block.think_s)


def alike(a: ModelSpec, b: ModelSpec) -> bool:
    """Whether a block of the one says how long the other computes, whatever their batching."""
    return all(getattr(a, name) == getattr(b, name) for name in (*SAME, "seed", "instances", "threads"))


def setting(model: ModelSpec) -> tuple[object, ...]:
    """What requests share a batch by."""
    if model.family == "llm":
        return (model.scheduler, model.max_batch_size)
    batching = model.batching
    return (None,) if batching is None else (batching.max_batch_size, batching.max_queue_delay_us)


def neighbours(block: Measured, others: Sequence[Measured]) -> list[Measured]:
    """Those that ran nearest to it in time, BESIDE of them."""
    return sorted(others, key=lambda other: (abs(other.number - block.number), other.number))[:BESIDE]


def families(blocks: Sequence[Measured]) -> list[list[Measured]]:
    """Blocks that calibrate each other."""
    found: list[list[Measured]] = []
    for block in blocks:
        of = next((family for family in found if alike(family[0].model, block.model)), None)
        if of is None:
            found.append(of := [])
        of.append(block)
    return found


def _server(block: Measured, known: Sequence[Measured], tuned: Tuned) -> Service | Steps | None:
    """What the others say of the block's server; None where they say nothing, or its engine is not modelled."""
    near = neighbours(block, known)
    try:
        if block.model.family == "llm":
            calibration.engine_rules(block.model)
        return tuned([other.number for other in known], [other.number for other in near])
    except InputError:
        return None


def _noise(blocks: Sequence[Measured]) -> dict[str, tuple[float, ...]]:
    cells: dict[str, list[Measured]] = {}
    for block in blocks:
        if not block.reference:
            cells.setdefault(block.label, []).append(block)
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for same in cells.values():
        for a, b in itertools.pairwise(same):
            for metric in METRICS:
                low, high = sorted(getattr(x.summary, metric) or 0.0 for x in (a, b))
                if low > 0:
                    found[metric].append(high / low - 1)
    return {metric: tuple(values) for metric, values in found.items()}
