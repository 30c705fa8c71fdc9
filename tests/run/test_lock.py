"""One run measures at a time; who came first goes first; who dies lets go."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.errors import RunError
from lab.run.lock import MeasureLock, no_run_beside, who_measures

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def lab_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


HOLD = """
import sys, time
from lab.run.lock import MeasureLock
with MeasureLock(sys.argv[1]) as lock:
    lock.acquire(lambda place, holder: print("waits", place, holder, flush=True))
    print("has it", flush=True)
    sys.stdin.readline()
print("let go", flush=True)
"""


class Contender:
    """A process that takes the lock and holds it until told to let go."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self, expected: str) -> None:
        """Read on until the line is `expected`; AssertionError when it takes the lock, or ends, before."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line.strip())
            if lines[-1] == expected:
                return
            if lines[-1] == "has it":
                break
        raise AssertionError(f"never said {expected!r}, but {lines[-5:]}")

    def let_go(self) -> None:
        self.process.communicate("go\n", timeout=60)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)


@contextmanager
def contenders() -> Iterator[Callable[[str], Contender]]:
    started: list[Contender] = []

    def start(name: str) -> Contender:
        started.append(Contender(name))
        return started[-1]

    try:
        yield start
    finally:
        for contender in started:
            contender.process.kill()
            contender.process.communicate()


@contextmanager
def three() -> Iterator[tuple[Contender, Contender, Contender]]:
    """The first, "run-a", has the lock; "run-b" and "run-c" wait for it in this order."""
    with contenders() as start:
        first = start("run-a")
        first.says("has it")
        second = start("run-b")
        second.says("waits 1 run-a")
        third = start("run-c")
        third.says("waits 2 run-a")
        yield first, second, third


def test_a_free_lock_is_taken_without_waiting() -> None:
    places: list[tuple[int, str]] = []
    with MeasureLock("run-a") as lock:
        lock.acquire(lambda *place: places.append(place))
    assert places == []


def test_places_are_told_and_served_in_order_of_coming() -> None:
    with three() as (first, second, third):
        first.let_go()
        second.says("has it")
        third.says("waits 1 run-b")
        second.let_go()
        third.says("has it")


def test_nobody_overtakes_an_older_waiter_that_is_slow_to_move_up() -> None:
    with three() as (first, second, third):
        second.process.send_signal(signal.SIGSTOP)
        first.let_go()
        for _ in range(3):
            third.says("waits 2 another run")  # the lock is free, and not for it
        second.process.send_signal(signal.SIGCONT)
        second.says("has it")
        third.says("waits 1 run-b")


def test_a_killed_holder_and_a_killed_waiter_block_nobody(lab_home: Path) -> None:
    with three() as (first, second, third):
        second.kill()
        third.says("waits 1 run-a")
        first.kill()
        third.says("has it")
        third.let_go()
    assert list((lab_home / "queue").iterdir()) == []


def test_a_waiter_that_gives_up_leaves_the_queue(lab_home: Path) -> None:
    class StopAsked(Exception):
        pass

    def stop(place: int, holder: str) -> None:
        raise StopAsked(f"{place} {holder}")

    with MeasureLock("run-a") as holder:
        holder.acquire(stop)
        with MeasureLock("run-b") as waiter, pytest.raises(StopAsked, match="1 run-a"):
            waiter.acquire(stop)
        assert list((lab_home / "queue").iterdir()) == []
    with MeasureLock("run-b") as waiter:
        waiter.acquire(stop)


def test_a_waiter_takes_over_soon_after_the_release() -> None:
    with contenders() as start:
        with MeasureLock("run-a") as lock:
            lock.acquire(lambda *_: None)
            waiter = start("run-b")
            waiter.says("waits 1 run-a")
        released = time.monotonic()
        waiter.says("has it")
        assert time.monotonic() - released < 30


def test_a_run_waits_for_work_that_would_falsify_it_and_the_other_way_round() -> None:
    class Enough(Exception):
        pass

    seen: list[tuple[int, str]] = []

    def once(place: int, holder: str) -> None:
        seen.append((place, holder))
        raise Enough

    with no_run_beside("the batch job a"), no_run_beside("the batch job b"):
        assert who_measures() is None  # neither does
        with pytest.raises(Enough), MeasureLock("run-1") as lock:
            lock.acquire(once)
    assert seen == [(1, "the batch job b")]
    with MeasureLock("run-1") as lock:
        lock.acquire(once)
        said = "run run-1 measures now, and the batch job a would falsify its figures; wait or stop it"
        with pytest.raises(RunError, match=said), no_run_beside("the batch job a"):
            pass
    with no_run_beside("the batch job a"):
        pass
