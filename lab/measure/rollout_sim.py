"""A rollout that is simulated: how often the guard is right, and how many users a bad version meets before it is.

Requests come as a Poisson stream and are drawn for a version as the router draws them; times are lognormal, failures
and bad answers independent. A second is a look, as in the gateway. Modelled, never measured: it has no queue, so it
shows the guard's arithmetic and not a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lab.measure.guard import Guard, Seen
from lab.spec import Tolerance

STEPS = (0.01, 0.05, 0.25, 1.0)


@dataclass(frozen=True)
class Story:
    """What the challenger is like, beside a champion with a median of `median_s`, a spread of `sigma` (of the
    logarithm), no errors and `bad` bad answers. `slower`: times the champion's; `errors`: rate; `worse`: more bad
    answers, as a difference of rates. `scored`: the share of answers that somebody scores."""

    rate_rps: float = 100.0
    median_s: float = 0.05
    sigma: float = 0.5
    bad: float = 0.05
    scored: float = 1.0
    slower: float = 1.0
    errors: float = 0.0
    worse: float = 0.0


@dataclass(frozen=True)
class Ending:
    """`touched`: requests that the challenger had before it was over; `harmed`: failed or badly answered ones."""

    end: Literal["promoted", "rolled_back", "undecided"]
    seconds: int
    step: float
    touched: int
    harmed: int


def simulate(
    story: Story, tolerance: Tolerance, *, seed: int, steps: tuple[float, ...] = STEPS, limit_s: int = 3600
) -> Ending:
    """One rollout from its first step to its end; "undecided" after `limit_s`."""
    random = np.random.default_rng(seed)
    guard, step, harmed = Guard(tolerance), 0, 0
    for second in range(1, limit_s + 1):
        share = steps[step]
        count = int(random.poisson(story.rate_rps))
        ours = int(random.binomial(count, share))
        champion = _did(random, story, count - ours, 1.0, 0.0, story.bad)
        challenger = _did(random, story, ours, story.slower, story.errors, story.bad + story.worse)
        harmed += challenger.failed + challenger.bad
        guard.see(share, champion, challenger)
        last = step + 1 >= len(steps) or steps[step + 1] == 1
        action = guard.verdict(last=last).action
        if action in ("promote", "roll_back"):
            end: Literal["promoted", "rolled_back"] = "promoted" if action == "promote" else "rolled_back"
            return Ending(end, second, share, guard.touched, harmed)
        if action == "advance":
            step += 1
            guard.begin_step()
    return Ending("undecided", limit_s, steps[step], guard.touched, harmed)


def _did(random: np.random.Generator, story: Story, count: int, slower: float, errors: float, bad: float) -> Seen:
    failed = int(random.binomial(count, errors))
    answered = count - failed
    times = random.lognormal(np.log(story.median_s), story.sigma, answered) * slower
    scored = int(random.binomial(answered, story.scored))
    return Seen(count, failed, times, scored, int(random.binomial(scored, bad)))
