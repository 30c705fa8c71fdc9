"""One worker's share of a block against a target in the same loop, whose answers and times the test sets.

All of it happens in a time of its own (fakes/clock.py), so whatever else the machine does, each moment is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.load import timetable
from lab.load.driver import ClosedLoop, Driver, OpenLoop
from lab.load.recorder import Recorder
from lab.load.schedule import CHUNK, arrivals, chunks
from lab.load.targets import INVALID
from lab.measure.records import CANCELLED, ERROR, OK, REFUSED, REQUESTS, TIMEOUT
from lab.spec import Constant, Poisson
from lab.stream import read_stream
from tests.load.fakes.clock import Clock
from tests.waiting import until_async

MS = 1_000_000
GRACE_S = 0.02
"""What a block may last beyond its duration and its timeout: timers know milliseconds."""


class ScriptedTarget:
    """Answers each request after `seconds`, `places` at a time; None: never. `outcome(number)` says how."""

    def __init__(
        self, seconds: float | None, *, places: int = 10**9, outcome: Callable[[int], int] = lambda number: OK
    ) -> None:
        self.seconds, self.places, self.outcome = seconds, places, outcome
        self.done: Callable[[int, int, str | None, int], None]
        self.clock: Clock
        self.sent: list[tuple[int, Any]] = []
        self.cancelled: list[int] = []
        self.at_work: dict[int, asyncio.TimerHandle | None] = {}
        self.queue: list[int] = []
        self.peak = 0

    def send(self, number: int, message: Any) -> None:
        self.sent.append((number, message))
        self.queue.append(number)
        self._serve()
        self.peak = max(self.peak, len(self.at_work) + len(self.queue))

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        handle = self.at_work.pop(number, None)
        if handle is not None:
            handle.cancel()

    def _serve(self) -> None:
        while self.queue and len(self.at_work) < self.places:
            number = self.queue.pop(0)
            loop = asyncio.get_running_loop()
            self.at_work[number] = None if self.seconds is None else loop.call_later(self.seconds, self._end, number)

    def _end(self, number: int) -> None:
        del self.at_work[number]
        outcome = self.outcome(number)
        self._serve()
        self.done(number, outcome, None if outcome == OK else "because", self.clock.now())


class Block:
    """A driver run to its end: its rows sorted by request, and what the target saw."""

    def __init__(self, tmp_path: Path, make: Callable[..., Driver], target: ScriptedTarget, **parameters: Any) -> None:
        meanwhile = parameters.pop("meanwhile", None)
        parameters = {"duration_s": 0.2, "timeout_s": 5.0, "messages": list("abcdefgh"), **parameters}
        recorder = Recorder(tmp_path / "requests.arrows")
        target.clock = clock = Clock()

        async def main() -> None:
            self.driver = driver = make(recorder=recorder, **parameters)
            target.done = driver.done
            self.start_ns = clock.now() + 10 * MS
            driver.start(target, self.start_ns)
            task = asyncio.ensure_future(meanwhile(driver, self.start_ns)) if meanwhile else None
            await asyncio.wait_for(driver.over, 60)
            self.over_ns = clock.now()
            if task:
                await task

        clock.run(main())
        recorder.close()
        table = read_stream(tmp_path / "requests.arrows", REQUESTS).sort_by("request")
        self.request = table["request"].to_numpy()
        self.due_ms = (table["due_ns"].to_numpy() - self.start_ns) / MS
        self.sent = table["sent_ns"].is_valid().to_numpy()
        self.latency_ms = (table["done_ns"].to_numpy() - table["due_ns"].to_numpy()) / MS
        self.outcome = table["outcome"].to_numpy()
        self.detail = table["detail"].to_pylist()
        self.elapsed_s = (self.over_ns - self.start_ns) / 1e9


def at(*offsets_ms: float) -> list[np.ndarray]:
    return [np.array([round(o * MS) for o in offsets_ms], np.int64)]


def test_every_arrival_of_the_schedule_is_sent_once_and_due_at_its_time(tmp_path: Path) -> None:
    target = ScriptedTarget(0.005)
    block = Block(tmp_path, OpenLoop, target, schedule=at(0, 3, 3, 50.5, 199.9))
    assert list(block.request) == [0, 1, 2, 3, 4]
    assert block.due_ms == pytest.approx([0, 3, 3, 50.5, 199.9], abs=1e-9)
    assert set(block.outcome) == {OK}
    assert target.sent == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert block.driver.planned == 5


def test_nothing_is_sent_before_it_is_due(tmp_path: Path) -> None:
    block = Block(tmp_path, OpenLoop, ScriptedTarget(0.0), schedule=at(*range(0, 200, 7)))
    assert block.latency_ms.min() >= 0


def test_the_block_lasts_its_duration_even_when_all_is_done(tmp_path: Path) -> None:
    block = Block(tmp_path, OpenLoop, ScriptedTarget(0.0), schedule=at(0))
    assert block.elapsed_s >= 0.2


def test_a_worker_takes_each_nth_arrival_with_messages_of_its_own(tmp_path: Path) -> None:
    target = ScriptedTarget(0.0)
    block = Block(tmp_path, OpenLoop, target, schedule=at(*range(10)), worker=1, workers=3, messages=["x", "y"])
    assert target.sent == [(1, "x"), (4, "y"), (7, "x")]
    assert list(block.request) == [1, 4, 7]
    assert block.driver.planned == 3


def test_a_cap_makes_arrivals_wait_and_the_wait_counts(tmp_path: Path) -> None:
    # 6 arrivals each 10 ms, 50 ms of service, one at a time: the i-th ends at 50 (i + 1) ms, if not later.
    target = ScriptedTarget(0.05)
    block = Block(tmp_path, OpenLoop, target, schedule=at(*range(0, 60, 10)), max_in_flight=1)
    assert target.peak == 1
    assert (block.latency_ms >= [50, 90, 130, 170, 210, 250]).all()
    assert block.latency_ms[-1] < 250 + 1000 * GRACE_S


def test_what_is_unanswered_ends_at_its_time_limit(tmp_path: Path) -> None:  # T12
    target = ScriptedTarget(None)
    block = Block(tmp_path, OpenLoop, target, schedule=at(0, 50, 190), timeout_s=0.3)
    assert list(block.outcome) == [TIMEOUT] * 3
    assert target.cancelled == [0, 1, 2]
    assert (block.latency_ms >= 300).all()
    assert block.latency_ms.max() < 300 + 1000 * GRACE_S
    assert block.elapsed_s < 0.2 + 0.3 + GRACE_S
    assert block.detail == ["no answer within 0.3 s"] * 3


def test_an_answer_after_the_limit_is_not_counted_again(tmp_path: Path) -> None:
    class Late(ScriptedTarget):
        def cancel(self, number: int) -> None:  # answers nevertheless
            self.cancelled.append(number)

    block = Block(tmp_path, OpenLoop, Late(0.15), schedule=at(0), timeout_s=0.05, duration_s=0.3)
    assert list(block.outcome) == [TIMEOUT]


def test_arrivals_that_never_got_a_place_are_recorded_as_never_sent(tmp_path: Path) -> None:
    target = ScriptedTarget(None)
    block = Block(tmp_path, OpenLoop, target, schedule=at(0, 10, 20, 30), timeout_s=0.3, max_in_flight=2)
    assert list(block.outcome) == [TIMEOUT] * 4
    # At 300 and 310 ms the first two are given up, and the others get their places for a moment.
    assert len(block.request) == block.driver.planned == 4
    for was_sent, detail in zip(block.sent, block.detail, strict=True):
        assert detail.startswith("never sent") != was_sent
    assert block.elapsed_s < 0.2 + 0.3 + GRACE_S


def test_a_client_that_falls_behind_records_every_planned_arrival(tmp_path: Path) -> None:  # T18, S7
    class Slow(ScriptedTarget):
        def send(self, number: int, message: Any) -> None:
            self.clock.stand(0.01)
            super().send(number, message)

    schedule = at(*np.arange(0, 200, 2))  # 100 arrivals that take 10 ms each to send, and 150 ms of patience
    block = Block(tmp_path, OpenLoop, Slow(0.0), schedule=schedule, timeout_s=0.15)
    assert list(block.request) == list(range(100))
    # The n-th is due 2 n ms and sent 10 n ms after the start, which is in time up to the eighteenth; then one of five.
    assert block.sent.sum() == 19 + 16
    assert set(block.outcome[~block.sent]) == {TIMEOUT}
    assert block.elapsed_s < 0.2 + 0.15 + GRACE_S


def test_cancel_records_what_is_unanswered_and_nothing_that_was_not_yet_due(tmp_path: Path) -> None:
    async def stop(driver: OpenLoop, start_ns: int) -> None:
        await asyncio.sleep(0.07)  # 60 ms after the start
        driver.cancel()
        driver.cancel()

    target = ScriptedTarget(None)
    block = Block(
        tmp_path, OpenLoop, target, schedule=at(0, 10, 20, 5000, 6000), duration_s=10, max_in_flight=1, meanwhile=stop
    )
    assert list(block.request) == [0, 1, 2]
    assert list(block.outcome) == [CANCELLED] * 3
    assert list(block.sent) == [True, False, False]
    assert block.driver.planned == 3
    assert block.elapsed_s < 0.06 + GRACE_S  # of 10 s


def test_closed_loop_users_ask_again_when_answered(tmp_path: Path) -> None:
    target = ScriptedTarget(0.02)
    block = Block(tmp_path, ClosedLoop, target, users=4, duration_s=0.4)
    assert target.peak == 4
    assert len(block.request) == 4 * 20
    assert block.driver.planned is None
    assert list(block.request) == list(range(len(block.request)))
    assert (block.due_ms < 400).all()


def test_a_user_is_ready_when_the_last_answer_came_and_the_thought_is_over(tmp_path: Path) -> None:
    block = Block(tmp_path, ClosedLoop, ScriptedTarget(0.02), users=1, think_s=0.03, duration_s=0.4)
    ready = block.due_ms[:-1] + block.latency_ms[:-1] + 30
    assert block.due_ms[1:] == pytest.approx(ready, abs=1e-6)
    assert len(block.request) == 8  # one each 50 ms


def test_who_would_think_beyond_the_end_is_not_replaced(tmp_path: Path) -> None:
    """One user's last answer comes at 390 ms of 410, and while it thinks the other asks once more, at 400."""
    block = Block(tmp_path, ClosedLoop, ScriptedTarget(0.02, places=1), users=2, think_s=0.03, duration_s=0.41)
    assert sorted(block.due_ms.round()) == sorted([0, *range(0, 401, 50), *range(70, 371, 50)])


def test_after_the_end_no_user_asks_and_the_last_answers_are_awaited(tmp_path: Path) -> None:
    block = Block(tmp_path, ClosedLoop, ScriptedTarget(0.15), users=2, duration_s=0.28)
    ended_ms = block.due_ms + block.latency_ms
    assert set(block.outcome) == {OK}
    assert (block.due_ms < 280).all() and (ended_ms >= 280).sum() == 2  # the last answer of each
    assert 1000 * block.elapsed_s >= ended_ms.max()


def test_a_user_whose_request_timed_out_goes_on(tmp_path: Path) -> None:
    block = Block(tmp_path, ClosedLoop, ScriptedTarget(None), users=1, timeout_s=0.06, duration_s=0.5)
    assert len(block.request) == 9  # one each 60 ms
    assert set(block.outcome) == {TIMEOUT}


def test_refusals_are_answers_too(tmp_path: Path) -> None:
    target = ScriptedTarget(0.01, outcome=lambda number: REFUSED if number % 2 else OK)
    block = Block(tmp_path, ClosedLoop, target, users=1)
    assert list(block.outcome) == [REFUSED if i % 2 else OK for i in range(len(block.request))]
    assert block.detail[:2] == [None, "because"]


def test_a_wrong_first_request_ends_the_block_at_once(tmp_path: Path) -> None:  # P3
    block = Block(tmp_path, ClosedLoop, ScriptedTarget(0.01, outcome=lambda number: INVALID), users=3, duration_s=10)
    assert block.driver.invalid == "because"
    assert block.elapsed_s < 0.01 + GRACE_S  # of 10 s
    assert sorted(block.outcome) == [CANCELLED, CANCELLED, ERROR]


def test_a_wrong_request_after_a_right_one_is_an_error_like_any_other(tmp_path: Path) -> None:
    target = ScriptedTarget(0.01, outcome=lambda number: INVALID if number == 2 else OK)
    block = Block(tmp_path, ClosedLoop, target, users=1)
    assert block.driver.invalid is None
    assert list(block.outcome[:4]) == [OK, OK, ERROR, OK]


def test_more_users_ask_at_once_and_fewer_leave_with_their_answers(tmp_path: Path) -> None:
    async def change(driver: ClosedLoop, start_ns: int) -> None:
        await until_async(lambda: driver.in_flight == 1)
        driver.change_users(5)
        assert driver.in_flight == 5
        await asyncio.sleep(0.05)
        assert driver.in_flight == 5
        driver.change_users(2)
        assert driver.in_flight == 5
        await until_async(lambda: driver.in_flight == 2)
        await asyncio.sleep(0.05)
        assert driver.in_flight == 2
        driver.cancel()

    target = ScriptedTarget(0.02)
    Block(tmp_path, ClosedLoop, target, users=1, duration_s=60, meanwhile=change)
    assert target.peak == 5


def test_a_changed_schedule_holds_from_its_moment(tmp_path: Path) -> None:
    async def change(driver: OpenLoop, start_ns: int) -> None:
        driver.change_schedule(start_ns + 100 * MS, at(0, 5, 10))

    old = at(0, 20, 90, 110, 120, 130, 140)
    target = ScriptedTarget(0.0)
    block = Block(tmp_path, OpenLoop, target, schedule=old, meanwhile=change)
    assert block.due_ms == pytest.approx([0, 20, 90, 100, 105, 110], abs=1e-9)
    assert list(block.request) == list(range(6))
    assert block.driver.planned == 6


def test_a_change_that_comes_late_repeats_no_number(tmp_path: Path) -> None:
    async def change(driver: OpenLoop, start_ns: int) -> None:
        await asyncio.sleep(0.1)  # 50, 60 … were sent when the change for 50 arrives
        driver.change_schedule(start_ns + 50 * MS, at(*range(0, 150, 10)))

    block = Block(tmp_path, OpenLoop, ScriptedTarget(0.0), schedule=at(*range(0, 200, 10)), meanwhile=change)
    assert list(block.request) == list(range(20))


@pytest.mark.parametrize("worker", [0, 1])
def test_a_schedule_drawn_on_the_way_is_the_whole_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: int
) -> None:
    monkeypatch.setattr(timetable, "DRAWN_AT_FIRST", 1)
    monkeypatch.setattr(timetable, "KEPT_NS", 100 * MS)
    arrival = Poisson(rate_rps=30_000)
    whole = arrivals(arrival, 0.5, 0)
    assert len(whole) > 3 * CHUNK
    planned: list[int | None] = []

    async def look(driver: OpenLoop, start_ns: int) -> None:
        planned.append(driver.planned)

    block = Block(
        tmp_path,
        OpenLoop,
        ScriptedTarget(0.0),
        schedule=chunks(arrival, 0.5, 0),
        rate_rps=30_000,
        duration_s=0.5,
        worker=worker,
        workers=2,
        meanwhile=look,
    )
    assert list(block.request) == list(range(worker, len(whole), 2))
    assert np.array_equal(np.rint(block.due_ms * MS).astype(int), whole[worker::2])
    assert block.driver.planned == len(block.request)
    # 4,096 are drawn and 10,904 more expected, give or take five times their root; half of them are this worker's.
    assert planned == [pytest.approx(7500, abs=300)]


def test_a_change_to_a_schedule_of_millions_draws_a_little_of_it(tmp_path: Path) -> None:
    drawn = 0

    def counted(rate_rps: float) -> Iterator[np.ndarray]:
        nonlocal drawn
        for part in chunks(Constant(rate_rps=rate_rps), 3600.0, 0):
            drawn += len(part)
            yield part

    target = ScriptedTarget(0.0)

    async def change(driver: OpenLoop, start_ns: int) -> None:
        for rate_rps in (10_000, 20_000, 10_000):
            driver.change_schedule(target.clock.now() + 10 * MS, counted(rate_rps), rate_rps)
            await asyncio.sleep(0.05)
        assert driver.planned == pytest.approx(36_000_000, rel=1e-3)
        driver.cancel()

    block = Block(tmp_path, OpenLoop, target, schedule=at(0, 5), duration_s=3600, meanwhile=change)
    assert drawn <= 10 * CHUNK  # of 9,000
    assert list(block.request) == list(range(len(block.request)))
    assert block.driver.planned == len(block.request) > 100


def test_cancel_records_what_was_due_before_it_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetable, "DRAWN_AT_FIRST", 1)

    async def stop(driver: OpenLoop, start_ns: int) -> None:
        target.clock.stand(0.06)  # until 50 ms after the start, while a thousand a ms become due
        driver.cancel()

    target = ScriptedTarget(None)
    schedule = chunks(Constant(rate_rps=1e6), 10.0, 0)
    block = Block(tmp_path, OpenLoop, target, schedule=schedule, rate_rps=1e6, duration_s=10, meanwhile=stop)
    assert list(block.request) == list(range(50_000))
    assert block.driver.planned == 50_000


def test_one_silent_request_of_many_does_not_hold_the_others_up(tmp_path: Path) -> None:
    target = ScriptedTarget(0.005)
    serve = target._serve

    def all_but_3() -> None:
        if target.queue and target.queue[0] == 3:
            target.at_work[target.queue.pop(0)] = None
        serve()

    target._serve = all_but_3
    block = Block(tmp_path, OpenLoop, target, schedule=at(*range(0, 200, 10)), timeout_s=0.3)
    assert list(np.flatnonzero(block.outcome == TIMEOUT)) == [3]
    assert set(np.delete(block.outcome, 3)) == {OK}


class Orderly(ScriptedTarget):
    """Says which sequence had two requests under way together: those of the message "3b" belong to the sequence 3."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(seconds)
        self.together: list[str] = []
        self.order: list[str] = []

    def send(self, number: int, message: Any) -> None:
        busy = [other for other in (*self.at_work, *self.queue) if dict(self.sent)[other][0] == message[0]]
        self.together += [message for _ in busy]
        self.order.append(message)
        super().send(number, message)


SEQUENCES: dict[str, Any] = {"messages": ["1a", "2a", "1b", "2b", "1c", "2c"], "sequences": [1, 2, 1, 2, 1, 2]}


@pytest.mark.parametrize("users", [2, 5])
def test_a_sequence_has_one_request_under_way_however_many_users(tmp_path: Path, users: int) -> None:
    target = Orderly(0.004)
    block = Block(tmp_path, ClosedLoop, target, users=users, **SEQUENCES)
    assert target.together == [] and len(target.order) > 20
    for sequence in "12":
        own = [message for message in target.order if message[0] == sequence]
        assert own == [f"{sequence}{'abc'[n % 3]}" for n in range(len(own))]
    assert set(block.outcome) == {OK} and list(block.request) == list(range(len(block.request)))


def test_the_wait_for_a_turn_is_part_of_the_latency(tmp_path: Path) -> None:
    target = Orderly(0.02)
    block = Block(tmp_path, OpenLoop, target, schedule=at(0, 0, 0, 0, 0, 0), **SEQUENCES)
    assert target.together == [] and block.latency_ms[4] >= 60 and block.latency_ms[5] >= 60


def test_who_waits_for_a_turn_is_given_up_in_time(tmp_path: Path) -> None:
    target = Orderly(None)
    block = Block(tmp_path, OpenLoop, target, schedule=at(0, 0, 0, 250, 250, 250), timeout_s=0.4, **SEQUENCES)
    assert list(block.outcome) == [TIMEOUT] * 6 and block.latency_ms.max() < 400 + 1000 * GRACE_S
    # Those that were due together end together; then the next of each sequence has its turn.
    assert target.order == ["1a", "2a", "1c", "2b"]
    assert block.sent.tolist() == [True, True, False, True, True, False]


def test_a_stop_ends_who_waits_for_a_turn_too(tmp_path: Path) -> None:
    async def stop(driver: Driver, _: int) -> None:
        await asyncio.sleep(0.05)
        driver.cancel()

    block = Block(tmp_path, ClosedLoop, Orderly(None), users=5, meanwhile=stop, **SEQUENCES)
    assert list(block.outcome) == [CANCELLED] * 5 and block.sent.tolist() == [True, True, False, False, False]
