"""Requests of one sequence, one at a time and in their order.

Triton reads the requests of one connection with several threads, so two of one sequence that are under way together may
change places, and a sequence whose second request comes first is refused ("must specify the START flag"). So the next
one waits in the client until the one before it has ended, and its latency runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Turns:
    """`sequences[j]`: of the j-th message; empty where messages belong to none. Worker k of n has the requests k, k + n
    …, whose j-th carries message j, starting over at their end."""

    def __init__(self, sequences: Sequence[int], workers: int) -> None:
        self._sequences, self._workers = sequences, workers  # filled later, in place
        self._under_way: set[int] = set()
        self.held: deque[tuple[int, int]] = deque()
        """(number, due_ns) of requests that wait for their turn, oldest first."""

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def _of(self, number: int) -> int:
        return self._sequences[number // self._workers % len(self._sequences)]

    def take(self, number: int, due_ns: int) -> bool:
        """Whether it is the request's turn; else it is held."""
        sequence = self._of(number)
        if sequence in self._under_way:
            self.held.append((number, due_ns))
            return False
        self._under_way.add(sequence)
        return True

    def ended(self, number: int) -> tuple[int, int] | None:
        """Request `number` is over: the one that waited for it longest, which is held no more."""
        sequence = self._of(number)
        self._under_way.discard(sequence)
        following = next((each for each in self.held if self._of(each[0]) == sequence), None)
        if following is not None:
            self.held.remove(following)
        return following
