"""A whole plan: what a setting is predicted to do, how many replicas a target takes, what that costs, how routers
differ. Each figure with the interval that held-out blocks of the same machine allow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from lab.errors import InputError
from lab.measure.cost import HOUR_S, MILLION, Use, usd_per_useful_hour
from lab.measure.planner.calibrated import Calibrated
from lab.measure.planner.heldout import MOST_USED
from lab.measure.planner.planner import MOST_REPLICAS, fewest
from lab.measure.planner.prediction import Prediction, SimulatedRun, attained, put_together
from lab.measure.planner.queueing import Routing
from lab.measure.planner.setting import Setting, at_rate
from lab.measure.prices import Price
from lab.measure.words import format_range, format_seconds, objective_label
from lab.spec import Slo

HEADROOM = 0.2
"""Share by which the target rate is exceeded where nobody says otherwise."""
ALONE = 0.01
"""Of a server's capacity: a rate at which requests meet nobody."""
RATES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88)
"""Of capacity, where a curve is predicted; nearer to it a queue grows for longer than a simulated run lasts."""

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Told:
    """A setting's prediction. `bounds` by metric: where the truth is by the errors of held-out blocks, missing where no
    such error is known; `outside`: how far it is from what was measured; `fitted`: blocks of this setting were."""

    setting: Setting
    predicted: Prediction
    bounds: dict[str, Bounds]
    fitted: bool
    outside: tuple[str, ...]
    load_fraction: float

    @property
    def busy(self) -> bool:
        """Asked more than any judged block: no interval holds."""
        return self.load_fraction > MOST_USED


@dataclass(frozen=True)
class Needed:
    """The fewest replicas that keep the objective at the target rate with the headroom; None when no number does, and
    `why` says so. `low` and `high`: if the model is off as far as held-out blocks were, to either side; None where
    that is not known, `high` also where then no number would do. `at`: what they do at the target rate itself."""

    target_rps: float
    headroom_fraction: float
    replicas: int | None
    low: int | None
    high: int | None
    at: Told | None
    why: str = ""


@dataclass(frozen=True)
class Bill:
    """What replicas cost at a price, all hours of the day. `machines`: as they are sold, `replicas_each` on one;
    `usd_per_million`: good requests at the target rate."""

    price: Price
    machines: int
    replicas_each: int
    usd_per_hour: float
    usd_per_month: float
    usd_per_million: float | None


MONTH_H = 730.0


def tell(model: Calibrated, setting: Setting, slo: Slo | None, *, seed: int = 0) -> Told:
    """The setting's prediction with its interval."""
    return _told(model, setting, model.pattern(setting, slo, seed=seed))


def curve(
    model: Calibrated,
    setting: Setting,
    slo: Slo | None,
    rates: Sequence[float] = RATES,
    *,
    asked: Told | None = None,
    seed: int = 0,
) -> tuple[Told, ...]:
    """Predictions at these shares of the capacity, and of what is `asked` about at its own rate where that is not
    above it: a point of the curve like the others."""
    capacity = model.capacity_rps(setting)
    found = [tell(model, at_rate(setting, share * capacity), slo, seed=seed) for share in rates]
    if asked is not None and asked.load_fraction <= 1:
        found.append(asked)
    return tuple(sorted(found, key=lambda told: told.load_fraction))


def balancing(model: Calibrated, setting: Setting, slo: Slo | None, *, seed: int = 0) -> dict[Routing, Prediction]:
    """The setting behind each router: the same requests, the same replicas. InputError for a single replica."""
    if setting.replicas < 2:
        raise InputError("replicas 1: one replica has nothing to be balanced against; allowed: 2 or more")
    return {routing: model.together(replace(setting, routing=routing), slo, seed=seed) for routing in get_args(Routing)}


def needed(model: Calibrated, setting: Setting, slo: Slo, headroom: float = HEADROOM, *, seed: int = 0) -> Needed:
    """How many replicas the setting's rate takes; its own number of replicas is left aside. InputError for a headroom
    below 0."""
    if not 0 <= headroom <= 10:
        raise InputError(f"headroom {headroom:g}: allowed is 0 to 10, 0.2 being a fifth more than the target")
    asked = setting.rate_rps * (1 + headroom)
    one = model.capacity_rps(at_rate(setting, setting.rate_rps, 1))
    span = None if model.is_scaled(setting) else model.trust.span(metric_of(slo), fitted=model.is_fitted(setting))
    alone = model.runs(at_rate(setting, min(asked, ALONE * one), 1), seed=seed)

    def nothing(why: str) -> Needed:
        return Needed(setting.rate_rps, headroom, None, None, None, None, why)

    if attained(alone, slo) < slo.percentile:
        why = f"No number of replicas reaches {objective_label(slo)}: {_alone(put_together(alone, slo), slo)}."
        if span is not None and attained(alone, _times(slo, 1 + span[1])) >= slo.percentile:
            why += " That is within what the model was off by on held-out blocks: measure it before you believe it."
        return nothing(why)
    least = max(1, math.ceil(asked / one))
    if least > MOST_REPLICAS:
        return nothing(f"More than {MOST_REPLICAS:,} replicas: one serves {one:,.1f} requests a second at the most.")
    seen: dict[int, list[SimulatedRun]] = {}

    def enough(within: Slo) -> int | None:
        def keeps(replicas: int) -> bool:
            if replicas not in seen:
                seen[replicas] = model.runs(at_rate(setting, asked, replicas), seed=seed)
            return attained(seen[replicas], within) >= within.percentile

        return fewest(keeps, least)

    replicas = enough(slo)
    if replicas is None:
        return nothing(f"Not even {MOST_REPLICAS:,} replicas keep {objective_label(slo)} at this rate.")
    low = high = None
    if span is not None:  # the truth is predicted ÷ (1 + error), so the objective is to be kept within × (1 + error)
        high, low = enough(_times(slo, 1 + span[0])), enough(_times(slo, 1 + span[1]))
    at = tell(model, at_rate(setting, setting.rate_rps, replicas), slo, seed=seed)
    return Needed(setting.rate_rps, headroom, replicas, low, high, at)


def bill(price: Price, replicas: int, good_rps: float | None, use: Use | None = None) -> Bill:
    """What so many replicas cost, one on each accelerator of a machine. A machine comes whole; it is on all day."""
    use = use or Use(kept_on=True)
    each = price.count
    machines = math.ceil(replicas / each)
    hourly = machines * usd_per_useful_hour(price, use) * use.utilization
    per_million = hourly / (HOUR_S * good_rps) * MILLION if good_rps else None
    return Bill(price, machines, each, hourly, hourly * MONTH_H, per_million)


def metric_of(slo: Slo) -> str:
    """The percentile of latency whose error stands for the objective's."""
    return "latency_p99_s" if slo.percentile > 0.97 else "latency_p95_s" if slo.percentile > 0.7 else "latency_p50_s"


def _told(model: Calibrated, setting: Setting, found: Prediction) -> Told:
    fitted = model.is_fitted(setting)
    bounds: dict[str, Bounds] = {}
    load = setting.rate_rps / model.capacity_rps(setting)
    if load <= MOST_USED and not model.is_scaled(setting):
        values: Mapping[str, float | None] = {
            metric: getattr(found, metric)
            for metric in ("throughput_rps", "latency_p50_s", "latency_p95_s", "latency_p99_s")
        }
        for metric, value in values.items():
            interval = model.trust.interval(metric, value, fitted=fitted)
            if interval is not None:  # whatever held-out blocks say, it is no narrower than the simulation itself
                own = found.between(metric) or interval
                bounds[metric] = min(interval[0], own[0]), max(interval[1], own[1])
    return Told(setting, found, bounds, fitted, model.outside(setting, found), load)


def _times(slo: Slo, factor: float) -> Slo:
    """Every limit so many times as long."""
    factor = max(factor, 0.05)
    changes = {
        name: limit * factor for name in ("latency_s", "ttft_s", "itl_s") if (limit := getattr(slo, name)) is not None
    }
    return slo.model_copy(update=changes)


def _alone(found: Prediction, slo: Slo) -> str:
    """ "one request alone takes 8.0 ms at p95"."""
    if slo.ttft_s is not None and (found.ttft_p50_s or 0.0) > slo.ttft_s:
        return f"one answer alone begins after {format_seconds(found.ttft_p50_s)}"
    if slo.itl_s is not None and (found.itl_mean_s or 0.0) > slo.itl_s:
        return f"one answer alone takes {format_seconds(found.itl_mean_s)} a token"
    metric = metric_of(slo)
    name = metric.split("_")[1]
    usual, at = found.latency_p50_s, getattr(found, metric)
    if usual is not None and slo.latency_s is not None and usual > slo.latency_s:
        return f"one request alone takes {format_seconds(usual)}"
    between = found.between(metric)
    runs = "" if between is None else f" ({format_range(*between, format_seconds)} in single simulated runs)"
    return f"one request alone takes {format_seconds(at)} at {name}{runs}"
