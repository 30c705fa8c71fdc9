"""Where requests go: one protocol, a target for each wire format.

A target tells how each request ended by calling `done`, not by returning from a coroutine: a task and a future a
request would cost as much as the request itself, and a closed loop can send its next request from inside the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from lab.measure.records import OUTCOMES

Done = Callable[[int, int, str | None, int], None]
"""done(number, outcome, detail, arrived_ns). `number` is the request's, `outcome` an index of records.OUTCOMES or
INVALID, `detail` None exactly when the outcome is OK, `arrived_ns` the perf_counter_ns at which the end was seen."""

INVALID = len(OUTCOMES)
"""In place of an outcome: the server says that the request itself is wrong (its shape, its type, no such model). As
the first answer of a block it means that the set-up is wrong, not that the server is failing."""

Tensors = dict[str, np.ndarray]
"""The inputs of one request by name, each with its batch dimension."""


class Target(Protocol):
    """A server that requests can be sent to. Built inside the running event loop with the `done` to call."""

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Any]:
        """The requests as messages that `send` takes, everything done that can be done before the clock starts."""

    async def open(self) -> None:
        """Connect, in advance. A server that cannot be reached is no error here: its requests are refused later."""

    def send(self, number: int, message: Any) -> None:
        """Send one prepared message now. `done` is called once for it, later or before this returns."""

    def cancel(self, number: int) -> None:
        """Give the request up; `done` is not called for it any more."""

    async def close(self) -> None: ...
