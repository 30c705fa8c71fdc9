"""The guard at work: what ended since the last look goes to it, and what it decides goes to the routes.

    watch = Watch(routes)
    watch.tick({"llm": [Ended(…), …]})        once a second, by the gateway, in a thread: it writes files

A rollout that is going is moved by the guard's word; one that is held is watched and told of. Evidence is written down
at each look (LAB_HOME/gateway/watch/), so a gateway that is killed goes on where it was: the test's error is of the
whole rollout, and does not start anew with each restart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab import atomic
from lab.measure.guard import Guard, Seen, Verdict
from lab.measure.records import CANCELLED, OK
from lab.measure.sequential import Users
from lab.track.rollout import decide
from lab.track.routes import Routes, place
from lab.track.routing import Canary, Route

GOOD_SCORE = 0.5
"""An answer that was scored lower is a bad one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that ended. `share`: of the challenger in the draw; None: not drawn, and nothing to compare. `score` 0
    to 1, where somebody gave one: such a line has no outcome of its own. `user`: whom the draw was about; None: this
    request alone."""

    version: str
    share: float | None
    outcome: int | None
    seconds: float
    score: float | None = None
    user: str | None = None


class Watch:
    """`on_end(route)` is told once of a rollout that was promoted or rolled back, by whomever. One tick at a time."""

    def __init__(self, routes: Routes, on_end: Callable[[Route], None] = lambda route: None) -> None:
        self._routes, self._on_end = routes, on_end
        self._guards: dict[str, tuple[str, int, Guard]] = {}  # by route: the rollout, its step, its guard

    def tick(self, ended: Mapping[str, Sequence[Ended]]) -> None:
        """Take in what ended and do what follows from it."""
        for name, route in list(self._routes.by_name.items()):
            canary = route.canary
            if canary is None or canary.state not in ("going", "held"):
                if self._guards.pop(name, None) is not None and canary is not None:
                    self._on_end(route)
                continue
            guard = self._guard(name, canary)
            for share, (champion, challenger) in by_share(ended.get(name, ()), canary).items():
                guard.see(share, champion, challenger)
            verdict = guard.verdict(last=canary.step + 1 >= len(canary.steps) or canary.steps[canary.step + 1] == 1)
            self._write(name, canary, guard, verdict)
            if canary.state == "going" and verdict.action != "wait":
                self._act(name, canary, guard, verdict)

    def _act(self, name: str, canary: Canary, guard: Guard, verdict: Verdict) -> None:
        def decided(route: Route | None) -> Route | None:
            if route is None or route.canary != canary:
                return route  # somebody else was quicker
            return decide(route, verdict.action)  # type: ignore[arg-type]  # not "wait"

        why = {"by": "guard", "touched": guard.touched, "evidence": verdict.to_dict()}
        self._routes.change(name, decided, action=verdict.action, **why)

    def _guard(self, name: str, canary: Canary) -> Guard:
        begun, step, guard = self._guards.get(name) or self._read(name, canary)
        if begun != canary.begun:
            step, guard = canary.step, Guard(canary.tolerance)
        if step != canary.step:
            guard.begin_step()
        self._guards[name] = (canary.begun, canary.step, guard)
        return guard

    def _read(self, name: str, canary: Canary) -> tuple[str, int, Guard]:
        """As it was left; new where nothing of this rollout was."""
        try:
            written = json.loads(place(self._routes, name).read_text())
            guard = Guard.from_dict(canary.tolerance, written["guard"])
            return str(written["begun"]), int(written["step"]), guard
        except (OSError, ValueError, KeyError, TypeError):
            return canary.begun, canary.step, Guard(canary.tolerance)

    def _write(self, name: str, canary: Canary, guard: Guard, verdict: Verdict) -> None:
        path = place(self._routes, name)
        path.parent.mkdir(exist_ok=True)
        told = {
            "begun": canary.begun,
            "step": canary.step,
            "t_s": time.time(),
            "touched": guard.touched,
            "verdict": verdict.to_dict(),
            "guard": guard.to_dict(),
        }
        atomic.write(path, json.dumps(told, allow_nan=False))


def by_share(ended: Sequence[Ended], canary: Canary) -> dict[float, tuple[Seen, Seen]]:
    """(champion's, challenger's) of the requests that were drawn, by the challenger's share in the draw."""
    groups: dict[float, tuple[list[Ended], list[Ended]]] = {}
    for one in ended:
        if one.share is None:
            continue
        if one.version == canary.champion:
            groups.setdefault(one.share, ([], []))[0].append(one)
        elif one.version == canary.challenger:
            groups.setdefault(one.share, ([], []))[1].append(one)
    return {share: (seen(champion), seen(challenger)) for share, (champion, challenger) in groups.items()}


def seen(ended: Sequence[Ended]) -> Seen:
    requests = [one for one in ended if one.outcome not in (None, CANCELLED)]
    answered = [one for one in requests if one.outcome == OK]
    failed = [one for one in requests if one.outcome != OK]
    given_up = [one for one in ended if one.outcome == CANCELLED]
    scored = [one for one in ended if one.score is not None]
    bad = [one for one in scored if one.score is not None and one.score < GOOD_SCORE]
    return Seen(
        requests=len(requests),
        failed=len(failed),
        latencies_s=np.array([one.seconds for one in answered], dtype=float),
        scored=len(scored),
        bad=len(bad),
        given_up_s=np.array([one.seconds for one in given_up], dtype=float),
        failed_by=_whose(failed),
        waits_by=_whose([*answered, *given_up]),
        bad_by=_whose(bad),
    )


def _whose(ended: Sequence[Ended]) -> Users:
    users = [one.user for one in ended]
    return users if any(users) else None
