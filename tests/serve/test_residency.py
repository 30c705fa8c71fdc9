"""Loads, evictions and who waits for them, on a shelf of the tests' own: no Triton, no memory, true sizes."""

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.errors import ModelError
from lab.serve.eviction import MIB, Refused
from lab.serve.residency import Residency
from tests.waiting import LIMIT_S, until_async


class Shelf:
    """Models of stated sizes; notes what is done and checks that nobody pulls a model away from under its users."""

    def __init__(self, sizes, load_s=0.002, broken=()):
        self.sizes = {name: size * MIB for name, size in sizes.items()}
        self.load_s = load_s
        self.broken = set(broken)
        self.loaded = set()
        self.in_use = dict.fromkeys(sizes, 0)
        self.calls = []
        self.most_bytes = 0
        self.busy = threading.Lock()

    def load(self, name):
        assert self.busy.acquire(blocking=False), "two swaps at a time"
        try:
            assert name not in self.loaded
            self.calls.append(("load", name))
            self.most_bytes = max(self.most_bytes, self.size_bytes([*self.loaded, name]))
            time.sleep(self.load_s)
            if name in self.broken:
                raise ModelError(f"model {name} did not load: no weights")
            self.loaded.add(name)
        finally:
            self.busy.release()

    def unload(self, name):
        assert self.busy.acquire(blocking=False), "two swaps at a time"
        try:
            assert name in self.loaded
            assert not self.in_use[name], f"{name} was unloaded under {self.in_use[name]} users"
            self.calls.append(("unload", name))
            self.loaded.remove(name)
            time.sleep(self.load_s / 2)
        finally:
            self.busy.release()

    def evict(self, name):
        self.unload(name)
        return "disk"

    def size_bytes(self, names):
        return sum(self.sizes[name] for name in set(names))


async def ask(residency, shelf, name, seconds=0.0):
    """One request: "ok" when the model answered, else the name of the refusal."""
    try:
        async with residency.use(name):
            assert name in shelf.loaded, f"{name} was asked while it was not loaded"
            shelf.in_use[name] += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                shelf.in_use[name] -= 1
            return "ok"
    except Refused as refusal:
        return refusal.reason


def residency_of(shelf, budget, **options):
    return Residency(shelf, budget * MIB, shelf.sizes, **options)


def test_a_hit_waits_for_nothing_and_a_miss_for_its_load():
    async def story():
        shelf = Shelf({"a": 10})
        residency = residency_of(shelf, 10)
        async with residency.use("a") as first_ns:
            pass
        async with residency.use("a") as second_ns:
            pass
        assert first_ns >= 2e6
        assert second_ns == 0
        assert (residency.counts["hits"], residency.counts["misses"], residency.counts["loads"]) == (1, 1, 1)

    asyncio.run(story())


def test_a_hundred_who_miss_one_model_share_one_load():
    async def story():
        shelf = Shelf({"a": 10, "b": 10})
        residency = residency_of(shelf, 10)
        assert await asyncio.gather(*(ask(residency, shelf, "a", 0.001) for _ in range(100))) == ["ok"] * 100
        assert shelf.calls == [("load", "a")]

    asyncio.run(story())


def test_concurrent_misses_of_two_models_that_do_not_fit_together_take_turns():
    """50 for a and 50 for b arrive mixed: each model is loaded once, and all of its 50 are answered by that load."""

    async def story():
        shelf = Shelf({"a": 10, "b": 10})
        residency = residency_of(shelf, 10)
        asked = [ask(residency, shelf, "ab"[i % 2], 0.001) for i in range(100)]
        assert set(await asyncio.gather(*asked)) == {"ok"}
        assert shelf.calls == [("load", "a"), ("unload", "a"), ("load", "b")]

    asyncio.run(story())


def test_the_least_recently_used_model_makes_room_and_a_pinned_one_never():
    async def story():
        shelf = Shelf(dict.fromkeys("abcd", 10))
        residency = residency_of(shelf, 30, pinned=["a"])
        for name in "abcb":
            assert await ask(residency, shelf, name) == "ok"
        assert residency.resident() == ["a", "c", "b"]
        assert await ask(residency, shelf, "d") == "ok"
        assert residency.resident() == ["a", "b", "d"]
        with pytest.raises(Refused, match="model a is pinned"):
            await residency.unload("a")

    asyncio.run(story())


def test_a_model_in_use_goes_when_its_last_answer_is_sent():
    async def story():
        shelf = Shelf({"a": 10, "b": 10})
        residency = residency_of(shelf, 10)
        long = asyncio.create_task(ask(residency, shelf, "a", 0.05))
        await until_async(lambda: shelf.in_use["a"])
        miss = asyncio.create_task(ask(residency, shelf, "b"))
        await until_async(lambda: residency.places() == {"a": "leaving", "b": "absent"})
        late = asyncio.create_task(ask(residency, shelf, "a"))  # behind b: a takes no new requests
        assert [await task for task in (long, miss, late)] == ["ok"] * 3
        assert [call for call in shelf.calls if call[0] == "load"] == [("load", "a"), ("load", "b"), ("load", "a")]

    asyncio.run(story())


def test_a_request_waits_no_longer_than_it_may_and_the_model_that_had_to_go_stays():
    async def story():
        shelf = Shelf({"a": 10, "b": 10})
        residency = residency_of(shelf, 10, wait_s=0.05)
        await residency.acquire("a")
        with pytest.raises(Refused, match=r"model b \(absent\) could not be had within 0.05 s") as error:
            await residency.acquire("b")
        assert error.value.reason == "too_late"
        await until_async(lambda: residency.places()["a"] == "resident")  # nobody wants b any more
        assert await ask(residency, shelf, "a") == "ok"
        residency.release("a")
        assert shelf.calls == [("load", "a")]

    asyncio.run(story())


def test_what_is_too_large_or_unknown_or_one_too_many_is_refused_by_name():
    async def story():
        shelf = Shelf({"a": 10, "big": 50})
        residency = residency_of(shelf, 40, queue_limit=2)
        with pytest.raises(Refused, match="model big takes 50 MiB; the budget is 40 MiB"):
            await residency.acquire("big")
        with pytest.raises(Refused, match="model 'c': there is none; allowed: a, big"):
            await residency.acquire("c")
        answers = await asyncio.gather(*(ask(residency, shelf, "a") for _ in range(5)))
        assert sorted(answers) == ["ok", "ok", "queue_full", "queue_full", "queue_full"]
        assert residency.counts["queue_full"] == 3

    asyncio.run(story())


def test_a_model_that_turns_out_too_large_is_unloaded_and_refused_and_not_tried_again():
    class Surprise(Shelf):
        def size_bytes(self, names):
            grown = 90 * MIB if ("load", "a") in self.calls and "a" in names else 0
            return super().size_bytes(names) + grown

    async def story():
        shelf = Surprise({"a": 10, "b": 10})
        residency = residency_of(shelf, 50)
        assert await ask(residency, shelf, "b") == "ok"
        assert await ask(residency, shelf, "a") == "too_large"
        assert await ask(residency, shelf, "a") == "too_large"
        assert shelf.calls == [("load", "b"), ("load", "a"), ("unload", "a")]
        assert residency.resident() == ["b"]

    asyncio.run(story())


def test_a_model_that_does_not_load_is_refused_with_its_reason_and_does_not_evict_again_at_once():
    async def story():
        shelf = Shelf({"a": 10, "bad": 10}, broken=["bad"])
        residency = residency_of(shelf, 10, retry_s=60)
        with pytest.raises(Refused, match="model bad did not load: no weights"):
            await residency.acquire("bad")
        assert await ask(residency, shelf, "a") == "ok"
        assert await ask(residency, shelf, "bad") == "failed"
        assert shelf.loaded == {"a"}  # refused without a try
        shelf.broken.clear()
        residency._models["bad"].broken_until -= 60  # a minute later
        assert await ask(residency, shelf, "bad") == "ok"

    asyncio.run(story())


def test_a_smaller_budget_evicts_and_one_below_the_pinned_is_refused():
    async def story():
        shelf = Shelf(dict.fromkeys("abc", 10))
        residency = residency_of(shelf, 30, pinned=["a"])
        for name in "abc":
            await ask(residency, shelf, name)
        await residency.set_budget(20 * MIB)
        assert residency.resident() == ["a", "c"]
        with pytest.raises(Refused, match="budget 5 MiB: the pinned a take 10 MiB"):
            await residency.set_budget(5 * MIB)
        with pytest.raises(Refused, match="c takes 10 MiB and the pinned a 10 MiB, 20 MiB together; the budget is 15"):
            await residency.set_budget(15 * MIB)
            residency.pin("c")
        assert residency.budget_bytes == 15 * MIB

    asyncio.run(story())


def test_a_model_whose_process_died_is_loaded_anew():
    async def story():
        shelf = Shelf({"a": 10})
        residency = residency_of(shelf, 10)
        await ask(residency, shelf, "a")
        await residency.broken("a")
        assert await ask(residency, shelf, "a") == "ok"
        assert shelf.calls == [("load", "a"), ("unload", "a"), ("load", "a")]

    asyncio.run(story())


def test_a_client_that_goes_away_holds_nothing():
    async def story():
        shelf = Shelf({"a": 10, "b": 10}, load_s=0.02)
        residency = residency_of(shelf, 10)
        gone = asyncio.create_task(ask(residency, shelf, "a"))
        await until_async(lambda: shelf.calls == [("load", "a")])
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await ask(residency, shelf, "b") == "ok"
        assert residency.resident() == ["b"]

    asyncio.run(story())


def test_closing_refuses_who_waits_and_who_comes():
    async def story():
        shelf = Shelf({"a": 10, "b": 10}, load_s=0.02)
        residency = residency_of(shelf, 10)
        waits = asyncio.create_task(ask(residency, shelf, "a"))
        await until_async(lambda: shelf.calls == [("load", "a")])
        await residency.close()
        assert await waits == "closed"
        assert await ask(residency, shelf, "b") == "closed"

    asyncio.run(story())


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_operations_at_random_by_eight_clients(seed):
    """Threads that use, unload, pin and change the budget. Nothing deadlocks, no answer is wrong, none is lost, the
    budget holds, no model goes under its users (the shelf looks), and at the end the books agree with the shelf."""
    sizes = {"a": 10, "b": 10, "c": 20, "d": 30, "e": 5, "f": 15, "big": 500, "bad": 10}
    shelf = Shelf(sizes, load_s=0.001, broken=["bad"])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    residency = residency_of(shelf, 60, wait_s=LIMIT_S, retry_s=0.01)

    def client(number):
        pick = random.Random(1000 * seed + number)
        return [do(pick) for _ in range(125)]

    def do(pick):
        name = pick.choice(sorted(sizes))
        kind = pick.choices(["use", "unload", "pin", "unpin", "budget"], [80, 8, 3, 5, 4])[0]
        if kind == "pin":
            call = wrapped(lambda: residency.pin(name))
        elif kind == "unpin":
            call = wrapped(lambda: residency.pin(name, False))
        elif kind == "unload":
            call = changed(residency.unload(name))
        elif kind == "budget":
            call = changed(residency.set_budget(pick.choice([40, 50, 60]) * MIB))
        else:
            call = ask(residency, shelf, name, pick.choice([0, 0, 0.001, 0.003]))
        return asyncio.run_coroutine_threadsafe(call, loop).result(timeout=2 * LIMIT_S)

    async def wrapped(change):
        return await changed(asyncio.to_thread(lambda: None), change)

    async def changed(awaitable, then=lambda: None):
        try:
            await awaitable
            then()
        except Refused as refusal:
            return refusal.reason
        return "ok"

    with ThreadPoolExecutor(8) as clients:
        endings = [ending for ending in clients.map(client, range(8)) for ending in ending]
    assert len(endings) == 1000
    assert set(endings) <= {"ok", "too_large", "failed", "pinned", "too_late"}
    assert endings.count("ok") > 500
    assert endings.count("too_late") == 0
    assert shelf.most_bytes <= 60 * MIB
    asyncio.run_coroutine_threadsafe(residency.close(), loop).result(timeout=LIMIT_S)
    assert {name for name, place in residency.places().items() if place == "resident"} == shelf.loaded
    assert set(residency.places().values()) <= {"resident", "absent"}
    assert residency.counts["loads"] == sum(1 for kind, name in shelf.calls if kind == "load" and name != "bad")
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LIMIT_S)
    loop.close()
