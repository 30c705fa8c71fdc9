"""The highest rate that meets an objective, by halving the bracket between one that does and one that does not.

Pure bookkeeping: `Search.next` says which rate to try, `tell` takes what came of it. Goes up by doubling while nothing
fails and stops at a bound, so a server that never saturates ends the search too; goes down by halving while nothing
passes. A rate is tried twice, and a third time where the two disagree: one stall must not decide, and neither must one
lucky block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lab.measure.summary import Summary
from lab.measure.words import format_fraction, format_rate, objective_label
from lab.spec import Slo

Result = Literal["met", "missed", "client"]
KEPT_UP = 0.95
TIGHT = 0.05
GIVE_UP = 256.0
"""No rate is tried below the first one divided by this."""


@dataclass(frozen=True)
class Probe:
    """One block at one rate. `client`: the load generator did not keep up, so the block says nothing of the server."""

    rate_rps: float
    result: Result
    why: str
    attained: float | None
    goodput_rps: float | None
    latency_p99_s: float | None


@dataclass(frozen=True)
class Found:
    """`highest_rps` met the objective and `fails_rps`, the next that was tried above it, did not; None where there is
    no such rate. `ended` says why the search stopped."""

    highest_rps: float | None
    fails_rps: float | None
    ended: Literal["found", "bound", "client", "nothing", "time"]
    probes: tuple[Probe, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "probes": [vars(probe) for probe in self.probes]}


def judged(summary: Summary, rate_rps: float, slo: Slo) -> Probe:
    """Whether a block met the objective: the share of all offered requests that was good, and no backlog growing (a
    block shorter than its backlog would hide it)."""
    attained = summary.slo_attainment_fraction
    limits = ("client_limited", "near_ceiling")
    limited = next((p.text for p in summary.problems if p.code in limits and p.forbids_verdict), None)
    served, asked = summary.throughput_rps or 0.0, summary.offered_rps or rate_rps
    result: Result = "met"
    why = f"{format_fraction(attained)} within {objective_label(slo)}"
    if limited is not None:
        result, why = "client", limited
    elif attained is None or attained < slo.percentile:
        result = "missed"
    elif served < KEPT_UP * asked:
        result, why = "missed", f"{format_rate(served)} served of {format_rate(asked)}: the backlog grows"
    return Probe(rate_rps, result, why, attained, summary.goodput_rps, summary.latency_p99_s)


@dataclass
class Search:
    """`first_rps` is a guess, such as half of what a closed loop reaches; `most_rps` the bound."""

    first_rps: float
    most_rps: float
    tight: float = TIGHT
    probes: list[Probe] = field(default_factory=list)
    _low: float | None = None
    _high: float | None = None
    _client: float | None = None

    def next(self) -> float | None:
        """The rate to try; None when there is nothing left to learn."""
        if (again := self._undecided()) is not None:
            return again
        ceiling = min(self.most_rps, self._client or math.inf)
        if self._low is None and self._high is None:
            return min(self.first_rps, self.most_rps) if self._client is None else self._client / 2
        if self._high is None:
            low = self._low or 0.0
            if low >= self.most_rps or (self._client is not None and ceiling <= (1 + self.tight) * low):
                return None
            return min(2 * low, self.most_rps) if self._client is None else math.sqrt(low * ceiling)
        if self._low is None:
            lower = self._high / 2
            return lower if lower > self.first_rps / GIVE_UP else None
        return None if self._high <= (1 + self.tight) * self._low else math.sqrt(self._low * self._high)

    def tell(self, probe: Probe) -> None:
        self.probes.append(probe)
        rate = probe.rate_rps
        if probe.result == "client":
            self._client = min(rate, self._client or math.inf)
            return
        decided = _decided([p.result for p in self.probes if p.rate_rps == rate and p.result != "client"])
        if decided == "met":
            self._low = max(rate, self._low or 0.0)
        elif decided == "missed":
            self._high = min(rate, self._high or math.inf)

    def found(self, *, out_of_time: bool = False) -> Found:
        ended: Literal["found", "bound", "client", "nothing", "time"] = "found"
        if out_of_time:
            ended = "time"
        elif self._low is None:
            ended = "nothing"
        elif self._high is None:
            ended = "client" if self._client is not None else "bound"
        return Found(self._low, self._high, ended, tuple(self.probes))

    def _undecided(self) -> float | None:
        """A rate that was tried and not often enough."""
        if not self.probes or self.probes[-1].result == "client":
            return None
        rate = self.probes[-1].rate_rps
        results = [p.result for p in self.probes if p.rate_rps == rate and p.result != "client"]
        return rate if _decided(results) is None else None


def _decided(results: Sequence[Result]) -> Result | None:
    """The result that two blocks agree on."""
    results_of: tuple[Result, ...] = ("met", "missed")
    for result in results_of:
        if results.count(result) >= 2:
            return result
    return None


def told(found: Found, slo: Slo) -> str:
    """The answer in a sentence or two."""
    objective = f"{format_fraction(slo.percentile)} within {objective_label(slo)}"
    if found.highest_rps is None:
        least = min((p.rate_rps for p in found.probes), default=None)
        if found.ended == "time" or least is None:
            return "No rate was settled before the time was up."
        return f"No rate meets the objective ({objective}): not even {format_rate(least)} does."
    best = format_rate(found.highest_rps)
    text = {
        "found": f"{best} is the highest rate that meets the objective ({objective}); {format_rate(found.fails_rps)} "
        "does not.",
        "bound": f"At least {best} meet the objective ({objective}): that is the bound of the search, and the server "
        "still kept up.",
        "client": f"At least {best} meet the objective ({objective}); above it the load generator is the limit, which "
        "says nothing of the server.",
        "time": f"At least {best} meet the objective ({objective}); the time was up"
        + (f", and {format_rate(found.fails_rps)} do not." if found.fails_rps else "."),
    }
    return text[found.ended]
