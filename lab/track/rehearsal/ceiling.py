"""How many predictions a second come through the gateway with the streams beside them: what a load may be a share of.

A closed loop, so nobody falls behind: its users are as slow as the machine is. They share its cores with everything
else, as they do later, so the figure is what this machine carries and not what the gateway could.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import uvloop

from lab.load.recorder import Recorder
from lab.track.rehearsal.canary import Played
from lab.track.rehearsal.stage import Stage
from lab.track.rehearsal.users import IMAGES, STREAM_TOKENS, Users


def play(
    stage: Stage,
    name: str,
    talker: str,
    until_ns: int,
    *,
    concurrency: int,
    streams: int,
    timeout_s: float,
    recorder: Recorder | None,
    stopped: Callable[[], bool],
) -> Played:
    """`concurrency` users ask `name` until then, one question after the other, while `streams` read what `talker`
    writes."""

    async def all_of_it() -> int:
        async with Users(stage.url, timeout_s, recorder) as users:
            talks = [asyncio.ensure_future(users.talk(talker, n, STREAM_TOKENS, until_ns)) for n in range(streams)]
            asked = await users.crowd(name, concurrency, until_ns, stopped, images=IMAGES)
            for task in talks:
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
            return asked

    asked = uvloop.run(all_of_it())
    ended_ns = time.perf_counter_ns()
    stage.settled()
    return Played(ended_ns, asked, {})
