"""Whether a challenger may have more of the traffic: three comparisons with the champion, and one word that follows.

    errors    failed requests            difference of the rates
    latency   p95 of answered ones       ratio; p99 too, once there is enough for it. What a client gave up after
                                         longer than that was slow as well, whatever it would have become
    quality   bad answers of those that somebody scored     difference of the rates

Each is a count of harmful events under the router's draw (lab/measure/sequential.py); a slow answer is one above the
champion's own percentile as it was before that answer. For the ratio of the percentiles the challenger's times are
divided by r: at the right r both have their share of slow answers, and every r that is refuted lies outside of the
interval.

    worse      shown to be worse at all (one test over the whole rollout, α shared between the comparisons), and
               measured beyond what is tolerated                      → roll back
    fine       shown to be within what is tolerated                   → at the last step before all: promote
    undecided  neither; more requests decide                          → wait

A challenger that is no worse is rolled back with probability α at most, however often one looks, if harm falls on
single requests by chance. Slow answers come in clumps where a process stalls: the logarithm of latency's evidence is
divided by how much more than by chance they vary from look to look (sequential.Clumps), which holds α nearly, and only
for stalls shorter than a look. Errors and bad answers are taken one by one. Pure: who counts, who moves traffic and who
writes it down is lab/track.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from lab.measure.guard_words import AT_ONE, GRID, Comparison, Name, Pair, Standing, missing, told
from lab.measure.percentile import needed
from lab.measure.sequential import Clumps, Events, Firsts, Floats, Users, rate_bounds
from lab.spec import Tolerance

Action = Literal["wait", "advance", "promote", "roll_back"]

BEYOND = 1e9
"""The level of harm of a slow answer of the champion's, whatever the ratio that is tried: above all of the grid."""
KEPT = 5_000
"""Times of each version that are kept, the newest: thresholds and the percentiles that are shown come from them."""


@dataclass(frozen=True)
class Seen:
    """What one version did since the last look: requests that ended, how many of them failed, the times of the others
    [s], and how many were scored and found bad. `given_up_s`: times after which clients went away; their requests are
    none of the others. The last three say whose the failed, the `waits_s` and the bad were."""

    requests: int = 0
    failed: int = 0
    latencies_s: Floats = field(default_factory=lambda: np.zeros(0))
    scored: int = 0
    bad: int = 0
    given_up_s: Floats = field(default_factory=lambda: np.zeros(0))
    failed_by: Users = None
    waits_by: Users = None
    bad_by: Users = None

    @property
    def waits_s(self) -> Floats:
        """How long answers took, at least."""
        return np.concatenate([self.latencies_s, self.given_up_s])


@dataclass(frozen=True)
class Verdict:
    action: Action
    text: str
    comparisons: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"action": self.action, "text": self.text, "comparisons": [c.to_dict() for c in self.comparisons]}


class Guard:
    """`see` what both did, with the share that was in force when their requests were drawn; `begin_step` when that
    changes; ask `verdict` as often as you like. `to_dict` is everything that a restart must not lose."""

    def __init__(self, tolerance: Tolerance) -> None:
        self.tolerance = tolerance
        self._errors, self._quality = Events(), Events()
        self._slow = {0.95: Events(len(GRID)), 0.99: Events(len(GRID))}
        self._clumps = {quantile: Clumps(len(GRID)) for quantile in self._slow}
        self._firsts = {"errors": Firsts(np.zeros(1)), "quality": Firsts(np.zeros(1))}
        self._firsts |= {str(quantile): Firsts(GRID) for quantile in self._slow}
        self._times: list[Floats] = [np.zeros(0), np.zeros(0)]  # the champion's, the challenger's
        self._step = _Counts()
        self.touched = 0
        """Requests that the challenger had, since the beginning, those that were given up among them."""

    def begin_step(self) -> None:
        """Rates are compared within a step: with a share that changes, totals would be of different hours."""
        self._step = _Counts()

    def see(self, share: float, champion: Seen, challenger: Seen) -> None:
        self.touched += challenger.requests + len(challenger.given_up_s)
        errors, quality = self._firsts["errors"], self._firsts["quality"]
        self._errors.add(
            share,
            errors.add(np.ones(challenger.failed), challenger.failed_by),
            errors.add(np.ones(champion.failed), champion.failed_by),
        )
        self._quality.add(
            share,
            quality.add(np.ones(challenger.bad), challenger.bad_by),
            quality.add(np.ones(champion.bad), champion.bad_by),
        )
        known = self._times[0]
        for quantile, events in self._slow.items():
            if len(known) >= needed(quantile):
                limit = float(np.percentile(known, 100 * quantile))
                if limit > 0:
                    ratios, slow = challenger.waits_s / limit, champion.waits_s > limit
                    firsts = self._firsts[str(quantile)]
                    above = firsts.add(ratios, challenger.waits_by)
                    of_champion = firsts.add(np.where(slow, BEYOND, 0.0), champion.waits_by)
                    events.add(share, above, of_champion)
                    if 0 < share < 1:
                        sizes = len(ratios), len(slow)
                        self._clumps[quantile].add(above, of_champion, *sizes)
        for n, seen in enumerate((champion, challenger)):
            self._times[n] = np.concatenate([self._times[n], seen.latencies_s])[-KEPT:]
        self._step = self._step.and_(champion, challenger)

    # --- what follows -------------------------------------------------------------------------------------------

    def verdict(self, *, last: bool) -> Verdict:
        """`last`: the step after this one is all of the traffic, where nobody is left to compare with."""
        compared = [self._errors_compared(), self._latency_compared(0.95)]
        if len(self._times[0]) >= needed(0.99):
            compared.append(self._latency_compared(0.99))
        quality = self._quality_compared()
        if quality.n_challenger or quality.n_champion or self.tolerance.needs_quality:
            compared.append(quality)
        worse = [c for c in compared if c.standing == "worse"]
        if worse:
            return Verdict("roll_back", f"Roll back: {'; '.join(told(c) for c in worse)}.", tuple(compared))
        seen, least = self._step.requests[1], self.tolerance.least_requests
        if seen < least:
            text = f"Wait: the challenger has had {seen} requests at this step, of the {least} that it needs."
            return Verdict("wait", text, tuple(compared))
        if not last:
            return Verdict("advance", f"Go on: nothing speaks against it after {seen} requests.", tuple(compared))
        # p99 is watched for harm; p95 decides, which needs a tenth of the requests.
        open_ = [c for c in compared if c.standing != "fine" and c.name != "latency_p99"]
        if open_:
            text = f"Wait: {'; '.join(missing(c) for c in open_)}."
            return Verdict("wait", text, tuple(compared))
        text = f"Promote: {'; '.join(told(c) for c in compared if c.standing == 'fine')}."
        return Verdict("promote", text, tuple(compared))

    def _errors_compared(self) -> Comparison:
        counts = self._step
        return self._rates("errors", self._errors, counts.failed, counts.requests, self.tolerance.errors)

    def _quality_compared(self) -> Comparison:
        counts = self._step
        return self._rates("quality", self._quality, counts.bad, counts.scored, self.tolerance.quality)

    def _rates(self, name: Name, events: Events, harmed: Pair, of: Pair, most: float) -> Comparison:
        alpha = self.tolerance.alpha
        evidence = float(events.log_more()[0])
        if not of[0] or not of[1]:
            lacks = "answers of the champion" if not of[0] else "answers of the challenger"
            lacks = f"{'scored ' if name == 'quality' else ''}{lacks}"
            return Comparison(name, None, None, None, None, None, _plain(evidence), most, "undecided", *of, lacks)
        champion, challenger = harmed[0] / of[0], harmed[1] / of[1]
        below, above = (rate_bounds(k, n, alpha / 2) for k, n in zip(harmed, of, strict=True))
        low, high = above[0] - below[1], above[1] - below[0]
        standing: Standing = "fine" if high < most else "undecided"
        if evidence >= self._bar and challenger - champion > most:
            standing = "worse"
        effect = challenger - champion
        return Comparison(
            name, champion, challenger, effect, low, high, _plain(evidence), most, standing, *of,
            decides_at=_plain(self._bar),
        )  # fmt: skip

    def _latency_compared(self, quantile: float) -> Comparison:
        name: Name = "latency_p95" if quantile == 0.95 else "latency_p99"
        events, most = self._slow[quantile], 1 + self.tolerance.latency
        sizes = len(self._times[0]), len(self._times[1])
        total = events.total()
        alike = int(np.argmin(np.abs(events.challenger - events.expected())))
        # Beside their slow answers at the ratio that makes both alike, or a worse version would look like clumps.
        clumped = self._clumps[quantile].factor(alike)
        more, fewer = (log / (clumped or 1.0) for log in (events.log_more(), events.log_fewer()))
        evidence = float(more[AT_ONE]) if clumped else 0.0
        if not total[AT_ONE]:
            lacks = f"{needed(quantile)} answers of the champion and one slow one since"
            return Comparison(name, None, None, None, None, None, _plain(evidence), most, "undecided", *sizes, lacks)
        # An r at which the challenger's slow answers are more than its share is too small, and the other way round.
        bar = math.log(2 / self.tolerance.alpha)
        too_small, too_large = (np.flatnonzero(log >= bar) if clumped else np.zeros(0, int) for log in (more, fewer))
        low = float(GRID[too_small.max()]) if len(too_small) else None
        high = float(GRID[too_large.min()]) if len(too_large) else None
        # Of ratios between which there was no answer, the one that the bounds leave.
        effect = float(np.clip(GRID[alike], low, high)) if low or high else float(GRID[alike])
        standing: Standing = "fine" if high is not None and high <= most else "undecided"
        if evidence >= self._bar and effect > most:
            standing = "worse"
        of_champion, of_challenger = (
            float(np.percentile(times, 100 * quantile)) if len(times) >= needed(quantile) else None
            for times in self._times
        )
        return Comparison(
            name, of_champion, of_challenger, effect, low, high, _plain(evidence), most, standing, *sizes,
            decides_at=_plain(self._bar),
        )  # fmt: skip

    @property
    def _bar(self) -> float:
        """ln of the evidence that rolls back: α is shared between four tests."""
        return math.log(4 / self.tolerance.alpha)

    # --- a restart ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Times are not in it: after a restart the percentiles are found anew, the evidence so far stands."""
        return {
            "errors": self._errors.to_dict(),
            "quality": self._quality.to_dict(),
            "slow": {str(quantile): events.to_dict() for quantile, events in self._slow.items()},
            "clumps": {str(quantile): clumps.to_dict() for quantile, clumps in self._clumps.items()},
            "harmed": {name: firsts.worst for name, firsts in self._firsts.items()},
            "step": asdict(self._step),
            "touched": self.touched,
        }

    @classmethod
    def from_dict(cls, tolerance: Tolerance, written: Mapping[str, Any]) -> Guard:
        guard = cls(tolerance)
        guard._errors = Events.from_dict(written["errors"])
        guard._quality = Events.from_dict(written["quality"])
        guard._slow = {float(q): Events.from_dict(events) for q, events in written["slow"].items()}
        guard._clumps = {float(q): Clumps.from_dict(clumps) for q, clumps in written["clumps"].items()}
        for name, worst in written.get("harmed", {}).items():
            guard._firsts[name].worst = {str(user): float(level) for user, level in worst.items()}
        guard._step = _Counts(**{name: (int(pair[0]), int(pair[1])) for name, pair in written["step"].items()})
        guard.touched = int(written["touched"])
        return guard


@dataclass(frozen=True)
class _Counts:
    """Of one step."""

    requests: Pair = (0, 0)
    failed: Pair = (0, 0)
    scored: Pair = (0, 0)
    bad: Pair = (0, 0)

    def and_(self, champion: Seen, challenger: Seen) -> _Counts:
        def more(name: str) -> Pair:
            before: Pair = getattr(self, name)
            return before[0] + int(getattr(champion, name)), before[1] + int(getattr(challenger, name))

        return _Counts(more("requests"), more("failed"), more("scored"), more("bad"))


def _plain(log: float) -> float:
    """e^log, as far as a float goes."""
    return math.exp(min(log, 700.0))
