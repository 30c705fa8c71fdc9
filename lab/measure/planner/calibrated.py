"""A run's server as a model that can be asked: what if there were another rate, batch size, delay, precision, number of
replicas, accelerator.

A `Setting` says what is asked; whatever it leaves out is as the run's model has it. `outside` tells in sentences how
far a setting is from what was measured: a prediction there is an extrapolation, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lab.errors import InputError
from lab.measure.floors import Machine
from lab.measure.planner import calibration, heldout, scaling
from lab.measure.planner.engine_simulator import Asked, EngineRules
from lab.measure.planner.heldout import Trust
from lab.measure.planner.planner import (
    capacity_rps,
    in_turn,
    lengths,
    poisson,
    simulated_engine_run,
    simulated_run,
)
from lab.measure.planner.prediction import Prediction, SimulatedRun, put_together
from lab.measure.planner.queueing import Rules
from lab.measure.planner.scaling import Format
from lab.measure.planner.service import Service
from lab.measure.planner.setting import Point, Ranges, Setting
from lab.measure.planner.simulator import simulate
from lab.measure.planner.steps import Steps
from lab.measure.words import format_rate, format_ratio, format_setting_s, join, plural
from lab.spec import Batching, Lengths, ModelSpec, Precision, Slo

RUNS = 8
"""That are simulated for one prediction."""
REQUESTS, ANSWERS = 4_000, 400
"""Of each run; of a language model fewer, since each has many steps."""
TOGETHER = 1_000
"""Requests of each run for every replica, up to MOST_TOGETHER of them, behind a router; of a language model ANSWERS."""
MOST_TOGETHER = 4
APART = 1_000
"""From seed to seed of two runs; between them are those of a run's other purposes."""


@dataclass(frozen=True)
class Calibrated:
    """`services` of a model that Triton batches or `steps` of a language model, by precision as measured. `formats`:
    what a step of each precision that can be asked about reads; `machine`: what this one can do, None where no run
    probed it. `trust`: how far it is off on blocks that it did not see; `points`: the blocks
    themselves."""

    model: ModelSpec
    ranges: Ranges
    trust: Trust
    services: Mapping[Precision, Service] = field(default_factory=dict)
    steps: Mapping[Precision, Steps] = field(default_factory=dict)
    formats: Mapping[Precision, Format] = field(default_factory=dict)
    machine: Machine | None = None
    prompt_tokens: Lengths = 1
    output_tokens: Lengths = 1
    points: tuple[Point, ...] = ()

    @property
    def is_engine(self) -> bool:
        return bool(self.steps)

    @property
    def requests(self) -> int:
        """Of each simulated run."""
        return ANSWERS if self.is_engine else REQUESTS

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Those that can be asked about, the measured ones first."""
        measured = tuple(self.steps or self.services)
        return (*measured, *(name for name in self.formats if name not in measured)) if self.is_engine else measured

    def model_of(self, setting: Setting) -> ModelSpec:
        """The model as it would be served. InputError where a field does not fit."""
        changes: dict[str, object] = {"precision": setting.precision or self.model.precision}
        if changes["precision"] != self.model.precision:
            changes["quantizer"] = "rtn"
        if self.is_engine:
            changes["max_batch_size"] = setting.max_batch_size or self.model.max_batch_size
            if setting.delay_s:
                raise InputError(
                    f"delay {format_setting_s(setting.delay_s)}: a language model's engine holds nobody back"
                )
            return self.model.model_copy(update=changes)
        own = self.model.batching
        size = setting.max_batch_size or (own.max_batch_size if own else 1)
        delay_s = setting.delay_s if setting.delay_s is not None else own.max_queue_delay_us / 1e6 if own else 0.0
        changes["batching"] = (
            None
            if size == 1
            else Batching(
                max_batch_size=size,
                max_queue_delay_us=round(delay_s * 1e6),
                max_queue_size=own.max_queue_size if own else None,
            )
        )
        return self.model.model_copy(update=changes)

    def server(self, setting: Setting) -> tuple[Service | Steps, tuple[str, ...]]:
        """(the server's model, how what was not measured was found). InputError for what cannot be scaled."""
        precision = setting.precision or self.model.precision
        if not self.is_engine:
            if precision not in self.services:
                raise InputError(
                    f"precision {precision!r}: not measured in this run, and what {self.model.family} takes is not "
                    f"scaled; allowed: {join(list(self.services))}"
                )
            if setting.accelerator is not None:
                raise InputError(
                    f"accelerator {setting.accelerator.name!r}: what {self.model.family} takes here is mostly the "
                    "server's own work, which no data sheet scales; allowed: null, or a run of a language model"
                )
            return self.services[precision], ()
        steps, told = self._in_precision(precision)
        if setting.accelerator is not None:
            steps, how = scaling.on_accelerator(steps, precision, self.machine, setting.accelerator)
            told = (*told, how)
        return steps, told

    def _in_precision(self, precision: Precision) -> tuple[Steps, tuple[str, ...]]:
        if precision in self.steps:
            return self.steps[precision], ()
        there = self.formats.get(precision)
        base = next((name for name in self.steps if name in self.formats), None)
        if there is None or base is None:
            raise InputError(
                f"precision {precision!r}: not measured in this run, and what a step reads in it is not known; "
                f"allowed: {join(list(self.precisions))}"
            )
        steps, how = scaling.in_precision(self.steps[base], self.formats[base], there, self.machine)
        return steps, (how,)

    def rules(self, setting: Setting, replicas: int) -> Rules | EngineRules:
        model = self.model_of(setting)
        if self.is_engine:
            return calibration.engine_rules(model, replicas=replicas, routing=setting.routing)
        return calibration.rules(model, replicas=replicas, routing=setting.routing)

    def pattern(self, setting: Setting, slo: Slo | None = None, *, seed: int = 0) -> Prediction:
        """All replicas, taking requests in turn, by one of them: each is as all others. Routers that look at the
        replicas do no worse."""
        return put_together(self.runs(setting, seed=seed), slo).of(setting.replicas)

    def runs(self, setting: Setting, *, seed: int = 0) -> list[SimulatedRun]:
        """Of one of the replicas, each independent of the others and the same at every rate but for the time between
        two requests. Rates are told as of the rate that was asked about."""
        server, _ = self.server(setting)
        rules, n = self.rules(setting, 1), self.requests
        seeds = [seed + APART * number for number in range(RUNS)]
        arrivals = [(in_turn(setting.rate_rps, setting.replicas, n, one), one) for one in seeds]
        return [self._run(due_s, rules, server, one, setting.rate_rps / setting.replicas) for due_s, one in arrivals]

    def together(self, setting: Setting, slo: Slo | None = None, *, seed: int = 0) -> Prediction:
        """All replicas behind the setting's router, as warm as they are when requests are taken in turn: a router
        decides who waits for whom, and how a machine cools between two requests was measured behind none. Each router
        gets the same runs."""
        server, _ = self.server(setting)
        rules = self.rules(setting, setting.replicas)
        n = min(MOST_TOGETHER, setting.replicas) * (ANSWERS if self.is_engine else TOGETHER)
        if isinstance(server, Service):
            server = server.as_warm(self._woken(setting, server, seed))
        seeds = [seed + APART * number for number in range(RUNS)]
        arrivals = [(poisson(setting.rate_rps, n, one), one) for one in seeds]
        return put_together([self._run(due_s, rules, server, one, setting.rate_rps) for due_s, one in arrivals], slo)

    def _woken(self, setting: Setting, server: Service, seed: int) -> float:
        """The share of waking that batches of one of the replicas pay, requests taken in turn."""
        rules = self.rules(setting, 1)
        if not server.wake_s or not isinstance(rules, Rules):
            return 0.0
        due_s = in_turn(setting.rate_rps, setting.replicas, REQUESTS // 4, seed)
        found = simulate(due_s, replace(rules, max_queue_size=None), server, seed=seed)
        _, first = np.unique(found.start_s, return_index=True)
        return float(np.mean([server.woken(idle_s) for idle_s in found.idle_s[first]]))

    def _run(
        self, due_s: np.ndarray, rules: Rules | EngineRules, server: Service | Steps, seed: int, rate_rps: float
    ) -> SimulatedRun:
        """Of what comes at `due_s`. The seconds of its window are those in which as much comes at `rate_rps`: these
        arrivals have by chance another rate."""
        if isinstance(server, Service) and isinstance(rules, Rules):
            found = simulated_run(due_s, rules, server, seed + 3)
        elif isinstance(server, Steps) and isinstance(rules, EngineRules):
            prompts = lengths(self.prompt_tokens, len(due_s), seed + 1)
            outputs = lengths(self.output_tokens, len(due_s), seed + 2)
            found = simulated_engine_run(Asked(due_s, prompts, outputs), rules, server, seed + 3)
        else:
            raise InputError("a server's model and its rules do not belong together")
        return replace(found, seconds=found.seconds * len(due_s) / (rate_rps * float(due_s[-1])))

    def capacity_rps(self, setting: Setting) -> float:
        """Requests a second that all replicas can answer, with batches as full as pays."""
        server, _ = self.server(setting)
        rules = self.rules(setting, setting.replicas)
        return capacity_rps(server, rules, mean(self.prompt_tokens), mean(self.output_tokens))

    def is_fitted(self, setting: Setting) -> bool:
        """Whether blocks of this setting were measured, at whatever rate."""
        return not self.is_scaled(setting) and heldout.setting(self.model_of(setting)) in self.ranges.settings

    def is_scaled(self, setting: Setting) -> bool:
        """Whether it is found by scaling, of which no block was held out."""
        precision = setting.precision or self.model.precision
        return setting.accelerator is not None or precision not in (self.steps or self.services)

    def measured_like(self, setting: Setting) -> tuple[Point, ...]:
        """The blocks of just this setting, at whatever rate."""
        if setting.accelerator is not None:
            return ()
        batching, precision = heldout.setting(self.model_of(setting)), setting.precision or self.model.precision
        return tuple(p for p in self.points if p.setting == batching and p.precision == precision)

    def outside(self, setting: Setting, found: Prediction) -> tuple[str, ...]:
        """How far this is from what was measured, a sentence each; none within it."""
        told = list(self.server(setting)[1])
        model, ranges = self.model_of(setting), self.ranges
        rate = setting.rate_rps / setting.replicas
        low, high = ranges.rates_rps
        if rate > high * 1.05:
            told.append(f"{format_rate(rate)} a replica is {format_ratio(rate / high)} the highest rate measured")
        elif rate < low * 0.95:
            told.append(f"{format_rate(rate)} a replica is {format_ratio(rate / low)} the lowest rate measured")
        if (found.batch_mean or 0) > ranges.largest_batch * 1.05:
            told.append(
                f"batches of {found.batch_mean:.0f} on average: measured up to {ranges.largest_batch:.0f}, so what a "
                "larger one takes is a straight line continued"
            )
        if not self.is_engine and not self.is_fitted(setting) and setting.accelerator is None:
            batching = model.batching
            words = (
                "requests alone"
                if batching is None
                else f"batches of up to {batching.max_batch_size} {_delay(batching.max_queue_delay_us / 1e6)}"
            )
            told.append(f"{words}: not measured in this run, though other batching was")
        if self.is_engine and not self.is_fitted(setting) and model.max_batch_size != self.model.max_batch_size:
            told.append(f"up to {plural(model.max_batch_size, 'answer')} in a step: not measured in this run")
        if setting.replicas > 1:
            told.append("more than one replica: no run had several; each is taken to have a machine like this one")
        return tuple(told)


def _delay(delay_s: float) -> str:
    return f"with a delay of {format_setting_s(delay_s)}" if delay_s else "without a delay"


def mean(tokens: Lengths) -> float:
    return float(tokens) if isinstance(tokens, int) else (tokens[0] + tokens[1]) / 2
