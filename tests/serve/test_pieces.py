"""Threads that share phases: nothing is done twice, nothing too early, and nobody is waited for in vain."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import njit

from lab.serve.models import pieces
from lab.serve.models.vector_code import add_atomically, read_atomically


@njit(nogil=True)
def work(meeting: Any, sizes: Any, done: Any, threads: Any, me: Any) -> None:
    for phase in range(len(sizes)):
        count = 0
        while True:
            piece = pieces.take(meeting, phase, sizes[phase], threads, me)
            if piece < 0:
                break
            if phase > 0:  # the phase before must be complete
                done[phase, piece] += done[phase - 1, : sizes[phase - 1]].sum() == sizes[phase - 1]
            else:
                done[phase, piece] += 1
            count += 1
        pieces.finish(meeting, phase, threads, count)
        pieces.wait(meeting, phase, sizes[phase], threads)


@pytest.mark.parametrize(("threads", "come"), [(1, 1), (2, 2), (5, 5), (3, 2), (2, 1)])
def test_each_piece_is_taken_once_and_no_phase_begins_before_the_last_is_done(threads: int, come: int) -> None:
    """Also when some of the threads never come."""
    random = np.random.default_rng(threads)
    sizes = random.integers(1, 40, 300)
    done = np.zeros((len(sizes), 40), np.int64)
    meeting = np.zeros(pieces.places(len(sizes), threads), np.int64)
    team = [threading.Thread(target=work, args=(meeting, sizes, done, threads, me)) for me in range(come)]
    for each in team:
        each.start()
    for each in team:
        each.join()
    assert [row.tolist() for row in done] == [[1] * n + [0] * (40 - n) for n in sizes]


@njit(nogil=True)
def count(array: Any, times: Any) -> None:
    for _ in range(times):
        add_atomically(array, 1, 1)


def test_atomic_additions_are_all_counted() -> None:
    array = np.zeros(3, np.int64)
    team = [threading.Thread(target=count, args=(array, 100_000)) for _ in range(4)]
    for each in team:
        each.start()
    for each in team:
        each.join()
    assert array.tolist() == [0, 400_000, 0]
    assert njit(lambda a: read_atomically(a, 1))(array) == 400_000


@njit
def take_all(meeting: Any, count: Any, threads: Any, me: Any) -> Any:
    return [pieces.take(meeting, 0, count, threads, me) for _ in range(count + 1)]


def test_a_thread_takes_its_own_stretch_in_order_and_then_the_others() -> None:
    for me, order in ((0, [0, 1, 2, 3, 4, 5, 6, -1]), (1, [2, 3, 4, 5, 6, 0, 1, -1]), (2, [4, 5, 6, 0, 1, 2, 3, -1])):
        meeting = np.zeros(pieces.places(1, 3), np.int64)
        assert take_all(meeting, 7, 3, me) == order


def test_a_helper_that_comes_too_late_stays_outside_and_is_not_waited_for() -> None:
    meeting = np.zeros(pieces.LINE, np.int64)
    assert pieces.enter(meeting, 0)
    pieces.leave(meeting)
    pieces.close(meeting)
    assert not pieces.enter(meeting, 0)
    pieces.leave(meeting)
    assert pieces.enter(meeting, 1)
    assert meeting[[pieces.EPOCH, pieces.INSIDE]].tolist() == [1, 1]


@njit(nogil=True)
def end_step(meeting: Any) -> None:
    pieces.close(meeting)


def test_a_step_ends_when_the_last_helper_has_left() -> None:
    meeting = np.zeros(pieces.LINE, np.int64)
    pieces.enter(meeting, 0)
    ending = threading.Thread(target=end_step, args=(meeting,))
    ending.start()
    ending.join(0.05)
    assert ending.is_alive()
    pieces.leave(meeting)
    ending.join(10)
    assert not ending.is_alive()
