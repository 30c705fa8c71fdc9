"""A cost in words: the figure at the objective first, then what it stands on, never without its price's date.

"A million good tokens costs $13.89 (within 1 s to the first token), of all tokens $5.556, at $2 an hour …".
"""

from __future__ import annotations

import numpy as np

from lab.measure.cost import Cost
from lab.measure.prices import Price
from lab.measure.words import NOT_MEASURED, format_fraction, objective_label
from lab.spec import Slo

COMMITMENTS = {"1yr": "1-year", "2yr": "2-year", "3yr": "3-year"}


def format_usd(usd: float | None) -> str:
    """Four significant digits: "$5.556", "$0.02922", "$1,235", "$2" for a round sum."""
    if usd is None:
        return NOT_MEASURED
    if usd >= 1000:
        return f"${usd:,.0f}"
    text = np.format_float_positional(usd, precision=4, fractional=False, trim="-")
    whole, _, cents = text.partition(".")
    return f"${whole}.{cents}0" if len(cents) == 1 else f"${text}"


def price_label(price: Price) -> str:
    """ "lambda, any: 8 × H100-80GB, on demand, $31.92 an hour (2026-09-25)"."""
    count = f"{price.count} × " if price.count > 1 else ""
    return (
        f"{price.provider}, {price.region}: {count}{price.accelerator}, {commitment_label(price)}, "
        f"{format_usd(price.usd_per_hour)} an hour ({price.as_of})"
    )


def commitment_label(price: Price) -> str:
    """ "on demand", "1-year ec2 savings plan no upfront", "on demand, by the second"."""
    words = price.commitment.replace("on_demand_per_second", "on_demand,_by_the_second").split("_")
    return " ".join([COMMITMENTS.get(words[0], words[0]), *words[1:]])


def sentence(found: Cost, slo: Slo, attained: float | None) -> str:
    """The cost at the objective in one or two sentences. `attained`: the share of the requests that were served within
    it."""
    within = f"within {objective_label(slo)}"
    at = f"at {format_usd(found.usd_per_useful_hour)} for an hour of use"
    good, every = found.per_million_good, found.per_million
    if every is None:
        return f"No cost can be told: {_why(found, good=False)}."
    if good is None:
        text = f"No cost {within} can be told: {_why(found, good=True)}. "
        return f"{text}A million {found.unit} in time or not cost {format_usd(every)}, {at}."
    text = f"A million good {found.unit} ({within}) cost {format_usd(good)}, "
    text += f"a million in time or not {format_usd(every)}, {at}."
    if attained is not None and attained < slo.percentile:
        text += (
            f" The objective is missed here: {format_fraction(attained)} were served within it, "
            f"{format_fraction(slo.percentile)} are wanted."
        )
    return text


def even_sentence(always: Price, flexible: Price, even: float | None) -> str:
    """From which use on a machine that is paid for all hours is the cheaper one."""
    first, other = (f"{commitment_label(price)} ({format_usd(price.usd_per_hour)})" for price in (always, flexible))
    first = first[0].upper() + first[1:]
    if even is None:
        return f"{first} is never cheaper than {other}."
    if even == 0:
        return f"{first} is cheaper than {other} however few hours are used."
    return f"{first} is cheaper than {other} once more than {format_fraction(even)} of all hours are used."


def _why(found: Cost, *, good: bool) -> str:
    if found.counts_tokens:
        return found.notes["usd_per_million_good_tokens" if good else "usd_per_million_tokens"]
    return found.notes["usd_per_good_request" if good else "usd_per_request"]
