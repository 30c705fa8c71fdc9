"""How several threads share a step: it is a row of phases, and each phase is cut into pieces.

Threads take pieces as they come: whoever is held up by another program on its processor takes fewer, and one that comes
late, or never, is missed by nobody. A phase is over when all its pieces are done, not when all threads have arrived.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from .vector_code import add_atomically, breathe, give_way, read_atomically

EPOCH, INSIDE, FIRST = range(3)
"""Places in a meeting, int64 [FIRST + 2 × phases]: the number of the step, the helpers at work in it, and from FIRST on
two for each phase: pieces taken, pieces done."""

SPINS = 1000
"""Looks at what is not done yet before another thread is let in: some 20 µs."""


@njit
def take(meeting: Any, phase: Any, pieces: Any) -> Any:
    """The next piece of this phase that nobody has, or -1."""
    place = FIRST + 2 * phase
    if read_atomically(meeting, place) >= pieces:
        return -1
    piece = add_atomically(meeting, place, 1)
    return piece if piece < pieces else -1


@njit
def finish(meeting: Any, phase: Any) -> None:
    add_atomically(meeting, FIRST + 2 * phase + 1, 1)


@njit
def wait(meeting: Any, phase: Any, pieces: Any) -> None:
    """Until all pieces of the phase are done, by whomever."""
    spins = 0
    while read_atomically(meeting, FIRST + 2 * phase + 1) < pieces:
        spins = pause(spins)


@njit
def is_taken(meeting: Any, phase: Any, pieces: Any) -> Any:
    """Whether nothing of the phase is left to take."""
    return read_atomically(meeting, FIRST + 2 * phase) >= pieces


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
