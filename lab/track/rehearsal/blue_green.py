"""One block of a blue/green rollout rehearsed: all traffic to the second environment at once, later back at once, while
predictions come at a rate and streams are on their way. Each request is accounted for in three books: the users', the
gateway's and the Tritons'.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import uvloop

from lab.load.recorder import Recorder
from lab.measure.records import REFUSED, Int64s
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.track import rollout
from lab.track.rehearsal.canary import Played, traffic
from lab.track.rehearsal.stage import LOOK_S, Stage
from lab.track.rehearsal.users import IMAGES, STREAM_TOKENS, Answer, Users

BLUE, GREEN = "blue", "green"
COUNTED_S = 3.0
AFTER_NS = 1_000_000_000
"""What counts as right after a switch."""


def play(
    stage: Stage,
    names: Sequence[str],
    served: Sequence[tuple[Server, str]],
    due_ns: Int64s,
    switch_ns: tuple[int, int],
    *,
    streams: int,
    timeout_s: float,
    recorder: Recorder | None,
    stopped: Callable[[], bool],
) -> Played:
    """`names` are routed to versions "blue", which has all traffic, and "green": first the one that is asked at the
    times `due_ns`, then, with `streams`, a language model. `switch_ns`: there, and back. `served`: the first name's
    models, and where."""
    entered, executed = stage.told()["entered"], _executed(served)
    switching = _Switching(stage, names, switch_ns, stopped)

    async def all_of_it() -> tuple[int, int, list[Answer]]:
        async with Users(stage.url, timeout_s, recorder) as users:
            until_ns = int(due_ns[-1]) if len(due_ns) else time.perf_counter_ns()
            talks = [asyncio.ensure_future(users.talk(names[-1], n, STREAM_TOKENS, until_ns)) for n in range(streams)]
            asked = await users.predict(names[0], due_ns, switching, images=IMAGES)
            for task in talks if stopped() else ():
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            return asked, users.sent, users.answers

    asked, sent, answers = uvloop.run(all_of_it())
    end_ns = time.perf_counter_ns()
    left = stage.settled()
    first_ns = switching.done[0].at_ns if switching.done else end_ns
    told = {
        **accounts(answers, sent, switching.done),
        "left": left,
        "entered": stage.told()["entered"] - entered,
        "executed": _executed(served, executed + asked) - executed,
        "predictions": asked,
        "moves": [move.told(answers, first_ns) for move in switching.done],
        "traffic": traffic(answers, first_ns, (BLUE, GREEN)),
    }
    return Played(end_ns, asked, told)


class Switch:
    """All of the names' routes to `to`: asked for at `at_ns`, written at `written_ns`."""

    def __init__(self, to: str, at_ns: int, written_ns: int) -> None:
        self.to, self.at_ns, self.written_ns = to, at_ns, written_ns

    def told(self, answers: Sequence[Answer], since_ns: int) -> dict[str, Any]:
        """When it was (seconds since `since_ns`), how quick, and what it cost: answers that were under way, requests
        that the old version still got, the slowest prediction of the second after it beside the second before."""
        under_way = [a for a in answers if a.sent_ns < self.at_ns <= a.done_ns and a.version not in (self.to, None)]
        late = [a for a in answers if a.sent_ns > self.written_ns and a.version not in (self.to, None)]
        late = [a for a in late if a.sent_ns < self.written_ns + AFTER_NS]
        return {
            "to": self.to,
            "t_s": (self.at_ns - since_ns) / 1e9,
            "write_s": (self.written_ns - self.at_ns) / 1e9,
            "under_way": len(under_way),
            "drain_s": (max((a.done_ns for a in under_way), default=self.at_ns) - self.at_ns) / 1e9,
            "late": len(late),
            "late_s": max(((a.sent_ns - self.written_ns) / 1e9 for a in late), default=0.0),
            "slowest_before_s": _slowest(answers, self.at_ns - AFTER_NS, self.at_ns),
            "slowest_after_s": _slowest(answers, self.at_ns, self.at_ns + AFTER_NS),
        }


class _Switching:
    """Switches when it is time, and says when to stop."""

    def __init__(
        self, stage: Stage, names: Sequence[str], switch_ns: tuple[int, int], stopped: Callable[[], bool]
    ) -> None:
        self._stage, self._names, self._stopped = stage, names, stopped
        self._planned = list(zip((GREEN, BLUE), switch_ns, strict=True))
        self.done: list[Switch] = []

    def __call__(self) -> bool:
        if self._planned and time.perf_counter_ns() >= self._planned[0][1]:
            to, _ = self._planned.pop(0)
            at_ns = time.perf_counter_ns()
            for name in dict.fromkeys(self._names):
                rollout.switch(self._stage.routes, name, to, by="rehearsal")
            self.done.append(Switch(to, at_ns, time.perf_counter_ns()))
        return self._stopped()


def accounts(answers: Sequence[Answer], sent: int, done: Sequence[Switch]) -> dict[str, Any]:
    """`refused`: requests whose answer was to come again. `lost`: those with neither that nor a whole answer.
    `differing` of the `compared` answers that blue gave after the way back are not to the letter what it said to the
    same question before the switch; `other`: green's that differ from blue's, which they may."""
    whole = [a for a in answers if a.whole]
    refused = sum(a.outcome == REFUSED for a in answers)
    there, back = (done[0].at_ns, done[1].written_ns) if len(done) == 2 else (None, None)
    before = {(a.kind, a.number): a.said for a in whole if a.version == BLUE and (there is None or a.done_ns < there)}

    def unlike(compared: Sequence[Answer]) -> int:
        return sum(a.said != before[a.kind, a.number] for a in compared)

    known = [a for a in whole if (a.kind, a.number) in before]
    after = [a for a in known if a.version == BLUE and back is not None and a.sent_ns > back]
    green = [a for a in known if a.version == GREEN]
    return {
        "requests": sent,
        "streams": sum(a.kind == "stream" for a in answers),
        "refused": refused,
        "lost": sent - len(whole) - refused,
        "twice": len(whole) - len({(a.kind, a.id) for a in whole}),
        "compared": len(after),
        "differing": unlike(after),
        "green_compared": len(green),
        "green_other": unlike(green),
        "by_version": dict(Counter(str(a.version) for a in whole)),
    }


def _slowest(answers: Sequence[Answer], from_ns: int, to_ns: int) -> float | None:
    own = [a.seconds for a in answers if a.kind == "prediction" and a.whole and from_ns <= a.sent_ns < to_ns]
    return float(np.max(own)) if own else None


def _executed(served: Sequence[tuple[Server, str]], expected: int = 0) -> int:
    """Requests that these models have answered, by Triton's own counters, which come a moment after the answer."""
    until_s = time.monotonic() + COUNTED_S
    while True:
        total = 0.0
        for server, model in served:
            rows = scrape(server, [model]).to_pylist()
            total += next((row["value"] or 0.0 for row in rows if row["field"] == "success_count"), 0.0)
        if total >= expected or time.monotonic() > until_s:
            return round(total)
        time.sleep(LOOK_S)
