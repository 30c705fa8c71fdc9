"""Comparing two versions while traffic runs: tests that may be looked at any time, and bounds that hold at every look.

A router sends each request to the challenger with probability w (its share), else to the champion, by a draw of its
own. So where both are alike, each harmful event (a failure, a slow answer, a bad one) fell on the challenger with
probability w, whatever the load, the hour or the mix of requests was: the draw itself is the control, and the two are
compared over the same window by construction. If the challenger makes harm φ times as often, that probability is
wφ / (1 - w + wφ), and the likelihood ratio of φ against 1, after K of n events fell on it, is

    φ^K / Π (1 - w + wφ)        over all events, each with the share that was in force for it

The mean of these over several φ is the mixture sequential probability ratio test (Robbins, "Statistical methods related
to the law of the iterated logarithm", Ann. Math. Statist. 41, 1970; for A/B tests that are watched: Johari, Koomen,
Pekelis, Walsh, "Always valid inference", Operations Research 70, 2022), here of two rates given their sum (Przyborowski
and Wilenski, Biometrika 31, 1940). While the challenger is no worse it is a nonnegative supermartingale that starts at
1, so it ever reaches 1/α with probability at most α (Ville, 1939): nobody pays for peeking.

The draw makes the requests of one look exchangeable between the versions only as long as their harm does not come in
clumps of one version's own: a process that stalls makes all slow that wait for it. Then the counts vary more from look
to look than the draw alone makes them (Clumps), and the evidence is worth less. Its logarithm divided by that factor
is the usual correction of overdispersed counts (Wedderburn, Biometrika 61, 1974; McCullagh and Nelder, "Generalized
Linear Models", 1989), an approximation: α is exact without clumps, and held by simulation with clumps shorter than a
look. Stalls that last many looks are not seen by it.

Where a key decides which version a user gets, one draw decides about all requests of a user, and they are no more
evidence than one: only the first harm to a user is an event (Firsts). Given that it is the first, it fell on the
challenger with the probability w of its day, as above.

Not known here: what an event is, or when it happened. Not covered: requests whose version was not drawn (asked for by
name).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RATIOS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""The φ of the mixture: how much worse a challenger may be; their inverses where it may be better."""

LEAST_LOOKS = 10
"""From which on a variance between looks is told."""

Users = Sequence[str | None] | None
"""Whose each request was; None for one that was drawn by itself, and for all of them if all were."""
MOST_USERS = 5_000
"""Harmed users that are known again; the oldest are forgotten."""


class Events:
    """Harmful events, one column a definition of harm: of how many there are by share, and how many fell on the
    challenger. All that the tests need, small enough to be written down each second."""

    def __init__(self, columns: int = 1) -> None:
        self.challenger = np.zeros(columns)
        self.by_share: dict[float, Floats] = {}

    def add(self, share: float, challenger: npt.ArrayLike, champion: npt.ArrayLike) -> None:
        """Counts, one a column, of events whose requests were drawn with this share. Without a draw (share 0 or 1)
        there is nothing to compare."""
        if not 0 < share < 1:
            return
        more = np.asarray(challenger, dtype=float)
        self.challenger = self.challenger + more
        before = self.by_share.get(share, np.zeros_like(self.challenger))
        self.by_share[share] = before + more + np.asarray(champion, dtype=float)

    def total(self) -> Floats:
        """Events of both, by column."""
        return np.sum(list(self.by_share.values()), axis=0) if self.by_share else np.zeros_like(self.challenger)

    def expected(self) -> Floats:
        """What the challenger would have of them if both were alike, by column."""
        parts = [share * events for share, events in self.by_share.items()]
        return np.sum(parts, axis=0) if parts else np.zeros_like(self.challenger)

    def log_more(self) -> Floats:
        """ln of the evidence that the challenger has more than its share, by column; at most α of challengers that are
        no worse ever reach ln(1/α)."""
        return self._mixture(RATIOS)

    def log_fewer(self) -> Floats:
        """The same for fewer than its share."""
        return self._mixture(tuple(1 / ratio for ratio in RATIOS))

    def _mixture(self, ratios: tuple[float, ...]) -> Floats:
        logs = np.stack(
            [
                self.challenger * math.log(ratio)
                - sum(
                    (events * math.log1p(share * (ratio - 1)) for share, events in self.by_share.items()),
                    start=np.zeros_like(self.challenger),
                )
                for ratio in ratios
            ]
        )
        top = logs.max(axis=0)
        found: Floats = top + np.log(np.exp(logs - top).mean(axis=0))
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "challenger": self.challenger.tolist(),
            "by_share": {repr(share): events.tolist() for share, events in self.by_share.items()},
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Events:
        found = cls()
        found.challenger = np.array(written["challenger"], dtype=float)
        found.by_share = {float(share): np.array(events, float) for share, events in written["by_share"].items()}
        return found


class Firsts:
    """How badly each user was harmed so far. `grid`: levels of harm, one a column; a user is harmed in those that are
    below what it met."""

    def __init__(self, grid: Floats) -> None:
        self.grid = grid
        self.worst: dict[str, float] = {}

    def add(self, levels: Floats, users: Users = None) -> Floats:
        """Events by column, of requests that met these levels of harm: one for each that was drawn by itself, and one
        for each user who was not harmed there before."""
        alone = levels if users is None else levels[[user is None for user in users]]
        found = len(alone) - np.searchsorted(np.sort(alone), self.grid, side="right").astype(float)
        for level, user in zip(levels.tolist(), users or (), strict=users is not None):
            before = 0.0 if user is None else self.worst.get(user, 0.0)
            if user is not None and level > max(before, self.grid[0]):
                found += (self.grid < level) & (self.grid >= before)
                self.worst[user] = level
                if len(self.worst) > MOST_USERS:
                    del self.worst[next(iter(self.worst))]
        return found


class Clumps:
    """How much more the challenger's part of the harmful events varies from look to look than by the draw alone, one
    column a definition of harm: given a look's events, its part is hypergeometric where events are exchangeable."""

    def __init__(self, columns: int = 1) -> None:
        self.looks, self.sums, self.squares = (np.zeros(columns) for _ in range(3))

    def add(self, challenger: npt.ArrayLike, champion: npt.ArrayLike, of_challenger: int, of_champion: int) -> None:
        """A look: events of both, one a column, of so many requests."""
        part, of = np.asarray(challenger, dtype=float), of_challenger + of_champion
        events = part + np.asarray(champion, dtype=float)
        if of < 2:
            return
        share = of_challenger / of
        variance = events * (of - events) * share * (1 - share) / (of - 1)
        told = variance > 0
        apart = np.where(told, (part - events * share) / np.sqrt(np.where(told, variance, 1.0)), 0.0)
        self.looks = self.looks + told
        self.sums = self.sums + apart
        self.squares = self.squares + apart**2

    def factor(self, column: int) -> float | None:
        """Variance over the draw's own, 1 at least; None before there are enough looks to tell."""
        looks = float(self.looks[column])
        if looks < LEAST_LOOKS:
            return None
        return max(1.0, float(self.squares[column] - self.sums[column] ** 2 / looks) / (looks - 1))

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("looks", "sums", "squares")}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Clumps:
        found = cls()
        found.looks, found.sums, found.squares = (
            np.array(written[name], dtype=float) for name in ("looks", "sums", "squares")
        )
        return found


def rate_bounds(events: int, trials: int, alpha: float) -> tuple[float, float]:
    """The two ends of a confidence sequence for a rate: with probability 1 - `alpha` the rate lies between them at
    every look at once. Of the beta-binomial mixture with Jeffreys' prior (Robbins, 1970; Howard, Ramdas, McAuliffe,
    Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Ann. Statist. 49, 2021). (0, 1) without
    trials."""
    if trials == 0:
        return 0.0, 1.0
    rest = trials - events
    mixture = _log_beta(events + 0.5, rest + 0.5) - _log_beta(0.5, 0.5)

    def excluded(rate: float) -> bool:
        log = (events * math.log(rate) if events else 0.0) + (rest * math.log1p(-rate) if rest else 0.0)
        return mixture - log >= math.log(1 / alpha)

    middle = events / trials
    low = 0.0 if events == 0 else _edge(excluded, 0.0, middle)
    high = 1.0 if rest == 0 else _edge(excluded, 1.0, middle)
    return low, high


def _edge(excluded: Any, outside: float, inside: float) -> float:
    """Where `excluded` turns false on the way from `outside` to `inside`."""
    for _ in range(40):
        middle = (outside + inside) / 2
        if middle in (outside, inside):
            break
        if 0 < middle < 1 and not excluded(middle):
            inside = middle
        else:
            outside = middle
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
