"""Questions to a calibrated model: what will this rate be like, how many replicas does it take, what breaks first.

Every answer is a prediction. It is drawn apart from measurements, and `error` says how far the same model was off on
blocks that it had not seen; without such blocks nobody can say what a prediction is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.measure.pace import Floats
from lab.measure.percentile import percentile
from lab.measure.planner.engine_simulator import Asked, EngineRules, Steps, simulate_engine
from lab.measure.planner.service import Service
from lab.measure.planner.simulator import Rules, Users, simulate
from lab.measure.records import Int64s
from lab.spec import Slo

WARMUP_FRACTION = 0.1
"""Of the requests, the first that no figure uses: the queue starts empty."""
MOST_REPLICAS = 1024


@dataclass(frozen=True)
class Prediction:
    """Modelled figures under the names of a Summary; None where they do not apply. `utilisation_fraction`: of the time
    of all instances, the share they work."""

    throughput_rps: float
    goodput_rps: float | None
    slo_attainment_fraction: float | None
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    batch_mean: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_mean_s: float | None = None
    output_tokens_per_s: float | None = None
    refused: int = 0
    utilisation_fraction: float | None = None


def poisson(rate_rps: float, requests: int, seed: int = 0) -> Floats:
    """Arrivals of independent users, seconds."""
    return np.asarray(np.random.default_rng(seed).exponential(1 / rate_rps, requests).cumsum(), float)


def predict(
    arrivals: Floats | Users, rules: Rules, service: Service, slo: Slo | None = None, seed: int = 0
) -> Prediction:
    """A model that Triton batches. `arrivals` as in simulator.simulate; the first WARMUP_FRACTION are warm-up."""
    found = simulate(arrivals, rules, service, seed=seed)
    kept = slice(int(len(found.due_s) * WARMUP_FRACTION), None)
    latency_s = found.latency_s[kept]
    answered = ~np.isnan(latency_s)
    began_s, last_s = found.due_s[kept][0], found.due_s[-1]  # what still ends after the last arrival is no steady state
    seconds = max(last_s - began_s, 1e-12)
    inside = int(((found.done_s > began_s) & (found.done_s <= last_s)).sum())
    good = None if slo is None or slo.latency_s is None else int((latency_s[answered] <= slo.latency_s).sum())
    sizes = found.batch[kept][answered]
    executions = float((1 / sizes).sum()) if len(sizes) else 0.0
    busy_s = float(sum(service.mean_s(size) / size for size in sizes))
    return Prediction(
        throughput_rps=inside / seconds,
        goodput_rps=None if good is None else good / seconds,
        slo_attainment_fraction=None if good is None else good / len(latency_s),
        batch_mean=len(sizes) / executions if executions else None,
        refused=found.refused,
        utilisation_fraction=busy_s / seconds / (rules.instances * rules.replicas),
        **_latencies(latency_s[answered]),
    )


def predict_engine(asked: Asked, rules: EngineRules, steps: Steps, slo: Slo | None = None, seed: int = 0) -> Prediction:
    """A language model's engine."""
    found = simulate_engine(asked, rules, steps, seed=seed)
    kept = slice(int(len(found.due_s) * WARMUP_FRACTION), None)
    latency_s, ttft_s, itl_s = found.latency_s[kept], found.ttft_s[kept], found.itl_s[kept]
    began_s, last_s = found.due_s[kept][0], float(found.done_s.max())
    seconds = max(last_s - began_s, 1e-12)
    good = None if slo is None else int(_good(slo, latency_s, ttft_s, itl_s).sum())
    writing_s = sum(seconds for seconds, _ in found.steps)
    return Prediction(
        throughput_rps=len(latency_s) / seconds,
        goodput_rps=None if good is None else good / seconds,
        slo_attainment_fraction=None if good is None else good / len(latency_s),
        batch_mean=sum(rows for _, rows in found.steps) / len(found.steps) if found.steps else None,
        ttft_p50_s=percentile(ttft_s, 0.5),
        ttft_p95_s=percentile(ttft_s, 0.95),
        itl_mean_s=float(np.nanmean(itl_s)) if not np.isnan(itl_s).all() else None,
        output_tokens_per_s=float(found.output_tokens[kept].sum()) / seconds,
        utilisation_fraction=min(1.0, writing_s / max(last_s - float(found.due_s[0]), 1e-12)),
        **_latencies(latency_s),  # type: ignore[arg-type]
    )


def lengths(tokens: int | tuple[int, int], requests: int, seed: int) -> Int64s:
    """Token counts as a Workload draws them: all equal, or uniform from the first to the last."""
    low, high = (tokens, tokens) if isinstance(tokens, int) else tokens
    return np.random.default_rng(seed).integers(low, high, requests, endpoint=True)


def error(
    predicted: Prediction, measured: Mapping[str, float | None], metrics: Sequence[str]
) -> dict[str, float | None]:
    """Predicted ÷ measured - 1 by metric; None where one of them is missing."""
    found: dict[str, float | None] = {}
    for metric in metrics:
        modelled, true = getattr(predicted, metric), measured.get(metric)
        found[metric] = None if modelled is None or not true else modelled / true - 1
    return found


@dataclass(frozen=True)
class Needed:
    """`replicas`: the fewest that keep the objective with the headroom, None when no number up to `tried` does.
    `at`: what they are predicted to do at the target rate itself."""

    replicas: int | None
    at: Prediction | None
    tried: int


def replicas_needed(
    keeps: Callable[[int, float], Prediction],
    rate_rps: float,
    percentile_of_good: float,
    headroom_fraction: float = 0.2,
) -> Needed:
    """The fewest replicas that keep the objective at (1 + headroom) × `rate_rps`. `keeps(replicas, rate_rps)` predicts.

    More replicas are never worse, so the number is doubled until it is enough, then halved down to the least."""
    asked_rps = rate_rps * (1 + headroom_fraction)

    def enough(replicas: int) -> bool:
        share = keeps(replicas, asked_rps).slo_attainment_fraction
        return share is not None and share >= percentile_of_good

    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_REPLICAS:
            return Needed(None, None, MOST_REPLICAS)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return Needed(high, keeps(high, rate_rps), high)


def highest_rate(
    keeps: Callable[[float], Prediction], percentile_of_good: float, capacity_rps: float, steps: int = 12
) -> float | None:
    """The highest rate below `capacity_rps` at which the objective is kept, by halving; None when not even a fiftieth
    of it is."""

    def good(rate_rps: float) -> bool:
        share = keeps(rate_rps).slo_attainment_fraction
        return share is not None and share >= percentile_of_good

    low, high = capacity_rps / 50, capacity_rps
    if not good(low):
        return None
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _good(slo: Slo, latency_s: Floats, ttft_s: Floats, itl_s: Floats) -> np.ndarray:
    good = np.ones(len(latency_s), bool)
    for limit_s, values in ((slo.latency_s, latency_s), (slo.ttft_s, ttft_s)):
        if limit_s is not None:
            good &= values <= limit_s
    if slo.itl_s is not None:
        good &= np.isnan(itl_s) | (itl_s <= slo.itl_s)
    return good


def _latencies(latency_s: Floats) -> dict[str, float | None]:
    return {
        "latency_mean_s": float(latency_s.mean()) if len(latency_s) else None,
        "latency_p50_s": percentile(latency_s, 0.5),
        "latency_p95_s": percentile(latency_s, 0.95),
        "latency_p99_s": percentile(latency_s, 0.99),
    }
