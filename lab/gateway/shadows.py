"""Copies of requests, whose answers nobody waits for: shadow traffic, and a second opinion on what was refused.

    mirror    the version that shadows the route is asked the same; its answer is compared with the one that was given
    doubt     of the two versions of a rollout one has refused a request: the other is asked. What it takes was no
              mistake of the client's but a failure of the one that refused; what both refuse was

Refusals are doubted of champion and challenger alike: were only the challenger's looked into, one that is no worse
would seem to be. Copies are admitted as all requests are and counted apart; above MOST they are left out, and that is
counted too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, Protocol

from lab.gateway.metrics import Metrics
from lab.gateway.passage import Asking, Passage
from lab.gateway.refusals import Refusal
from lab.measure.records import ERROR, OK, OUTCOMES
from lab.track.canary import Ended
from lab.track.routing import Canary

MOST = 64
"""Copies under way at a time: users must not wait for them."""


class Ways(Protocol):
    """What a copy needs of the gateway."""

    metrics: Metrics

    def copied(self, passage: Passage, version: str) -> Passage:
        """The way of a copy to that version. Refusal where there is no room."""

    def note(self, model: str, ended: Ended) -> None: ...


class Shadows:
    """For one event loop; `close` ends what is under way."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mirror(self, passage: Passage, version: str, asking: Asking) -> None:
        """Ask `version` the same; what it says is compared with `passage.said`."""
        if len(self._tasks) >= MOST:
            self._ways.metrics.shadows.add((passage.route.model, version, "left out"))
            return
        passage.answer = asyncio.get_running_loop().create_future()
        self._begin(self._compare(passage, passage.answer, version, asking))

    def doubt(self, passage: Passage) -> None:
        """The version of this passage refused its request as the client's mistake."""
        canary, asking = passage.route.canary, passage.asking
        if asking is None or canary is None or canary.state not in ("going", "held"):
            return
        if passage.share is None or not 0 < passage.share < 1:
            return  # nothing that the guard compares
        other = other_side(canary, passage.version.version)
        if other is None:
            return
        if len(self._tasks) >= MOST:
            self._ways.metrics.refusals.add((passage.route.model, passage.version.version, "left out"))
            return
        self._begin(self._ask_other(passage, other, asking))

    # --- inside -------------------------------------------------------------------------------------------------

    def _begin(self, copy: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(copy)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compare(self, passage: Passage, answer: asyncio.Future[Any], version: str, asking: Asking) -> None:
        copy: Passage | None = None
        said = "error"
        try:
            copy = self._ways.copied(passage, version)
            async with asyncio.timeout(passage.timeout_s), aclosing(asking(copy)) as parts:
                async for _ in parts:
                    pass  # `copy.said` is what it comes to
                copy.end(OK)
                first = await answer
            said = "alone" if first is None else "same" if first == copy.said else "different"
        except Refusal as refusal:
            said = "invalid" if refusal.outcome is None else OUTCOMES[refusal.outcome]
            if copy is not None:
                copy.end(refusal.outcome)
        except TimeoutError:
            said = "timeout"
        finally:
            if copy is not None:
                copy.end(ERROR)
            self._ways.metrics.shadows.add((passage.route.model, version, said))

    async def _ask_other(self, passage: Passage, other: str, asking: Asking) -> None:
        """Until the other version has begun to answer, or has refused too."""
        model, refuser = passage.route.model, passage.version.version
        copy: Passage | None = None
        said = "failed"
        try:
            copy = self._ways.copied(passage, other)
            parts = asking(copy)
            try:
                async with asyncio.timeout(passage.timeout_s):
                    await anext(parts)
            finally:
                await parts.aclose()  # the rest of a long answer is nobody's
            copy.end(OK)
            said = "took"
            seconds = (time.perf_counter_ns() - passage.began_ns) / 1e9
            self._ways.note(model, Ended(refuser, passage.share, ERROR, seconds, user=passage.user))
        except Refusal as refusal:
            said = "refused" if refusal.outcome is None else "failed"
        except (TimeoutError, StopAsyncIteration):
            pass
        finally:
            if copy is not None:
                copy.end(ERROR)
            self._ways.metrics.refusals.add((model, refuser, said))


def other_side(canary: Canary, version: str) -> str | None:
    """The other of the two versions that a rollout compares; None for a third one."""
    return {canary.champion: canary.challenger, canary.challenger: canary.champion}.get(version)
