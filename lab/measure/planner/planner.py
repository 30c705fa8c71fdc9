"""Questions to a calibrated model: what will this rate be like, how many replicas does it take, how high can it go.

Every answer is a prediction. It is drawn apart from measurements, and `error` says how far the same model was off on
blocks that it had not seen; without such blocks nobody can say what a prediction is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.discrepancy import FULL, Place, corrected, expected
from lab.measure.planner.engine_simulator import Asked, EngineRules, simulate_engine
from lab.measure.planner.prediction import Prediction, SimulatedRun, put_together
from lab.measure.planner.queueing import Rules, Simulated, Users
from lab.measure.planner.service import Service
from lab.measure.planner.simulator import simulate
from lab.measure.planner.steps import Steps
from lab.measure.records import Int64s
from lab.spec import Slo

WARMUP_FRACTION = 0.1
"""Of the requests, the first that no figure uses: the queue starts empty."""
MOST_REPLICAS = 1024


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
    """A model that Triton batches, by one simulated run."""
    return put_together([simulated_run(arrivals, rules, service, seed, window_s)], slo)


def predict_engine(
    asked: Asked,
    rules: EngineRules,
    steps: Steps,
    slo: Slo | None = None,
    seed: int = 0,
    window_s: tuple[float, float] | None = None,
) -> Prediction:
    """A language model's engine, by one simulated run."""
    return put_together([simulated_engine_run(asked, rules, steps, seed, window_s)], slo)


def simulated_run(
    arrivals: Floats | Users,
    rules: Rules,
    service: Service,
    seed: int = 0,
    window_s: tuple[float, float] | None = None,
) -> SimulatedRun:
    """A model that Triton batches. `arrivals` as in simulator.simulate. Figures are of what is due in `window_s`, as a
    Summary's are; by default the first WARMUP_FRACTION are left out, and what ends after the last arrival, which is no
    steady state."""
    found, latency = _simulated(arrivals, rules, service, seed)
    from_s, to_s = window_s or _steady(found.due_s)
    answered = (found.due_s >= from_s) & (found.due_s <= to_s) & ~np.isnan(found.done_s)
    seconds = max(to_s - from_s, 1e-12)
    modelled_s = found.latency_s[answered]
    latency_s = corrected(modelled_s, latency)
    # Whoever took longer than modelled waited longer in the same proportion.
    waited_s = found.waited_s[answered] * np.divide(
        latency_s, modelled_s, out=np.ones_like(modelled_s), where=modelled_s > 0
    )
    sizes = found.batch[answered]
    worked_s = float(np.nanmax(found.done_s) - found.due_s[0]) if len(sizes) else seconds
    return SimulatedRun(
        latency_s,
        waited_s,
        seconds,
        due=int(((found.due_s >= from_s) & (found.due_s <= to_s)).sum()),
        ended=int(((found.done_s > from_s) & (found.done_s <= to_s)).sum()),
        refused=found.refused,
        shared=float(len(sizes)),
        executions=float((1 / sizes).sum()) if len(sizes) else 0.0,
        busy_fraction=found.busy_s / max(worked_s, 1e-12) / (rules.instances * rules.replicas),
    )


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


def simulated_engine_run(
    asked: Asked, rules: EngineRules, steps: Steps, seed: int = 0, window_s: tuple[float, float] | None = None
) -> SimulatedRun:
    """A language model's engine; windows as above. Without one, rates are of all that was asked."""
    found = simulate_engine(asked, rules, steps, seed=seed)
    last_s = float(found.done_s.max())
    from_s, to_s = window_s or (_steady(found.due_s)[0], last_s)
    kept = (found.due_s >= from_s) & (found.due_s <= to_s)
    ended = (found.done_s > from_s) & (found.done_s <= to_s)
    span_s = max(last_s - float(found.due_s[0]), 1e-12)
    return SimulatedRun(
        np.asarray(found.latency_s[kept], float),
        found.start_s[kept] - found.due_s[kept] - steps.outside_s / 2,
        max(to_s - from_s, 1e-12),
        due=int(kept.sum()),
        ended=int(ended.sum()),
        refused=0,
        shared=float(sum(rows * count for _, rows, count in found.stretches)),
        executions=float(sum(count for _, _, count in found.stretches)),
        busy_fraction=min(1.0, found.busy_s / span_s / rules.replicas),
        ttft_s=np.asarray(found.ttft_s[kept], float),
        itl_s=np.asarray(found.itl_s[kept], float),
        tokens=float(found.output_tokens[ended].sum()),
        held_peak=found.most_held,
    )


def capacity_rps(
    server: Service | Steps, rules: Rules | EngineRules, prompt: float = 0.0, output: float = 0.0
) -> float:
    """Requests a second that all replicas answer when they are never idle and their batches as full as pays; of a
    language model for prompts and answers of so many tokens on average."""
    if isinstance(server, Service) and isinstance(rules, Rules):
        return rules.replicas * server.most_rps(rules.max_batch_size, rules.instances)
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
