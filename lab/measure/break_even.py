"""What a runner that scales to zero costs by rate, and from which rate a machine that is always on is cheaper. Pure.

From the modelled rates of lab/measure/serverless.py: all of it is modelled, and its range is how far the simulation was
off in the run's own blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lab.measure.billing import Billing
from lab.measure.words import format_rate


def usd_per_hour(point: Mapping[str, Any], usd_an_hour: float, billing: Billing) -> float:
    """What an hour at that rate costs by a per-second price and a billing rule. Modelled."""
    paid = (
        point["busy_s_per_h"]
        + point["start_s_per_h"] * billing.bills_start
        + point["idle_s_per_h"] * billing.bills_idle
    )
    if billing.step_s and point["starts_per_h"]:
        paid += point["starts_per_h"] * billing.step_s / 2  # on average half a step a life
    return float(paid * usd_an_hour / 3600)


def break_even_rps(
    points: Sequence[Mapping[str, Any]], usd_an_hour: float, billing: Billing, always_usd_an_hour: float
) -> float | None:
    """The rate above which the always-on machine is cheaper; None where one of the two is at all of them. Between two
    rates the cost is taken to go straight, on a log scale of rates."""
    costs = [usd_per_hour(point, usd_an_hour, billing) - always_usd_an_hour for point in points]
    for (a, low), (b, high) in pairwise(zip(points, costs, strict=True)):
        if low <= 0 < high:
            share = -low / (high - low)
            return float(np.exp(np.log(a["rate_rps"]) * (1 - share) + np.log(b["rate_rps"]) * share))
    return None


def off_by(found: Mapping[str, Any]) -> list[float]:
    """How often as long as simulated workers were up, of each block that says so."""
    return [
        block["up_s"] / block["modelled"]["up_s"]
        for block in found["blocks"]
        if block["up_s"] and block["modelled"] and block["modelled"]["up_s"]
    ]


def break_even_range(
    found: Mapping[str, Any], usd_an_hour: float, billing: Billing, always_usd_an_hour: float
) -> list[float | None]:
    """The break-even as modelled, then with workers up as much less and as much more as in the blocks where the
    simulation was furthest off: seconds that are paid go with the time up. One entry where no block was checked."""
    factors = [1.0, *sorted(off_by(found))]
    return [
        break_even_rps(found["curve"], factor * usd_an_hour, billing, always_usd_an_hour)
        for factor in dict.fromkeys((1.0, factors[1], factors[-1]) if len(factors) > 1 else factors)
    ]


def even_label(rates: Sequence[float | None]) -> str:
    """Of a break_even_range: "20 to 45 a minute", "20 a minute or none", "none"."""
    known = sorted(rate for rate in rates if rate is not None)
    if not known:
        return "none"
    low, high = rate_label(known[0]), rate_label(known[-1])
    if low != high:
        unit = next((unit for unit in (" a minute", " req/s") if low.endswith(unit) and high.endswith(unit)), "")
        low = f"{low.removesuffix(unit)} to {high}"
    return low if len(known) == len(rates) else f"{low} or none"


def rate_label(rate_rps: float | None) -> str:
    """ "1 a minute", "45 a minute", "2.0 req/s": slow rates as people say them."""
    slow = rate_rps is not None and rate_rps < 0.95
    return f"{60 * rate_rps:.3g} a minute" if slow and rate_rps is not None else format_rate(rate_rps)
