"""Where models come from and go to, and how one of them stands: what lab/serve/residency.py decides about."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, Protocol

from lab.spec import Store

Place = Literal["absent", "loading", "resident", "leaving", "unloading"]
"""Of a model. "leaving": it has to go, takes no new requests and finishes those it has."""


class Shelf(Protocol):
    """What does the work. `load`, `evict` and `unload` block and are called from a thread, one at a time; they raise
    LabError. An evicted model may be kept at hand, one that is unloaded is not; where one went, and where one that is
    loaded came from, they tell. `size_bytes` is what these models take together, as well as is known before and after
    they are loaded: it must be quick, and need not be the sum (models share pages)."""

    def load(self, name: str) -> Store: ...

    def evict(self, name: str) -> Store: ...

    def unload(self, name: str) -> None: ...

    def size_bytes(self, names: Collection[str]) -> int: ...


@dataclass
class Model:
    """How one model of a residency stands."""

    name: str
    place: Place = "absent"
    pinned: bool = False
    users: int = 0
    used: int = 0  # a number that grows with each use
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    bringing: asyncio.Task[None] | None = None
    broken: str = ""  # why its last load failed
    broken_until: float = 0.0

    def is_wanted(self) -> bool:
        return any(not waiter.done() for waiter in self.waiting)
