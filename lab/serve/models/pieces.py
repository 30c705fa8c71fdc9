"""How several threads share a step: it is a row of phases, and each phase is cut into pieces.

The pieces of a phase lie in a row, a stretch of it for each thread. Each takes its own stretch's in order, so that it
reads on in memory where it stopped, and then helps with the others': whoever is held up by another program on its
processor does fewer, and one that comes late, or never, is missed by nobody. A phase is over when all its pieces are
done, not when all threads have arrived.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from .vector_code import add_atomically, breathe, give_way, read_atomically

EPOCH, INSIDE = range(2)
LINE = 8
"""A meeting is int64 [LINE × …]: the number of the step and the helpers at work in it; then for each phase a line of
pieces done and one of pieces taken for each thread's stretch. Lines of 64 bytes, because what one thread writes slows
down others who look at the same line."""

SPINS = 1000
"""Looks at what is not done yet before another thread is let in: some 20 µs."""


def places(phases: int, threads: int) -> int:
    """The length of a meeting."""
    return LINE * (1 + phases * (1 + threads))


@njit(inline="always")
def done_at(phase: Any, threads: Any) -> Any:
    return LINE * (1 + phase * (1 + threads))


@njit
def take(meeting: Any, phase: Any, pieces: Any, threads: Any, me: Any) -> Any:
    """The next piece of this phase that nobody has, or -1."""
    for i in range(threads):
        stretch = (me + i) % threads
        first = pieces * stretch // threads
        size = pieces * (stretch + 1) // threads - first
        place = done_at(phase, threads) + LINE * (1 + stretch)
        if read_atomically(meeting, place) < size:
            piece = add_atomically(meeting, place, 1)
            if piece < size:
                return first + piece
    return -1


@njit
def finish(meeting: Any, phase: Any, threads: Any, count: Any) -> None:
    """`count` pieces that this thread took are done."""
    if count > 0:
        add_atomically(meeting, done_at(phase, threads), count)


@njit
def wait(meeting: Any, phase: Any, pieces: Any, threads: Any) -> None:
    """Until all pieces of the phase are done, by whomever."""
    spins = 0
    while read_atomically(meeting, done_at(phase, threads)) < pieces:
        spins = pause(spins)


@njit
def is_over(meeting: Any, phase: Any, pieces: Any, threads: Any) -> Any:
    return read_atomically(meeting, done_at(phase, threads)) >= pieces


@njit
def enter(meeting: Any, epoch: Any) -> Any:
    """A helper at the door: whether step `epoch` still goes on. It must `leave` in any case."""
    add_atomically(meeting, INSIDE, 1)
    return read_atomically(meeting, EPOCH) == epoch


@njit
def leave(meeting: Any) -> None:
    add_atomically(meeting, INSIDE, -1)


@njit
def close(meeting: Any) -> None:
    """Ends the step: who comes now is too late, and who is inside has left when this returns."""
    add_atomically(meeting, EPOCH, 1)
    spins = 0
    while read_atomically(meeting, INSIDE) > 0:
        spins = pause(spins)


@njit
def pause(spins: Any) -> Any:
    if spins < SPINS:
        breathe()
    else:
        give_way()
    return spins + 1
