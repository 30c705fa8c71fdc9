"""One request on its way: what outlives the function that handles it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from lab.measure.records import OK
from lab.track.routing import Replica, Route, Version

Asking = Callable[["Passage"], AsyncGenerator[bytes, None]]
"""Asks the version of the passage that it is given; the parts of the answer as they come."""


class Passage:
    """`share`: of the challenger in the draw, as lab/track/routing.choose has it; `user`: whom that was about, if not
    this request alone. `shadow`: nobody's request, a copy. `left` is told once how it ended."""

    __slots__ = (
        "_ended", "_left", "answer", "asking", "began_ns", "first_ns", "held", "id", "replica", "route", "said",
        "shadow", "share", "timeout_s", "tokens", "user", "version",
    )  # fmt: skip

    def __init__(
        self,
        left: Callable[[Passage, int | None], None],
        route: Route,
        version: Version,
        replica: Replica,
        share: float | None,
        request_id: str,
        timeout_s: float,
        *,
        user: str | None = None,
        shadow: bool = False,
    ) -> None:
        self._left, self._ended = left, False
        self.route, self.version, self.replica, self.share = route, version, replica, share
        self.id, self.timeout_s, self.user, self.shadow = request_id, timeout_s, user, shadow
        self.began_ns = time.perf_counter_ns()
        self.first_ns: int | None = None
        self.tokens = 0
        self.held: Callable[[], None] | None = None  # gives the loaded model free
        self.asking: Asking | None = None
        """Asks the same of another version."""
        self.answer: asyncio.Future[Any] | None = None
        """Where a shadow waits to compare its own answer with `said`."""
        self.said: Any = None
        """The answer without what differs from one to the next, where it is `compared`."""

    @property
    def compared(self) -> bool:
        """Whether somebody wants to know what was said."""
        return self.shadow or self.answer is not None

    def first(self) -> None:
        """The first part of the answer is on its way to the client."""
        if self.first_ns is None:
            self.first_ns = time.perf_counter_ns()

    def end(self, outcome: int | None) -> None:
        """None: the request was the client's mistake, as the version that was asked sees it."""
        if not self._ended:
            self._ended = True
            if self.answer is not None and not self.answer.done():
                self.answer.set_result(self.said if outcome == OK else None)
            self._left(self, outcome)
