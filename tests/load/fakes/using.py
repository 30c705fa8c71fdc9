"""A target in an event loop, driven by a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from lab.load.targets import Generated, Target
from lab.measure.records import OK
from tests.waiting import until_async


@dataclass
class End:
    outcome: int
    detail: str | None
    arrived_ns: int
    generated: Generated | None


class Using:
    """`ask(n)` sends the n-th message as request n; `ends` are what the target has told."""

    def __init__(self, target: Target, messages: Sequence[Any], ends: dict[int, End]) -> None:
        self.target, self.messages, self.ends = target, messages, ends
        self.sent_ns: dict[int, int] = {}

    def ask(self, number: int) -> None:
        self.sent_ns[number] = time.perf_counter_ns()
        self.target.send(number, self.messages[number % len(self.messages)])

    async def until_read(self, number: int, chunks: int) -> None:
        """Until the target has read so many chunks of an answer that goes on."""
        running: Any = self.target

        def read() -> bool:
            answer = running._running[number][1] if hasattr(running, "_running") else running._answers[number]
            return len(answer.generated.chunk_ns) == chunks

        await until_async(read, f"{chunks} chunks of request {number}")

    async def until(self, *numbers: int) -> None:
        await until_async(lambda: set(numbers) <= set(self.ends))


def use(
    target_of: Callable[..., Target], url: str, requests: Sequence[Any], script: Callable[[Using], Awaitable[None]]
) -> Using:
    """Run `script` with an open target, and return what it used."""

    async def main() -> Using:
        ends: dict[int, End] = {}

        def done(
            number: int, outcome: int, detail: str | None, arrived_ns: int, generated: Generated | None = None
        ) -> None:
            assert number not in ends, "told twice"
            assert 0 <= time.perf_counter_ns() - arrived_ns < 60 * 10**9
            assert (detail is None) == (outcome == OK)
            ends[number] = End(outcome, detail, arrived_ns, generated)

        target = target_of(url, done)
        using = Using(target, target.prepare("llm", requests), ends)
        await target.open()
        try:
            async with asyncio.timeout(60):
                await script(using)
        finally:
            await target.close()
        return using

    return uvloop.run(main())
