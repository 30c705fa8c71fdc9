"""One block of a canary rehearsed: version 2 begins at the first step, and the gateway's guard does the rest.

The load goes on for AFTER_S once it is decided, so that what the decision did is seen. A rollout that the guard has not
decided within the block is rolled back by the rehearsal, and told as undecided.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import uvloop

from lab.load.recorder import Recorder
from lab.measure.records import Int64s
from lab.spec import Rollout
from lab.track import rollout
from lab.track.rehearsal.stage import Stage
from lab.track.rehearsal.users import Answer, Users
from lab.track.routes import Routes, last_look
from lab.track.routing import Canary, Route

ONE, TWO = "1", "2"
AFTER_S = 2.0
SLICE_S = 0.5


@dataclass(frozen=True)
class Played:
    """`end_ns`: when the load ended; `asked` of the planned requests were sent. `told` is the event."""

    end_ns: int
    asked: int
    told: dict[str, Any]


def play(
    stage: Stage,
    name: str,
    plan: Rollout,
    due_ns: Int64s,
    begin_ns: int,
    *,
    timeout_s: float,
    recorder: Recorder | None,
    stopped: Callable[[], bool],
) -> Played:
    """`name` is routed to versions "1", which has all traffic, and "2". The canary begins at `begin_ns`; `stopped` ends
    it early."""
    routes, audited = stage.routes, len(stage.routes.audit(name))
    watching = _Watching(routes, name, plan, begin_ns, stopped)

    async def all_of_it() -> tuple[int, list[Answer]]:
        async with Users(stage.url, timeout_s, recorder, scores=True) as users:
            return await users.predict(name, due_ns, watching), users.answers

    asked, answers = uvloop.run(all_of_it())
    end_ns = time.perf_counter_ns()
    canary, look = watching.canary(), last_look(routes, name)
    if canary is not None and canary.state in ("going", "held"):
        rollout.move(routes, name, "roll_back", by="rehearsal")
    told = _told(answers, canary, look, routes.audit(name)[audited:], watching)
    return Played(end_ns, asked, told)


class _Watching:
    """Begins the canary when it is time, and says when there is nothing more to see."""

    def __init__(self, routes: Routes, name: str, plan: Rollout, begin_ns: int, stopped: Callable[[], bool]) -> None:
        self._routes, self._name, self._plan, self._stopped = routes, name, plan, stopped
        self.begin_ns = begin_ns
        self.begun_ns: int | None = None
        self.decided_ns: int | None = None

    def __call__(self) -> bool:
        now_ns = time.perf_counter_ns()
        if self._stopped():
            return True
        if self.begun_ns is None:
            if now_ns >= self.begin_ns:
                plan = self._plan
                rollout.begin(self._routes, self._name, TWO, steps=plan.steps, tolerance=plan.tolerance, by="rehearsal")
                self.begun_ns = time.perf_counter_ns()
            return False
        canary = self.canary()
        if self.decided_ns is None and canary is not None and canary.state in ("promoted", "rolled_back"):
            self.decided_ns = now_ns
        return self.decided_ns is not None and now_ns > self.decided_ns + round(AFTER_S * 1e9)

    def canary(self) -> Canary | None:
        """Of this rehearsal, once it has begun."""
        self._routes.refresh()
        route: Route | None = self._routes.by_name.get(self._name)
        return None if route is None or self.begun_ns is None else route.canary


def _told(
    answers: list[Answer],
    canary: Canary | None,
    look: dict[str, Any] | None,
    audit: list[dict[str, Any]],
    watching: _Watching,
) -> dict[str, Any]:
    """The event's fields. Seconds count from the beginning of the canary."""
    begun_ns = watching.begun_ns or watching.begin_ns
    own = look if look is not None and canary is not None and look.get("begun") == canary.begun else None
    decided = next((line["evidence"] for line in reversed(audit) if line.get("evidence")), None)
    last = decided if canary is not None and canary.state != "going" else own and own["verdict"]
    by_version = {
        version: [a for a in answers if a.version == version and a.sent_ns >= begun_ns] for version in (ONE, TWO)
    }
    until_ns = watching.decided_ns or max((a.sent_ns for a in answers), default=begun_ns)
    return {
        "decision": "undecided" if canary is None or canary.state in ("going", "held") else canary.state,
        "seconds": (until_ns - begun_ns) / 1e9,
        "requests": sum(map(len, by_version.values())),
        "touched": len(by_version[TWO]),
        "failed": sum(not a.whole for a in by_version[TWO]),
        "wrong": sum(a.right is False for a in by_version[TWO]),
        "champion_failed": sum(not a.whole for a in by_version[ONE]),
        "champion_wrong": sum(a.right is False for a in by_version[ONE]),
        "champion_requests": len(by_version[ONE]),
        "text": last["text"] if last else "",
        "comparisons": last["comparisons"] if last else [],
        "moves": _moves(audit),
        "traffic": traffic(answers, begun_ns, (ONE, TWO)),
    }


def _moves(audit: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each decision with the challenger's share after it, in seconds from the first."""
    stamps = [datetime.fromisoformat(line["utc"]).timestamp() for line in audit]
    return [
        {
            "t_s": stamp - stamps[0],
            "action": line["action"],
            "by": line["by"],
            "share": (line.get("after") or {}).get(TWO),
            "touched": line.get("touched"),
        }
        for stamp, line in zip(stamps, audit, strict=True)
    ]


def traffic(answers: list[Answer], from_ns: int, versions: tuple[str, ...]) -> dict[str, list[float]]:
    """Requests a second by version, each half second of when they were sent: {"t_s": …, version: …}; "t_s" is the
    middle of each, from `from_ns` on."""
    if not answers:
        return {"t_s": [], **{version: [] for version in versions}}
    sent = np.array([answer.sent_ns for answer in answers])
    first = int(np.floor((sent.min() - from_ns) / 1e9 / SLICE_S))
    slices = np.floor((sent - from_ns) / 1e9 / SLICE_S).astype(int) - first
    found = {"t_s": ((np.arange(slices.max() + 1) + first + 0.5) * SLICE_S).tolist()}
    for version in versions:
        own = np.array([answer.version == version for answer in answers])
        found[version] = (np.bincount(slices[own], minlength=slices.max() + 1) / SLICE_S).tolist()
    return found
