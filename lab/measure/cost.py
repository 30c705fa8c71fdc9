"""What the answers of a run cost at a price: USD a successful request, a million tokens, a million *good* tokens.

    USD per million = USD a useful hour ÷ (3600 × rate) × 1e6          2 USD an hour at 100 tokens/s are 5.556 USD

"Good" counts what came within the run's objective only: an average cost says nothing about a service whose users wait.
What is paid for an hour of use depends on how the machine is paid:

    committed, reserved   every hour of the day, used or not: rate ÷ utilization
    by the hour, spot     the hours that it is on: the rate, or like a commitment where it is kept on while idle
    by the second         the seconds that it is up: use, plus each cold start and the idle tail after each burst

A machine comes whole: one eighth of a bundle of eight is paid like the bundle. None where nothing succeeded.
A price says nothing about machines that were not measured: `fit` tells whether the run was taken on the priced one, and
everything else is a what-if that divides one machine's price by another one's throughput.

Knows no prices and no date: prices.py has the rows, the caller the day.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any

from pydantic import Field

from lab.errors import InputError
from lab.measure.prices import Price
from lab.measure.words import format_fraction, join, plural
from lab.spec import Value

MILLION = 1e6
HOUR_S = 3600.0
DAY_H = 24.0
THIS_MACHINE = "this-machine"
"""The accelerator of a row that prices the machine on which the lab itself runs."""

NOTHING_SERVED = "no request succeeded"
NOTHING_GOOD = "no answer was within the objective"
NO_TOKENS = "no tokens were counted"
OLDER = "the run's figures were kept by an older lab, which did not count good tokens"


class Use(Value):
    """How the paid hours are used: assumptions of whoever asks, never measured.

    `utilization`    share of all hours in which the machine serves as it was measured; 1 is always
    `kept_on`        a machine by the hour stays on, and is paid, while idle
    `copies`         servers like the measured one that share the priced machine
    `wakes_per_day`, `cold_start_s`, `idle_s`   of a serverless instance: how often it starts from nothing, how long
                     that takes, and how long it stays up after the last request of a burst
    """

    utilization: Annotated[float, Field(gt=0, le=1)] = 1.0
    kept_on: bool = False
    copies: Annotated[int, Field(ge=1, le=1024)] = 1
    wakes_per_day: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    cold_start_s: Annotated[float, Field(ge=0, le=3_600)] = 0.0
    idle_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0


@dataclass(frozen=True)
class Cost:
    """What a summary's figures cost. `usd_per_useful_hour` is what an hour of serving costs, idle hours included;
    `counts_tokens`: whether the model's answers are counted in tokens; `notes` says why a field is None."""

    price: str
    usd_per_useful_hour: float
    counts_tokens: bool
    usd_per_request: float | None
    usd_per_good_request: float | None
    usd_per_million_tokens: float | None
    usd_per_million_good_tokens: float | None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def per_million_good(self) -> float | None:
        """The figure that counts: USD a million good tokens, or where no tokens are counted, good requests."""
        if self.counts_tokens:
            return self.usd_per_million_good_tokens
        return None if self.usd_per_good_request is None else self.usd_per_good_request * MILLION

    @property
    def per_million(self) -> float | None:
        """The same for all that succeeded, in time or not."""
        if self.counts_tokens:
            return self.usd_per_million_tokens
        return None if self.usd_per_request is None else self.usd_per_request * MILLION

    @property
    def unit(self) -> str:
        return "tokens" if self.counts_tokens else "requests"


def cost(summary: Mapping[str, Any], price: Price, use: Use | None = None) -> Cost:
    """The cost of one block's figures. `summary` is a Summary as a dict, as a run's document holds it."""
    use = use or Use()
    if use.copies > price.count:
        raise InputError(
            f"copies {use.copies}: {price.id} has {plural(price.count, 'accelerator')}; allowed: 1 to {price.count}"
        )
    hourly = usd_per_useful_hour(price, use)
    tokens = summary.get("output_tokens_per_s")
    rates = {
        "usd_per_request": (summary.get("throughput_rps"), 1.0, NOTHING_SERVED),
        "usd_per_good_request": (summary.get("goodput_rps"), 1.0, NOTHING_GOOD),
        "usd_per_million_tokens": (tokens, MILLION, NO_TOKENS),
        "usd_per_million_good_tokens": (
            None if tokens is None else summary.get("good_tokens_per_s"),
            MILLION,
            NO_TOKENS if tokens is None else NOTHING_GOOD if "good_tokens_per_s" in summary else OLDER,
        ),
    }
    values: dict[str, float | None] = dict.fromkeys(rates)
    notes: dict[str, str] = {}
    for name, (rate, units, reason) in rates.items():
        if not summary.get("throughput_rps"):  # tokens of answers that broke off are no service
            notes[name] = NOTHING_SERVED
        elif not rate:
            notes[name] = reason
        else:
            values[name] = hourly / (HOUR_S * rate * use.copies) * units
    return Cost(price.id, hourly, tokens is not None, **values, notes=notes)


def typical(summaries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Of the repeats of one cell, the one whose good rate is the middle one (the lower of two); None of none."""

    def good(summary: Mapping[str, Any]) -> float:
        return float(summary.get("good_tokens_per_s") or summary.get("goodput_rps") or 0.0)

    return sorted(summaries, key=good)[(len(summaries) - 1) // 2] if summaries else None


def paid_hours_a_day(price: Price, use: Use) -> float:
    """Hours of a day that are paid for, at most 24."""
    if price.billing == "committed" or (use.kept_on and price.billing != "second"):
        return DAY_H
    busy = DAY_H * use.utilization
    return min(DAY_H, busy + _overhead_h(use)) if price.billing == "second" else busy


def usd_per_useful_hour(price: Price, use: Use) -> float:
    """USD for an hour in which the machine serves as it was measured."""
    return price.usd_per_hour * paid_hours_a_day(price, use) / (DAY_H * use.utilization)


def break_even(always: Price, flexible: Price, use: Use | None = None) -> float | None:
    """The utilization above which `always`, paid for all hours, is the cheaper of the two; None when it never is, 0
    when it always is. A commitment at 0.331 against 0.526 USD on demand pays from 63 % on; against a machine that
    stays on while idle, and so is paid for all hours too, at once."""
    if use is not None and use.kept_on and flexible.billing != "second":
        return 0.0 if always.usd_per_hour < flexible.usd_per_hour else None
    overhead_h = _overhead_h(use or Use()) if flexible.billing == "second" else 0.0
    at = (DAY_H * always.usd_per_hour / flexible.usd_per_hour - overhead_h) / DAY_H
    return max(at, 0.0) if at < 1 else None


def same_machine(a: Price, b: Price) -> bool:
    """Whether two rows price the same machine in different ways."""
    return (a.provider, a.region, a.accelerator, a.count) == (b.provider, b.region, b.accelerator, b.count)


# --- whether a price belongs to what was measured -----------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """`measured`: the run was taken on the machine that the price is of; `text` says what was measured, and for a
    what-if, what is pretended."""

    measured: bool
    text: str


def fit(price: Price, environment: Mapping[str, Any], device: str = "cpu") -> Fit:
    """Whether `environment` (of a run's document) is the priced machine. `device`: where the model was."""
    ran_on = machine(environment, device)
    if price.accelerator == THIS_MACHINE:
        return Fit(True, f"measured on {ran_on}")
    if device == "cpu":
        vcpus = re.search(r"cpu-(\d+)vcpu", price.accelerator.lower())
        if vcpus and int(vcpus[1]) == environment.get("cores"):
            return Fit(True, f"measured on {ran_on}, priced as {price.accelerator}")
    elif _is_gpu(price, environment):
        return Fit(True, f"measured on {ran_on}")
    return Fit(False, f"a what-if: measured on {ran_on}, not on {_a(price)}, which would answer at another rate")


def machine(environment: Mapping[str, Any], device: str = "cpu") -> str:
    """ "2 cores of AMD EPYC Processor"; with a model on a GPU, its name where the run noted it."""
    cpu = " ".join(str(environment.get("cpu") or "an unknown CPU").split())
    cores = environment.get("cores")
    host = f"{plural(cores, 'core')} of {cpu}" if isinstance(cores, int) else cpu
    if device == "cpu":
        return host
    names = _gpu_names(environment)
    return join([str(name) for name in names]) if names else "a GPU that the run does not name"


def caveats(price: Price, use: Use, found: Fit, *, today: date) -> tuple[str, ...]:
    """What a cost at this price must be read with, the gravest first."""
    told = [] if found.measured else [f"{found.text[0].upper()}{found.text[1:]}."]
    if price.is_stale(today):
        told.append(f"The price is of {price.as_of}, {stale_words(price, today)}: read it again at the source.")
    if price.certainty == "low":
        told.append("The price is recalled or volatile (certainty low): read it at the source before you rely on it.")
    if price.count > use.copies and price.accelerator != THIS_MACHINE:
        told.append(
            f"{price.count} accelerators come as one machine and all are paid; {use.copies} of them "
            f"{'serves' if use.copies == 1 else 'serve'}."
        )
    if use.copies > 1:
        told.append(f"{use.copies} copies are taken to serve {use.copies} times what one was measured to serve.")
    if price.billing == "spot":
        told.append("Spot: the machine may be taken away at any time.")
    if price.billing == "second":
        told.append("Serverless: CPU, memory and set-up may be billed on top.")
    if use.utilization < 1:
        told.append(f"Used {format_fraction(use.utilization)} of all hours: assumed, not measured.")
    return tuple(told)


def stale_words(price: Price, today: date) -> str:
    """ "up to 333 days old" where the source gives but a month or a year."""
    return f"{'' if price.names_a_day else 'up to '}{plural(price.age_days(today), 'day')} old"


def _overhead_h(use: Use) -> float:
    return use.wakes_per_day * (use.cold_start_s + use.idle_s) / HOUR_S


def _is_gpu(price: Price, environment: Mapping[str, Any]) -> bool:
    """Every GPU of the run must be one: "H100-80GB" is in "NVIDIA H100 80GB HBM3", and as many as are priced."""
    kind = price.accelerator.split("-")[0].lower()
    names = [str(name).lower() for name in _gpu_names(environment)]
    return len(names) == price.count and all(kind in re.findall(r"[a-z0-9]+", name) for name in names)


def _gpu_names(environment: Mapping[str, Any]) -> list[Any]:
    gpus = environment.get("gpus")
    names = gpus.get("names") if isinstance(gpus, Mapping) else None
    return list(names.values()) if isinstance(names, Mapping) else []


def _a(price: Price) -> str:
    return f"{price.count} × {price.accelerator}" if price.count > 1 else price.accelerator
