"""Modelled figures of one setting, put together from several simulated runs of it.

One simulated run of a few thousand requests says of a tail what one measured run would: a stall more or less moves its
p99 by tens of percent. So runs are simulated independently of each other, each with arrivals and draws of its own; a
figure is of the answers of all, and what each run alone would have said is kept beside it (`each`). Two settings whose
runs overlap are not told apart, by the simulator no more than by a measurement of that length. This is the method of
independent replications; settings that are compared get the same seeds, so that their runs can be compared in pairs
(common random numbers; both in Law, "Simulation Modeling and Analysis").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lab.measure.pace import Floats
from lab.measure.percentile import percentile
from lab.spec import Slo

PERCENTILES = {"latency_p50_s": 0.5, "latency_p95_s": 0.95, "latency_p99_s": 0.99}
"""The figures that are also told of each run."""


@dataclass(frozen=True)
class SimulatedRun:
    """What one simulated run says of the requests that were due in its window of so many `seconds`.

    Arrays have one entry an answer, in seconds; those of tokens are None of a model that writes none, and `itl_s` is
    NaN for an answer of one token. `due`: requests, refused ones too; `ended`: answers that ended in the window;
    `shared` ÷ `executions`: requests in a batch, or answers in a step, on average; `tokens`: written by those that
    ended; `held_peak`: the most that one replica's cache held."""

    latency_s: Floats
    waited_s: Floats
    seconds: float
    due: int
    ended: int
    refused: int
    shared: float
    executions: float
    busy_fraction: float
    ttft_s: Floats | None = None
    itl_s: Floats | None = None
    tokens: float | None = None
    held_peak: int | None = None

    def good(self, slo: Slo, *, waiting: bool = True) -> np.ndarray:
        """Of each answer, whether it is within the objective; without `waiting`, whether it would be had it not waited
        in a queue."""
        waited_s = 0.0 if waiting else self.waited_s
        latency_s = self.latency_s - waited_s
        ttft_s = latency_s if self.ttft_s is None else self.ttft_s - waited_s
        good = np.ones(len(latency_s), bool)
        for limit_s, values in ((slo.latency_s, latency_s), (slo.ttft_s, ttft_s)):
            if limit_s is not None:
                good &= values <= limit_s
        if slo.itl_s is not None and self.itl_s is not None:
            good &= np.isnan(self.itl_s) | (self.itl_s <= slo.itl_s)
        return good


@dataclass(frozen=True)
class Prediction:
    """Modelled figures under the names of a Summary; None where they do not apply. `utilisation_fraction`: of the time
    of all instances, the share they work; `held_tokens_peak`: the most that one replica's cache held;
    `missed_alone_fraction`: of those that miss the objective, the share that would also have missed it had they not
    waited in a queue. `each`: by metric, what every simulated run alone says, in the order of their seeds."""

    throughput_rps: float
    goodput_rps: float | None
    slo_attainment_fraction: float | None
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    queue_mean_s: float | None = None
    batch_mean: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_mean_s: float | None = None
    output_tokens_per_s: float | None = None
    refused: int = 0
    utilisation_fraction: float | None = None
    missed_alone_fraction: float | None = None
    held_tokens_peak: int | None = None
    each: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def between(self, metric: str) -> tuple[float, float] | None:
        """The lowest and highest of what single runs say; None of fewer than two."""
        told = self.each.get(metric, ())
        return (min(told), max(told)) if len(told) > 1 else None

    def of(self, replicas: int) -> Prediction:
        """The same of so many replicas that are alike: their rates add up, their latencies do not."""

        def times(rate: float | None) -> float | None:
            return None if rate is None else rate * replicas

        return replace(
            self,
            throughput_rps=self.throughput_rps * replicas,
            goodput_rps=times(self.goodput_rps),
            output_tokens_per_s=times(self.output_tokens_per_s),
            refused=self.refused * replicas,
        )


def attained(runs: Sequence[SimulatedRun], slo: Slo) -> float:
    """The share of all that was due that is answered within the objective; 0 where nothing was due."""
    due = sum(run.due for run in runs)
    return sum(int(run.good(slo).sum()) for run in runs) / due if due else 0.0


def put_together(runs: Sequence[SimulatedRun], slo: Slo | None = None) -> Prediction:
    """The figures of all answers of one or more runs of the same setting."""
    latency_s = np.concatenate([run.latency_s for run in runs])
    waited_s = np.concatenate([run.waited_s for run in runs])
    ttft_s, itl_s = (_of_tokens([getattr(run, name) for run in runs]) for name in ("ttft_s", "itl_s"))
    seconds = sum(run.seconds for run in runs)
    due, executions = sum(run.due for run in runs), sum(run.executions for run in runs)
    good = None if slo is None else sum(int(run.good(slo).sum()) for run in runs)
    tokens = [run.tokens for run in runs if run.tokens is not None]
    held = [run.held_peak for run in runs if run.held_peak is not None]
    return Prediction(
        throughput_rps=sum(run.ended for run in runs) / seconds,
        goodput_rps=None if good is None else good / seconds,
        slo_attainment_fraction=None if good is None or not due else good / due,
        latency_mean_s=float(latency_s.mean()) if len(latency_s) else None,
        latency_p50_s=percentile(latency_s, 0.5),
        latency_p95_s=percentile(latency_s, 0.95),
        latency_p99_s=percentile(latency_s, 0.99),
        queue_mean_s=float(waited_s.mean()) if len(waited_s) else None,
        batch_mean=sum(run.shared for run in runs) / executions if executions else None,
        ttft_p50_s=None if ttft_s is None else percentile(ttft_s, 0.5),
        ttft_p95_s=None if ttft_s is None else percentile(ttft_s, 0.95),
        itl_mean_s=None if itl_s is None or np.isnan(itl_s).all() else float(np.nanmean(itl_s)),
        output_tokens_per_s=sum(tokens) / seconds if tokens else None,
        refused=sum(run.refused for run in runs),
        utilisation_fraction=float(np.mean([run.busy_fraction for run in runs])),
        missed_alone_fraction=_missed_alone(runs, slo, len(latency_s), good),
        held_tokens_peak=max(held, default=None),
        each={metric: told for metric, p in PERCENTILES.items() if (told := _each(runs, p))},
    )


def _each(runs: Sequence[SimulatedRun], p: float) -> tuple[float, ...]:
    """() where some run has no answer."""
    told = [percentile(run.latency_s, p) for run in runs]
    return tuple(value for value in told if value is not None) if None not in told else ()


def _missed_alone(runs: Sequence[SimulatedRun], slo: Slo | None, answered: int, good: int | None) -> float | None:
    """Nobody is good who would not be without the wait, so those who miss it either way are all that miss it then."""
    if slo is None or good is None or answered == good:
        return None
    return sum(int((~run.good(slo, waiting=False)).sum()) for run in runs) / (answered - good)


def _of_tokens(arrays: Sequence[Floats | None]) -> Floats | None:
    known = [array for array in arrays if array is not None]
    return np.concatenate(known) if known else None
