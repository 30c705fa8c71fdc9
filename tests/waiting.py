"""Waiting for what a process, a server or a thread is about to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 60.0
"""So long that only a fault reaches it, whatever else the machine does. How fast a thing is, is not tested by this."""


def until(condition: Callable[[], T], what: str = "", limit_s: float = LIMIT_S) -> T:
    """The condition's first true value; an AssertionError when there is none."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain" + (f" for {what}" if what else "")
        time.sleep(0.01)
    return found


async def until_async(condition: Callable[[], T], what: str = "", limit_s: float = LIMIT_S) -> T:
    """`until`, while the event loop goes on."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain" + (f" for {what}" if what else "")
        await asyncio.sleep(0.001)
    return found


def timed(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, with the limit."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(**arguments)

        asyncio.run(limited())

    return run
