"""A design review's checklist: each requirement against what was measured of it, and whether that makes it ready.

A row says met, not met, cannot be told (the interval holds the limit), or not measured, and never more than the figures
do. Copies of a server are a division, not a measurement, and the row says so. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.measure.prices import Price
from lab.measure.redteam import Question
from lab.measure.words import (
    format_bytes,
    format_count,
    format_fraction,
    format_metric,
    format_rate,
    format_setting_s,
    plural,
)

Status = Literal["met", "not met", "cannot be told", "not measured"]
HOURS_A_MONTH = 730.0
PERCENTILES = {"latency_s": ("latency_p99", "p99"), "ttft_s": ("ttft_p95", "TTFT p95"), "itl_s": ("itl_p95", "ITL p95")}


@dataclass(frozen=True)
class Requirements:
    """What a team asks for; None is not asked. Limits of time are for p99 of the latency and p95 of TTFT and ITL;
    `loss_fraction` is the most that perplexity may be worse than that of the unquantized weights."""

    rate_rps: float | None = None
    latency_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    error_fraction: float | None = None
    budget_usd: float | None = None
    memory_bytes: float | None = None
    loss_fraction: float | None = None


@dataclass(frozen=True)
class Row:
    """`used` is measured ÷ limit where less is better, and limit ÷ measured where more is: above 1 it is not met.
    None where nothing was measured."""

    name: str
    asked: str
    evidence: str
    status: Status
    used: float | None = None


@dataclass(frozen=True)
class Decision:
    """`ready` is True when all that is asked is met and no question is open; `text` says what stands in the way."""

    ready: bool
    text: str


def rows(
    asked: Requirements,
    summary: Mapping[str, Any],
    *,
    quality: Mapping[str, Any] | None = None,
    price: Price | None = None,
) -> list[Row]:
    """A row for each requirement that is asked. `summary` is of the setting under review, at the load it was measured
    at; `quality` of its format (lab.measure.quality), None where it was not evaluated."""
    found: list[Row] = []
    copies = _copies(asked.rate_rps, summary)
    if asked.rate_rps is not None:
        found.append(_traffic(asked.rate_rps, summary, copies))
    for field, (metric, label) in PERCENTILES.items():
        limit = getattr(asked, field)
        if limit is not None:
            found.append(_time(label, limit, summary, metric))
    if asked.error_fraction is not None:
        value = summary.get("error_fraction")
        evidence = f"{format_fraction(value)} of what finished failed"
        asked_for = f"at most {format_fraction(asked.error_fraction)}"
        found.append(_row("Errors", asked_for, evidence, value, asked.error_fraction))
    if asked.memory_bytes is not None:
        name = "gpu_memory_peak_bytes" if summary.get("gpu_memory_peak_bytes") else "memory_peak_bytes"
        value = summary.get(name)
        asked_for = f"at most {format_bytes(asked.memory_bytes)}"
        found.append(_row("Memory", asked_for, f"{format_bytes(value)} at its peak", value, asked.memory_bytes))
    if asked.loss_fraction is not None:
        found.append(_quality(asked.loss_fraction, quality))
    if asked.budget_usd is not None:
        found.append(_budget(asked.budget_usd, price, copies if asked.rate_rps is not None else 1))
    return found


def decide(found: Sequence[Row], questions: Sequence[Question]) -> Decision:
    """Nothing is ready without a requirement, with one that is not met, or with a question that nobody waived."""
    missing = [row.name for row in found if row.status != "met"]
    still = sum(question.status == "open" for question in questions)
    waived = sum(question.status == "waived" for question in questions)
    if not found:
        return Decision(False, "Not ready: nothing is asked of it yet.")
    reasons = [f"{_in_a_sentence(row.name)} {_said(row.status)}" for row in found if row.status != "met"]
    if still:
        reasons.append(f"{plural(still, 'question')} of a sceptic {'is' if still == 1 else 'are'} open")
    if missing or still:
        return Decision(False, f"Not ready: {'; '.join(reasons)}.")
    tail = f", with {plural(waived, 'question')} waived by name" if waived else ""
    return Decision(True, f"Ready: all {plural(len(found), 'requirement')} are met by measurement{tail}.")


def _in_a_sentence(name: str) -> str:
    """ "traffic", but "TTFT p95": what is an abbreviation stays one."""
    return name if name[:2].isupper() else f"{name[0].lower()}{name[1:]}"


def _said(status: Status) -> str:
    return {"not met": "is not met"}.get(status, status if status == "cannot be told" else f"was {status}")


def _copies(rate_rps: float | None, summary: Mapping[str, Any]) -> int | None:
    """Copies of what was measured that the rate takes by division; None where nothing was served in time."""
    good = summary.get("goodput_rps")
    return math.ceil(rate_rps / good) if rate_rps and good else None


def _traffic(rate_rps: float, summary: Mapping[str, Any], copies: int | None) -> Row:
    good = summary.get("goodput_rps")
    asked = f"{format_rate(rate_rps)} served within the objective of the run"
    if good is None:
        return Row("Traffic", asked, "it was not measured how many were in time", "not measured")
    if not good:
        return Row("Traffic", asked, "nothing was served in time", "not met")
    evidence = f"{format_rate(good)} in time, of {format_rate(summary.get('offered_rps'))} offered"
    if copies is not None and copies > 1:
        evidence += f"; by division {format_count(copies)} copies, which were not measured together"
    return Row("Traffic", asked, evidence, "met" if good >= rate_rps else "not met", rate_rps / good)


def _time(label: str, limit_s: float, summary: Mapping[str, Any], metric: str) -> Row:
    value, low, high = (summary.get(f"{metric}{end}_s") for end in ("", "_low", "_high"))
    asked = f"{label} within {format_setting_s(limit_s)}"
    if value is None:
        why = (summary.get("notes") or {}).get(f"{metric}_s", "it was not measured")
        return Row(label, asked, str(why), "not measured")
    evidence = f"{format_metric(f'{metric}_s', value)}"
    if low is not None and high is not None:
        evidence += f" ({format_metric('x_s', low)} to {format_metric('x_s', high)} with 95 % confidence)"
    status: Status = "met" if (high if high is not None else value) <= limit_s else "not met"
    if status == "not met" and (low if low is not None else value) <= limit_s:
        status = "cannot be told"
    return Row(label, asked, evidence, status, value / limit_s)


def _quality(limit_fraction: float, quality: Mapping[str, Any] | None) -> Row:
    asked = f"perplexity at most {format_fraction(limit_fraction)} worse"
    if quality is not None and quality.get("is_baseline"):
        return Row("Quality", asked, "these are the unquantized weights", "met", 0.0)
    measures = (quality or {}).get("measures", ())
    found = next((m for m in measures if m["name"] == "perplexity" and m.get("loss") is not None), None)
    if found is None:
        return Row("Quality", asked, "the quality of this format was not evaluated", "not measured")
    low, high, loss = found["loss_low"], found["loss_high"], found["loss"]
    evidence = f"{format_fraction(loss)} worse ({format_fraction(low)} to {format_fraction(high)}), n = {found['n']}"
    status: Status = "met" if high <= limit_fraction else "not met" if low > limit_fraction else "cannot be told"
    return Row("Quality", asked, evidence, status, max(0.0, loss) / limit_fraction if limit_fraction else None)


def _budget(limit_usd: float, price: Price | None, copies: int | None) -> Row:
    asked = f"at most ${limit_usd:,.0f} a month"
    if price is None:
        return Row("Budget", asked, "no price is chosen", "not measured")
    if copies is None:
        return Row("Budget", asked, "nothing was served in time, so no number of copies is enough", "not met")
    month = price.usd_per_hour * HOURS_A_MONTH * copies
    evidence = (
        f"${month:,.0f} for {plural(copies, 'machine')} at {price.id}, {HOURS_A_MONTH:.0f} h a month, no headroom"
    )
    return Row("Budget", asked, evidence, "met" if month <= limit_usd else "not met", month / limit_usd)


def _row(name: str, asked: str, evidence: str, value: float | None, limit: float) -> Row:
    if value is None:
        return Row(name, asked, "it was not measured", "not measured")
    used = value / limit if limit else (0.0 if value == 0 else math.inf)
    return Row(name, asked, evidence, "met" if value <= limit else "not met", used if math.isfinite(used) else None)
