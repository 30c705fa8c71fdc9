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
def work(meeting: Any, sizes: Any, done: Any, me: Any) -> None:
    for phase in range(len(sizes)):
        while True:
            piece = pieces.take(meeting, phase, sizes[phase])
            if piece < 0:
                break
            if phase > 0:  # the phase before must be complete
                done[phase, piece] += done[phase - 1, : sizes[phase - 1]].sum() == sizes[phase - 1]
            else:
                done[phase, piece] += 1
            pieces.finish(meeting, phase)
        pieces.wait(meeting, phase, sizes[phase])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_piece_is_taken_once_and_no_phase_begins_before_the_last_is_done(threads: int) -> None:
    random = np.random.default_rng(threads)
    sizes = random.integers(1, 40, 300)
    done = np.zeros((len(sizes), 40), np.int64)
    meeting = np.zeros(pieces.FIRST + 2 * len(sizes), np.int64)
    team = [threading.Thread(target=work, args=(meeting, sizes, done, me)) for me in range(threads)]
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


def test_a_helper_that_comes_too_late_stays_outside_and_is_not_waited_for() -> None:
    meeting = np.zeros(pieces.FIRST, np.int64)
    assert pieces.enter(meeting, 0)
    pieces.leave(meeting)
    pieces.close(meeting)
    assert not pieces.enter(meeting, 0)
    pieces.leave(meeting)
    assert pieces.enter(meeting, 1)
    assert meeting.tolist() == [1, 1]


@njit(nogil=True)
def end_step(meeting: Any) -> None:
    pieces.close(meeting)


def test_a_step_ends_when_the_last_helper_has_left() -> None:
    meeting = np.zeros(pieces.FIRST, np.int64)
    pieces.enter(meeting, 0)
    ending = threading.Thread(target=end_step, args=(meeting,))
    ending.start()
    ending.join(0.05)
    assert ending.is_alive()
    pieces.leave(meeting)
    ending.join(10)
    assert not ending.is_alive()
