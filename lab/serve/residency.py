"""Which of many models are loaded when not all fit: a budget, least recently used out first, pinned ones never.

    residency = Residency(shelf, budget_bytes=600 * 2**20)
    async with residency.use("digits_3") as waited_ns:      # loaded before this line goes on, and until it is left
        …ask the model…

A request for a loaded model goes straight through (a hit). One for another waits until room is made and the model is
loaded (a miss): all who miss one model share one load, and swaps run one after the other in the order in which they
were first needed, so that two of them never evict each other's half-loaded model. A model in use is never unloaded:
one that has to go takes no new requests and goes when its last answer is sent. Whoever can't be served is refused by
name (Refused), with the numbers.

The Shelf does the work and knows the sizes; this file decides, and knows neither Triton nor memory. For one event loop:
a gateway calls it from its own, threads by `asyncio.run_coroutine_threadsafe`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any

from lab.errors import LabError
from lab.serve.eviction import MIB, Refused, victims
from lab.serve.shelf import Model, Place, Shelf
from lab.spec import Store


class Residency:
    """See the module. `wait_s` is the longest that a request waits for its model, `queue_limit` how many may wait in
    all, `retry_s` how long a model that failed to load is refused without another try (a broken model would else evict
    the others again and again). `on_event(kind, model, fields)` hears of each load and unload; `counts` has hits,
    misses, loads, evictions, and refusals by reason."""

    def __init__(
        self,
        shelf: Shelf,
        budget_bytes: int,
        models: Iterable[str] = (),
        *,
        pinned: Collection[str] = (),
        wait_s: float = 30.0,
        queue_limit: int = 1024,
        retry_s: float = 5.0,
        on_event: Callable[[str, str, dict[str, Any]], None] = lambda kind, model, fields: None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.counts: Counter[str] = Counter()
        self._shelf = shelf
        self._wait_s, self._queue_limit, self._retry_s = wait_s, queue_limit, retry_s
        self._on_event = on_event
        self._models: dict[str, Model] = {}
        self._uses = itertools.count(1)
        self._waiting = 0
        self._turn = asyncio.Lock()  # one swap at a time, first come first served
        self._news = asyncio.Event()  # an answer was sent, or somebody gave up waiting
        self._closed = False
        for name in models:
            self.add(name)
        for name in pinned:
            self.pin(name)

    # --- what there is ------------------------------------------------------------------------------------------

    def add(self, name: str, *, loaded: bool = False) -> None:
        """A model that may be asked for; `loaded`: it is there already."""
        self._models.setdefault(name, Model(name))
        if loaded:
            self._models[name].place = "resident"

    def pin(self, name: str, pinned: bool = True) -> None:
        """A pinned model is never evicted; Refused when it and the other pinned ones do not fit together."""
        model = self._known(name)
        if pinned:
            others = [m.name for m in self._models.values() if m.pinned]
            victims(name, others, others, self._shelf.size_bytes, self.budget_bytes)
        model.pinned = pinned

    def resident(self) -> list[str]:
        """The loaded models, least recently used first; one that answers now is in use now."""
        held = [m for m in self._models.values() if m.place not in ("absent", "loading")]
        return [m.name for m in sorted(held, key=lambda m: (m.users > 0, m.used))]

    def places(self) -> dict[str, Place]:
        return {name: model.place for name, model in self._models.items()}

    # --- a request ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[int]:
        """The model is loaded from here until the block is left. Gives the nanoseconds that were waited, 0 for a hit.
        Refused when it can't be had."""
        waited_ns = await self.acquire(name)
        try:
            yield waited_ns
        finally:
            self.release(name)

    async def acquire(self, name: str) -> int:
        """The first half of `use`, for who can't use a block; `release` is the other."""
        if self.hit(name):
            return 0
        began = time.perf_counter_ns()
        try:
            await self._miss(self._known(name))
        except Refused as refusal:
            self.counts[refusal.reason] += 1
            raise
        self.counts["misses"] += 1
        return time.perf_counter_ns() - began

    def hit(self, name: str) -> bool:
        """Acquire the model if it is loaded; False, and nothing is held, when it would have to be waited for."""
        model = self._models.get(name)
        if model is None or model.place != "resident":
            return False
        model.users += 1
        model.used = next(self._uses)
        self.counts["hits"] += 1
        return True

    def release(self, name: str) -> None:
        model = self._models[name]
        model.users -= 1
        model.used = next(self._uses)
        if not model.users:
            self._news.set()

    async def _miss(self, model: Model) -> None:
        if self._closed:
            raise Refused("closed", "the server is being stopped")
        if self._waiting >= self._queue_limit:
            raise Refused("queue_full", f"{self._waiting} requests wait for models already, the most that may")
        loop = asyncio.get_running_loop()
        if model.broken and loop.time() < model.broken_until:
            raise Refused("failed", model.broken)
        waiter: asyncio.Future[None] = loop.create_future()
        model.waiting.append(waiter)
        self._waiting += 1
        if model.bringing is None:
            model.bringing = loop.create_task(self._bring(model))
        limit = loop.call_later(self._wait_s, self._too_late, model, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(model.name)  # it was granted in the same moment
            raise
        finally:
            limit.cancel()
            self._waiting -= 1
            if waiter in model.waiting:
                model.waiting.remove(waiter)
            self._news.set()

    def _too_late(self, model: Model, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            text = f"model {model.name} ({model.place}) could not be had within {self._wait_s:g} s; {self._load()}"
            waiter.set_exception(Refused("too_late", text))

    def _load(self) -> str:
        wanted = sum(1 for m in self._models.values() if m.waiting)
        return f"{self._waiting} requests wait for {wanted} models, {len(self.resident())} are loaded"

    # --- swaps --------------------------------------------------------------------------------------------------

    async def _bring(self, model: Model) -> None:
        """Load `model` for all who wait for it. One such task a model (single flight), one at work at a time."""
        try:
            async with self._turn:
                if model.place == "absent" and model.is_wanted() and not self._closed:
                    await self._swap_in(model)
                refusal = Refused("closed", "the server is being stopped") if self._closed else None
        except LabError as error:
            refusal = error if isinstance(error, Refused) else Refused("failed", str(error))
        except BaseException as error:
            refusal = Refused("failed", f"model {model.name}: {type(error).__name__} {error}")
            raise
        finally:
            model.bringing = None
            self._settle(model, refusal)

    def _settle(self, model: Model, refusal: Refused | None) -> None:
        """Let everybody who waits for `model` go on, or tell all of them why not."""
        waiting, model.waiting = model.waiting, []
        for waiter in waiting:
            if waiter.done():
                continue
            if model.place == "resident":
                model.users += 1
                model.used = next(self._uses)
                waiter.set_result(None)
            elif refusal is not None:
                waiter.set_exception(refusal)
            else:  # came while it was leaving again: once more
                model.waiting.append(waiter)
        if model.waiting and model.bringing is None:
            model.bringing = asyncio.get_running_loop().create_task(self._bring(model))

    async def _swap_in(self, model: Model) -> None:
        size, budget = self._shelf.size_bytes, self.budget_bytes
        for name in victims(model.name, self.resident(), self._pinned(), size, budget):
            if not await self._evict(self._models[name], "evicted", model.is_wanted):
                return
        model.place = "loading"
        began = time.perf_counter_ns()
        try:
            source = await asyncio.to_thread(self._shelf.load, model.name)
        except LabError as error:
            model.broken = str(error)
            model.broken_until = asyncio.get_running_loop().time() + self._retry_s
            self.counts["load_failures"] += 1
            raise Refused("failed", model.broken) from None
        finally:
            model.place = "absent"
        self.counts["loads"] += 1
        self._tell("loaded", model, began, source=source)
        try:  # it may have turned out larger than was thought
            out = victims(model.name, self.resident(), self._pinned(), size, self.budget_bytes)
        except Refused:
            await self._unload(model, "too large")
            raise
        model.place, model.broken = "resident", ""
        self._settle(model, None)
        for name in out:
            await self._evict(self._models[name], "evicted")

    async def _evict(self, model: Model, why: str, still_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Unload `model` once its last answer is sent; False, and it stays, when that is no longer wanted."""
        model.place = "leaving"
        while model.users and still_wanted() and not self._closed:
            self._news.clear()
            await self._news.wait()
        if not still_wanted() or (self._closed and model.users):
            model.place = "resident"
            self._settle(model, None)
            return False
        self.counts["evictions"] += why == "evicted"
        await self._unload(model, why)
        return True

    async def _unload(self, model: Model, why: str) -> None:
        model.place = "unloading"
        began = time.perf_counter_ns()
        try:
            leave: Callable[[str], Store | None]
            leave = self._shelf.evict if why in ("evicted", "budget") else self._shelf.unload
            to = await asyncio.to_thread(leave, model.name) or "disk"
        except BaseException:
            model.place = "resident"  # as far as anybody knows
            raise
        model.place = "absent"
        self._tell("unloaded", model, began, why=why, to=to)

    def _pinned(self) -> list[str]:
        return [m.name for m in self._models.values() if m.pinned]

    def _tell(self, kind: str, model: Model, began: int, **fields: Any) -> None:
        self._on_event(kind, model.name, {"seconds": (time.perf_counter_ns() - began) / 1e9, **fields})

    def _known(self, name: str) -> Model:
        if name not in self._models:
            raise Refused("unknown", f"model {name!r}: there is none; allowed: {', '.join(sorted(self._models))}")
        return self._models[name]

    # --- changes ------------------------------------------------------------------------------------------------

    async def unload(self, name: str, why: str = "asked") -> None:
        """Unload it now, or once its last answer is sent. Who asks for it later loads it again."""
        model = self._known(name)
        if model.pinned and why == "asked":
            raise Refused("pinned", f"model {name} is pinned; unpin it first")
        async with self._turn:
            if model.place == "resident":
                await self._evict(model, why)

    async def broken(self, name: str) -> None:
        """Its process no longer serves: unload what is left of it, so that the next request loads it anew."""
        await self.unload(name, "broken")

    async def set_budget(self, budget_bytes: int) -> None:
        """From now on; evicts what no longer fits and returns when the rest does. Refused, and nothing changes, when
        the pinned models alone take more."""
        pinned = self._pinned()
        if pinned and (taken := self._shelf.size_bytes(pinned)) > budget_bytes:
            raise Refused(
                "too_large",
                f"budget {budget_bytes / MIB:.0f} MiB: the pinned {', '.join(pinned)} take {taken / MIB:.0f} MiB; "
                "unpin some, or give more",
            )
        self.budget_bytes = budget_bytes
        async with self._turn:
            while self._shelf.size_bytes(self.resident()) > self.budget_bytes:
                free = [name for name in self.resident() if name not in self._pinned()]
                if not free or not await self._evict(self._models[free[0]], "budget"):
                    return

    async def close(self) -> None:
        """Refuse all who wait and all who come; returns when no swap is under way. Loaded models stay loaded."""
        self._closed = True
        closed = Refused("closed", "the server is being stopped")
        for model in self._models.values():
            for waiter in model.waiting:
                if not waiter.done():
                    waiter.set_exception(closed)
        self._news.set()
        async with self._turn:
            pass
