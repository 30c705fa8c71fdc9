"""The runner that scales to zero: on workers whose every move the test makes, and behind its proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lab.serve.cold.line import Failed
from lab.serve.eviction import Refused
from lab.serve.serverless import Runner
from lab.serve.serverless_proxy import PassedCold, ServerlessProxy
from lab.spec import Serverless, Start
from tests.waiting import timed, until_async

MODEL = "null"


class Worker:
    """One that is up until the test, or the runner, ends it."""

    def __init__(self, port: int = 0) -> None:
        self.socket, self._other = socket.socketpair()
        self.pid, self.port, self.stages, self.stopped = 0, port, [SimpleNamespace(name="process", seconds=0.1)], False

    def die(self) -> None:
        self._other.close()

    def why_ended(self) -> str:
        return "ended (signal 9)"

    def stop(self) -> None:
        self.stopped = True
        self.socket.close()
        self._other.close()


class Starter:
    """Starts one once the test lets it (`go`), or fails with what the test says."""

    def __init__(self, *, weight_bytes: int = 10, port: int = 0) -> None:
        self.weight_bytes, self.port = weight_bytes, port
        self.go = threading.Event()
        self.go.set()
        self.fails: Failed | None = None
        self.workers: list[Worker] = []
        self.asked = 0

    def start(self, limit_s: float) -> Worker:
        self.asked += 1
        assert self.go.wait(60)
        if self.fails is not None:
            raise self.fails
        self.workers.append(Worker(self.port))
        return self.workers[-1]


def rules(**changes: Any) -> Serverless:
    return Serverless(**{"idle_s": 60.0, "concurrency": 2, **changes})


class Events(list):
    def __call__(self, kind: str, fields: dict[str, Any]) -> None:
        self.append((kind, fields))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for own, fields in self if own == kind]


@timed
async def test_a_request_waits_for_a_start_and_those_after_it_do_not() -> None:
    events = Events()
    runner = Runner(Starter(), rules(), on_event=events)
    first = await runner.acquire()
    assert first.cold and first.waited_ns > 0
    second = await runner.acquire()
    assert second.slot is first.slot and not second.cold and second.waited_ns == 0
    assert [kind for kind, _ in events] == ["worker_starting", "worker_ready"]
    await runner.close()


@timed
async def test_an_idle_worker_ends_and_a_request_that_is_under_way_keeps_it() -> None:
    """The idle timeout passes during a request: the worker stays, and ends an idle timeout after it."""
    starter, events = Starter(), Events()
    runner = Runner(starter, rules(idle_s=0.05), on_event=events)
    had = await runner.acquire()
    await asyncio.sleep(0.15)  # three idle timeouts
    assert had.slot.state == "ready" and events.of("worker_ended") == []
    runner.release(had.slot)
    await until_async(lambda: bool(events.of("worker_ended")))
    assert events.of("worker_ended")[0]["why"] == "idle" and events.of("worker_ended")[0]["answered"] == 1
    await until_async(lambda: starter.workers[0].stopped)
    assert (await runner.acquire()).cold and starter.asked == 2
    await runner.close()


@timed
async def test_a_request_between_two_idle_timeouts_begins_another_one() -> None:
    events = Events()
    runner = Runner(Starter(), rules(idle_s=0.6), on_event=events)
    loop = asyncio.get_running_loop()
    had = await runner.acquire()
    while had.cold:  # again, where this machine stood still for an idle timeout
        runner.release(had.slot)
        await asyncio.sleep(0.1)
        had = await runner.acquire()
    events.clear()
    runner.release(had.slot)
    released = loop.time()
    await until_async(lambda: bool(events.of("worker_ended")))
    assert loop.time() - released >= 0.59  # the first timeout would have ended it 0.5 s after
    await runner.close()


@timed
async def test_as_many_workers_as_wait_up_to_the_most_and_first_come_first_served() -> None:
    starter = Starter()
    starter.go.clear()
    runner = Runner(starter, rules(concurrency=1, max_workers=2))
    order: list[int] = []

    async def ask(number: int) -> None:
        had = await runner.acquire()
        order.append(number)
        runner.release(had.slot)

    asked = []
    for number in range(4):
        asked.append(asyncio.create_task(ask(number)))
        await asyncio.sleep(0)
    await until_async(lambda: starter.asked == 2)
    starter.go.set()
    await asyncio.gather(*asked)
    assert order == [0, 1, 2, 3] and starter.asked == 2
    await runner.close()


@timed
async def test_requests_of_one_moment_start_no_more_workers_than_there_may_be() -> None:
    starter = Starter()
    starter.go.clear()
    runner = Runner(starter, rules(concurrency=1, max_workers=2))
    asked = [asyncio.create_task(runner.acquire()) for _ in range(5)]
    await until_async(lambda: starter.asked == 2)
    assert len(runner.workers()) == 2
    starter.go.set()
    had = [await one for one in asked[:2]]
    for one, waiting in zip(had, asked[2:], strict=False):
        runner.release(one.slot)
        await waiting
    asked[4].cancel()
    await runner.close()
    assert starter.asked == 2


@timed
async def test_one_that_is_kept_warm_is_started_anew_when_it_dies_and_must_come_up() -> None:
    starter = Starter()
    runner = Runner(starter, rules(keep_warm=1))
    await runner.open()
    starter.workers[0].die()
    await until_async(lambda: len(starter.workers) == 2 and runner.workers()[0].state == "ready")
    assert runner.workers()[0].kept and not (await runner.acquire()).cold
    await runner.close()
    starter.fails = Failed("null did not come up: MemoryError", kind="memory")
    with pytest.raises(Refused, match="killed: memory limit") as caught:
        await Runner(starter, rules(keep_warm=1)).open()
    assert caught.value.reason == "too_large"


@timed
async def test_kept_warm_nobody_waits_and_it_never_ends() -> None:
    events = Events()
    runner = Runner(Starter(), rules(idle_s=0.02, keep_warm=1), on_event=events)
    await runner.open()
    had = await runner.acquire()
    assert not had.cold
    runner.release(had.slot)
    await asyncio.sleep(0.1)
    assert len(runner.workers()) == 1 and events.of("worker_ended") == []
    await runner.scale_to_zero()
    assert len(runner.workers()) == 1
    await runner.close()
    assert runner.workers() == []


@timed
async def test_a_memory_limit_below_the_weights_is_refused_before_anything_starts() -> None:
    starter = Starter(weight_bytes=1_000)
    runner = Runner(starter, rules(memory_limit_bytes=999))
    with pytest.raises(Refused, match="refused: its weights are 1,000 bytes, and a worker may take 999") as caught:
        await runner.acquire()
    assert caught.value.reason == "too_large" and starter.asked == 0
    mapped = Start(page_cache="warm", mapped_weights=True)
    assert Runner(starter, rules(memory_limit_bytes=999, start=mapped)).refusal == ""
    assert Runner(starter, rules(memory_limit_bytes=1_000)).refusal == ""


@timed
async def test_a_worker_that_takes_more_than_its_limit_while_it_starts_has_a_clear_state() -> None:
    starter, events = Starter(), Events()
    starter.fails = Failed("null did not come up: MemoryError", kind="memory")
    runner = Runner(starter, rules(memory_limit_bytes=100), on_event=events)
    with pytest.raises(Refused, match="killed: memory limit: null did not come up") as caught:
        await runner.acquire()
    assert caught.value.reason == "too_large"
    assert events.of("worker_failed")[0]["why"] == "memory" and runner.workers() == []


@timed
async def test_a_worker_killed_while_cold_tells_who_waited_and_the_next_request_starts_another() -> None:
    starter, events = Starter(), Events()
    starter.fails = Failed("null did not come up: it ended (signal 9), after process")
    runner = Runner(starter, rules(), on_event=events)
    asked = [asyncio.create_task(runner.acquire()) for _ in range(2)]
    for one in asked:
        with pytest.raises(Refused, match=r"failed: .*signal 9"):
            await one
    starter.fails = None
    assert (await runner.acquire()).cold
    await runner.close()


@timed
async def test_a_worker_that_does_not_come_up_costs_nobody_whom_another_can_serve() -> None:
    starter, events = Starter(), Events()
    runner = Runner(starter, rules(concurrency=1, max_workers=2), on_event=events)
    first = await runner.acquire()
    starter.fails = Failed("null did not come up: MemoryError", kind="memory")
    second = asyncio.create_task(runner.acquire())
    await until_async(lambda: bool(events.of("worker_failed")))
    assert not second.done()
    runner.release(first.slot)
    had = await second
    assert had.slot is first.slot and not had.cold
    third = asyncio.create_task(runner.acquire())
    await until_async(lambda: len(events.of("worker_failed")) == 2)
    await runner.scale_to_zero()
    with pytest.raises(Refused, match="scaled to zero"):
        await third
    await runner.close()


@timed
async def test_a_worker_that_dies_while_it_answers_is_known_and_replaced() -> None:
    starter, events = Starter(), Events()
    runner = Runner(starter, rules(), on_event=events)
    had = await runner.acquire()
    starter.workers[0].die()
    await until_async(lambda: had.slot.state == "ended")
    assert events.of("worker_ended")[0]["why"] == "killed: ended (signal 9)"
    runner.release(had.slot)
    assert (await runner.acquire()).slot is not had.slot
    await runner.close()


@timed
async def test_who_gives_up_waiting_takes_no_place() -> None:
    starter = Starter()
    starter.go.clear()
    runner = Runner(starter, rules(concurrency=1))
    gone, stays = asyncio.create_task(runner.acquire()), asyncio.create_task(runner.acquire())
    await asyncio.sleep(0)
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    starter.go.set()
    assert (await stays).slot.busy == 1
    await runner.close()


@timed
async def test_a_queue_has_a_limit_and_closing_refuses_who_waits() -> None:
    starter = Starter()
    starter.go.clear()
    runner = Runner(starter, rules(queue_limit=1))
    waits = asyncio.create_task(runner.acquire())
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="1 requests wait already; allowed: 1"):
        await runner.acquire()
    closing = asyncio.create_task(runner.close())
    with pytest.raises(Refused, match="closing"):
        await waits
    starter.go.set()
    await closing
    assert starter.workers[0].stopped


# --- behind the proxy -----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def behind(starter: Starter, how: Serverless, answer: Callable[[Any], Awaitable[None]]) -> Any:
    """(port, what passed) of a proxy whose workers answer with `answer(writer)`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        writer.close()

    upstream = await asyncio.start_server(serve, "127.0.0.1", 0)
    starter.port = upstream.sockets[0].getsockname()[1]
    runner, passed = Runner(starter, how), []
    proxy = ServerlessProxy(runner, MODEL, on_request=passed.append)
    try:
        yield await proxy.start(), passed
    finally:
        await proxy.close()
        await runner.close()
        upstream.close()


async def ask(port: int, path: str = f"/v2/models/{MODEL}/infer", number: int = 7) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nLab-Request: {number}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    writer.write(head.encode())
    said = await reader.read()
    writer.close()
    return said


async def whole(writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@timed
async def test_an_answer_passes_as_it_is_and_the_request_is_told_with_its_wait() -> None:
    async with behind(Starter(), rules(), whole) as (port, passed):
        assert (await ask(port)).endswith(b"\r\n\r\nok")
        assert (await ask(port, number=8)).endswith(b"ok")
    first, second = passed
    assert isinstance(first, PassedCold) and first.cold and first.number == 7 and first.waited_ns > 0
    assert not second.cold and second.waited_ns == 0 and second.refused is None


@timed
async def test_chunks_pass_and_another_model_is_not_there() -> None:
    async def chunks(writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")

    async with behind(Starter(), rules(), chunks) as (port, _):
        assert b"2\r\nhi\r\n0\r\n\r\n" in await ask(port, f"/v2/models/{MODEL}/generate_stream")
        assert b"404 Not Found" in await ask(port, "/v2/models/other/infer")


@timed
async def test_refusals_are_answers_with_a_status() -> None:
    async with behind(Starter(weight_bytes=10), rules(memory_limit_bytes=9), whole) as (port, passed):
        said = await ask(port)
        assert b"507 Insufficient Storage" in said and b"refused: its weights are 10 bytes" in said
        assert passed[0].refused == "too_large" and not passed[0].cold


@timed
async def test_a_worker_that_hangs_up_before_its_answer_is_a_refusal_and_no_empty_answer() -> None:
    async def nothing(writer: Any) -> None:
        pass

    async with behind(Starter(), rules(), nothing) as (port, _):
        said = await ask(port)
    assert b"503 Service Unavailable" in said and b"the worker ended while it answered" in said
