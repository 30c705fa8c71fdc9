"""How several threads share a step: it is a row of phases, and each phase is cut into pieces.

The pieces of a phase lie in a row, a stretch of it for each thread. Each takes its own stretch's in order, so that it
reads on in memory where it stopped, and then helps with the others': whoever is held up by another program on its
processor does fewer, and one that comes late, or never, is missed by nobody. A phase is over when all its pieces are
done, not when all threads have arrived.

Who is held up in the middle of a piece would hold up all at the end of the phase, for much longer than a piece takes.
So a thread that runs out of pieces does such a one once more, and whoever is first to say that it is done (`settle`)
writes the result; the other's is thrown away.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from .vector_code import (
    add_atomically,
    breathe,
    exchange_atomically,
    give_way,
    read_atomically,
    write_atomically,
)

EPOCH, INSIDE = range(2)
LINE = 8
"""A meeting is int64 [LINE × …]: the number of the step and the helpers at work in it; then for each phase a line for
each thread. Lines of 64 bytes, because what one thread writes slows down others who look at the same line."""

TAKEN, HELD, DONE = range(3)
"""In a thread's line: pieces taken of its stretch, by whomever; the number of the piece that it works on, plus 1; and
pieces that it has done."""

SPINS = 1000
"""Looks at what is not done yet before another thread is let in: some 20 µs."""
PATIENCE = 250
"""Looks before a piece that another one holds is done once more: about as long as a piece takes."""


def places(phases: int, threads: int) -> int:
    """The length of a meeting."""
    return LINE * (1 + phases * threads)


@njit(inline="always")
def line_of(phase: Any, threads: Any, thread: Any) -> Any:
    return LINE * (1 + phase * threads + thread)


@njit
def take(meeting: Any, phase: Any, pieces: Any, threads: Any, me: Any) -> Any:
    """The next piece of this phase that nobody has, or -1."""
    for i in range(threads):
        stretch = (me + i) % threads
        first = pieces * stretch // threads
        size = pieces * (stretch + 1) // threads - first
        place = line_of(phase, threads, stretch) + TAKEN
        if read_atomically(meeting, place) < size:
            piece = add_atomically(meeting, place, 1)
            if piece < size:
                return first + piece
    return -1


@njit
def hold(meeting: Any, phase: Any, threads: Any, me: Any, piece: Any) -> None:
    """This thread works on a piece that it took: another one may do it too, and both must `settle` it."""
    write_atomically(meeting, line_of(phase, threads, me) + HELD, piece + 1)


@njit
def settle(meeting: Any, phase: Any, threads: Any, holder: Any, piece: Any) -> Any:
    """Whether the caller is the first to have computed the piece that `holder` holds, and so the one to write it."""
    return exchange_atomically(meeting, line_of(phase, threads, holder) + HELD, piece + 1, 0)


@njit
def held_up(meeting: Any, phase: Any, pieces: Any, threads: Any, me: Any) -> Any:
    """Waits: until all pieces of the phase are done (-1, -1), or until one has been held for so long that it is worth
    doing again: (its holder, the piece)."""
    spins = 0
    while not is_over(meeting, phase, pieces, threads):
        if spins >= PATIENCE:
            for i in range(1, threads):
                other = (me + i) % threads
                piece = read_atomically(meeting, line_of(phase, threads, other) + HELD) - 1
                if piece >= 0:
                    return other, piece
        spins = pause(spins)
    return -1, -1


@njit
def finish(meeting: Any, phase: Any, threads: Any, me: Any, count: Any) -> None:
    """`count` pieces more have been done by this thread."""
    if count > 0:
        add_atomically(meeting, line_of(phase, threads, me) + DONE, count)


@njit
def wait(meeting: Any, phase: Any, pieces: Any, threads: Any) -> None:
    """Until all pieces of the phase are done, by whomever."""
    spins = 0
    while not is_over(meeting, phase, pieces, threads):
        spins = pause(spins)


@njit
def is_over(meeting: Any, phase: Any, pieces: Any, threads: Any) -> Any:
    done = 0
    for thread in range(threads):
        done += read_atomically(meeting, line_of(phase, threads, thread) + DONE)
    return done >= pieces


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
