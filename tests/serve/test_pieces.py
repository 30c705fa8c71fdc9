"""Threads that share phases: nothing is done twice, nothing too early, and nobody is waited for in vain."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import njit

from lab.serve.models import pieces
from lab.serve.models.vector_code import add_atomically, read_atomically

pytestmark = pytest.mark.llm


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
        pieces.finish(meeting, phase, threads, me, count)
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
def compute(meeting: Any, sizes: Any, results: Any, done: Any, threads: Any, me: Any) -> None:
    """As kernels.product: a piece's result is the number of results of the phase before, written by who is first."""
    for phase in range(len(sizes)):
        while True:
            holder, piece = me, pieces.take(meeting, phase, sizes[phase], threads, me)
            if piece >= 0:
                pieces.hold(meeting, phase, threads, me, piece)
            else:
                holder, piece = pieces.held_up(meeting, phase, sizes[phase], threads, me)
                if piece < 0:
                    break
            result = results[phase - 1, : sizes[phase - 1]].sum() if phase > 0 else 1
            if pieces.settle(meeting, phase, threads, holder, piece):
                results[phase, piece] = result // (sizes[phase - 1] if phase > 0 else 1)
                done[phase, piece] += 1
                pieces.finish(meeting, phase, threads, me, 1)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_piece_that_is_done_twice_is_written_once(threads: int) -> None:
    random = np.random.default_rng(threads)
    sizes = random.integers(1, 12, 500)
    results, done = np.zeros((len(sizes), 12), np.int64), np.zeros((len(sizes), 12), np.int64)
    meeting = np.zeros(pieces.places(len(sizes), threads), np.int64)
    team = [
        threading.Thread(target=compute, args=(meeting, sizes, results, done, threads, me)) for me in range(threads)
    ]
    for each in team:
        each.start()
    for each in team:
        each.join()
    assert [row.tolist() for row in done] == [[1] * n + [0] * (12 - n) for n in sizes]
    assert results.tolist() == done.tolist()  # each is its phase's mean, and the first phase's are 1


@njit
def take_and_hold(meeting: Any, count: Any, threads: Any, me: Any) -> Any:
    piece = pieces.take(meeting, 0, count, threads, me)
    pieces.hold(meeting, 0, threads, me, piece)
    return piece


@njit(nogil=True)
def compute_alone(meeting: Any, sizes: Any, results: Any, done: Any, me: Any) -> None:
    compute(meeting, sizes, results, done, 2, me)


def test_who_is_held_up_in_a_piece_holds_up_nobody() -> None:
    sizes, meeting = np.array([7, 3]), np.zeros(pieces.places(2, 2), np.int64)
    results, done = np.zeros((2, 7), np.int64), np.zeros((2, 7), np.int64)
    held = take_and_hold(meeting, 7, 2, 1)  # and is never seen again until both phases are over
    compute_alone(meeting, sizes, results, done, 0)
    assert done.tolist() == [[1] * 7, [1, 1, 1, 0, 0, 0, 0]]
    assert not njit(lambda m: pieces.settle(m, 0, 2, 1, held))(meeting)


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
    ending.join(60)
    assert not ending.is_alive()
