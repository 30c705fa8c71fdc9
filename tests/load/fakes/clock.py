"""An event loop in a time of its own, which stands still while something runs and jumps ahead when nothing does.

What happens in it happens at the very times that a test says, whatever else the machine does, and takes none of them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lab.load import driver

SECOND_NS = 1_000_000_000


class Clock:
    """`now` is this time's perf_counter_ns, `stand` a client that does nothing for so long."""

    def __init__(self) -> None:
        self._ns = 1000 * SECOND_NS

    def now(self) -> int:
        return self._ns

    def stand(self, seconds: float) -> None:
        self._ns += round(seconds * SECOND_NS)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """In a loop of this time, in which drivers live too."""
        with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            patch.setattr(driver, "now", self.now)
            patch.setattr(driver, "Pacer", lambda fire: _Pacer(self, fire))
            runner.run(work)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        super().__init__(_Jumps(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now() / SECOND_NS


class _Jumps(selectors.EpollSelector):
    """Nothing comes from outside, so whoever waits is at the end of his wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all wait, and nothing will ever happen"
        if timeout > 0:
            self._clock.stand(timeout + 1e-9)  # what rounding may leave
        return super().select(0)


class _Pacer:
    """lab.load.pacer.Pacer by the loop's timers, which in this time are exact."""

    def __init__(self, clock: Clock, fire: Callable[[], None]) -> None:
        self._clock, self._fire = clock, fire
        self._handle: asyncio.TimerHandle | None = None

    def set(self, deadline_ns: int) -> None:
        self.close()
        left_s = max(0, deadline_ns - self._clock.now()) / SECOND_NS
        self._handle = asyncio.get_running_loop().call_later(left_s, self._fire)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
