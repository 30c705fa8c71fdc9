"""Questions to a calibrated model: what will this rate be like, how many replicas does it take, how high can it go.

Every answer is a prediction. It is drawn apart from measurements, and `error` says how far the same model was off on
blocks that it had not seen; without such blocks nobody can say what a prediction is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.percentile import percentile
from lab.measure.planner.discrepancy import FULL, Place, corrected, expected
from lab.measure.planner.engine_simulator import Asked, EngineRules, simulate_engine
from lab.measure.planner.service import Service
from lab.measure.planner.simulator import Rules, Simulated, Users, simulate
from lab.measure.planner.steps import Steps
from lab.measure.records import Int64s
from lab.spec import Slo

WARMUP_FRACTION = 0.1
"""Of the requests, the first that no figure uses: the queue starts empty."""
MOST_REPLICAS = 1024


@dataclass(frozen=True)
class Prediction:
    """Modelled figures under the names of a Summary; None where they do not apply. `utilisation_fraction`: of the time
    of all instances, the share they work; `held_tokens_peak`: the most that one replica's cache held;
    `missed_alone_fraction`: of those that miss the objective, the share that would also have missed it had they not
    waited in a queue."""

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

    def of(self, replicas: int) -> Prediction:
        """The same of so many replicas that are alike: their rates add up, their latencies do not."""
        return replace(self.faster(replicas), refused=self.refused * replicas)

    def faster(self, times: float) -> Prediction:
        """The same with all rates so many times as high."""

        def scaled(rate: float | None) -> float | None:
            return None if rate is None else rate * times

        return replace(
            self,
            throughput_rps=self.throughput_rps * times,
            goodput_rps=scaled(self.goodput_rps),
            output_tokens_per_s=scaled(self.output_tokens_per_s),
        )


def poisson(rate_rps: float, requests: int, seed: int = 0) -> Floats:
    """Arrivals of independent users, seconds."""
    return np.asarray(np.random.default_rng(seed).exponential(1 / rate_rps, requests).cumsum(), float)


def in_turn(rate_rps: float, replicas: int, requests: int, seed: int = 0) -> Floats:
    """Arrivals at one of `replicas` that take independent users' requests in turn: every `replicas`-th of them, whose
    gaps are Erlang's. One replica is the pattern of all."""
    gaps_s = np.random.default_rng(seed).gamma(replicas, 1 / rate_rps, requests)
    return np.asarray(gaps_s.cumsum(), float)


def predict(
    arrivals: Floats | Users,
    rules: Rules,
    service: Service,
    slo: Slo | None = None,
    seed: int = 0,
    window_s: tuple[float, float] | None = None,
) -> Prediction:
    """A model that Triton batches. `arrivals` as in simulator.simulate. Figures are of what is due in `window_s`, as a
    Summary's are; by default the first WARMUP_FRACTION are left out, and what ends after the last arrival, which is no
    steady state."""
    found, latency = _simulated(arrivals, rules, service, seed)
    from_s, to_s = window_s or _steady(found.due_s)
    answered = _answered(found, from_s, to_s)
    due = int(((found.due_s >= from_s) & (found.due_s <= to_s)).sum())
    seconds = max(to_s - from_s, 1e-12)
    inside = int(((found.done_s > from_s) & (found.done_s <= to_s)).sum())
    modelled_s = found.latency_s[answered]
    latency_s = corrected(modelled_s, latency)
    # Whoever took longer than modelled waited longer in the same proportion.
    waited_s = found.waited_s[answered] * np.divide(
        latency_s, modelled_s, out=np.ones_like(modelled_s), where=modelled_s > 0
    )
    none = np.full(len(latency_s), np.nan)
    good = None if slo is None else int(_good(slo, latency_s, latency_s, none).sum())
    alone_s = latency_s - waited_s
    of_alone = None if slo is None else _good(slo, alone_s, alone_s, none)
    sizes = found.batch[answered]
    executions = float((1 / sizes).sum()) if len(sizes) else 0.0
    worked_s = float(np.nanmax(found.done_s) - found.due_s[0]) if len(sizes) else seconds
    return Prediction(
        throughput_rps=inside / seconds,
        goodput_rps=None if good is None else good / seconds,
        slo_attainment_fraction=None if good is None or not due else good / due,
        queue_mean_s=float(waited_s.mean()) if len(sizes) else None,
        missed_alone_fraction=_missed_alone(len(sizes), good, of_alone),
        batch_mean=len(sizes) / executions if executions else None,
        refused=found.refused,
        utilisation_fraction=found.busy_s / max(worked_s, 1e-12) / (rules.instances * rules.replicas),
        **_latencies(latency_s),  # type: ignore[arg-type]
    )


def latencies_s(
    arrivals: Floats | Users, rules: Rules, service: Service, seed: int, window_s: tuple[float, float]
) -> Floats:
    """Of each answer that `predict` counts, so that several blocks can be put together."""
    found, latency = _simulated(arrivals, rules, service, seed)
    return corrected(found.latency_s[_answered(found, *window_s)], latency)


def _simulated(arrivals: Floats | Users, rules: Rules, service: Service, seed: int) -> tuple[Simulated, Floats]:
    """(what happens when batches take what is expected at this place, what latency's quantiles are to be corrected
    by)."""
    if isinstance(arrivals, Users):
        load = FULL
    else:
        span_s = float(arrivals[-1]) if len(arrivals) else 0.0
        load = len(arrivals) / span_s / capacity_rps(service, rules) if span_s > 0 else 0.0
    work, latency = expected(service.rests, Place(rules.max_batch_size, rules.delay_s, load))
    found = simulate(arrivals, rules, service.scaled(float(np.exp(work))), seed=seed)
    return found, np.zeros_like(latency) if isinstance(arrivals, Users) else latency


def _answered(found: Simulated, from_s: float, to_s: float) -> np.ndarray:
    return (found.due_s >= from_s) & (found.due_s <= to_s) & ~np.isnan(found.done_s)


def predict_engine(
    asked: Asked,
    rules: EngineRules,
    steps: Steps,
    slo: Slo | None = None,
    seed: int = 0,
    window_s: tuple[float, float] | None = None,
) -> Prediction:
    """A language model's engine; windows as for `predict`. Without one, rates are of all that was asked."""
    found = simulate_engine(asked, rules, steps, seed=seed)
    from_s, last_s = _steady(found.due_s)[0], float(found.done_s.max())
    to_s = last_s
    if window_s is not None:
        from_s, to_s = window_s
    kept = (found.due_s >= from_s) & (found.due_s <= to_s)
    latency_s, ttft_s, itl_s = found.latency_s[kept], found.ttft_s[kept], found.itl_s[kept]
    seconds = max(to_s - from_s, 1e-12)
    ended = (found.done_s > from_s) & (found.done_s <= to_s)
    waited_s = found.start_s[kept] - found.due_s[kept] - steps.outside_s / 2
    good = None if slo is None else int(_good(slo, latency_s, ttft_s, itl_s).sum())
    of_alone = None if slo is None else _good(slo, latency_s - waited_s, ttft_s - waited_s, itl_s)
    span_s = max(last_s - float(found.due_s[0]), 1e-12)
    return Prediction(
        throughput_rps=int(ended.sum()) / seconds,
        goodput_rps=None if good is None else good / seconds,
        slo_attainment_fraction=None if good is None or not len(latency_s) else good / len(latency_s),
        queue_mean_s=float(waited_s.mean()) if len(waited_s) else None,
        missed_alone_fraction=_missed_alone(len(latency_s), good, of_alone),
        batch_mean=found.batch_mean,
        ttft_p50_s=percentile(ttft_s, 0.5),
        ttft_p95_s=percentile(ttft_s, 0.95),
        itl_mean_s=float(np.nanmean(itl_s)) if not np.isnan(itl_s).all() else None,
        output_tokens_per_s=float(found.output_tokens[ended].sum()) / seconds,
        utilisation_fraction=min(1.0, found.busy_s / span_s / rules.replicas),
        held_tokens_peak=found.most_held,
        **_latencies(latency_s),  # type: ignore[arg-type]
    )


def engine_latencies_s(
    asked: Asked, rules: EngineRules, steps: Steps, seed: int, window_s: tuple[float, float]
) -> Floats:
    """As latencies_s, of a language model's engine."""
    found = simulate_engine(asked, rules, steps, seed=seed)
    kept = (found.due_s >= window_s[0]) & (found.due_s <= window_s[1])
    return np.asarray(found.latency_s[kept], float)


def capacity_rps(
    server: Service | Steps, rules: Rules | EngineRules, prompt: float = 0.0, output: float = 0.0
) -> float:
    """Requests a second that all replicas answer when they are never idle and their batches as full as pays; of a
    language model for prompts and answers of so many tokens on average."""
    if isinstance(server, Service) and isinstance(rules, Rules):
        sizes = range(1, rules.max_batch_size + 1)
        return rules.replicas * max(server.capacity_rps(size, rules.instances) for size in sizes)
    if isinstance(server, Steps) and isinstance(rules, EngineRules):
        slots = 1 if rules.scheduler == "one" else rules.max_batch_size
        return rules.replicas * server.capacity_rps(slots, prompt, output)
    raise InputError("a server's model and its rules do not belong together")


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


def fewest(enough: Callable[[int], bool], least: int = 1, most: int = MOST_REPLICAS) -> int | None:
    """The least number from `least` to `most` that is enough; None when none is. More replicas are never worse, so the
    step is doubled until it is enough, then halved down to the least."""
    low, high, step = least - 1, least, 1
    while high <= most and not enough(high):
        if high == most:
            return None
        low, high, step = high, min(high + step, most), 2 * step
    if high > most:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def highest_rate(
    keeps: Callable[[float], bool], capacity_rps: float, steps: int = 10, least_fraction: float = 0.02
) -> float | None:
    """The highest rate below `capacity_rps` that `keeps` the objective, by halving; None when not even
    `least_fraction` of it does."""
    low, high = capacity_rps * least_fraction, capacity_rps
    if not keeps(low):
        return None
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _steady(due_s: Floats) -> tuple[float, float]:
    return float(due_s[int(len(due_s) * WARMUP_FRACTION)]), float(due_s[-1])


def _good(slo: Slo, latency_s: Floats, ttft_s: Floats, itl_s: Floats) -> np.ndarray:
    good = np.ones(len(latency_s), bool)
    for limit_s, values in ((slo.latency_s, latency_s), (slo.ttft_s, ttft_s)):
        if limit_s is not None:
            good &= values <= limit_s
    if slo.itl_s is not None:
        good &= np.isnan(itl_s) | (itl_s <= slo.itl_s)
    return good


def _missed_alone(answered: int, good: int | None, of_alone: np.ndarray | None) -> float | None:
    """Nobody is good who would not be without the wait, so those who miss it either way are all that miss it then."""
    if good is None or of_alone is None or answered == good:
        return None
    return float((~of_alone).sum()) / (answered - good)


def _latencies(latency_s: Floats) -> dict[str, float | None]:
    return {
        "latency_mean_s": float(latency_s.mean()) if len(latency_s) else None,
        "latency_p50_s": percentile(latency_s, 0.5),
        "latency_p95_s": percentile(latency_s, 0.95),
        "latency_p99_s": percentile(latency_s, 0.99),
    }
