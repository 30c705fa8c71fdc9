"""The arrivals of a block by number, of which only those near now are held.

Drawn a little ahead of their time and forgotten a second after it, so an hour at 10,000 requests a second costs no
more memory than a minute, and a change of its rate no more time. Every worker holds the same timetable, so a number
means the same arrival in each. Knows no clock: times are offsets in ns from the start of the block.
"""

from __future__ import annotations

import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain

from lab.load.schedule import CHUNK, before
from lab.measure.records import Int64s

DRAWN_AT_FIRST = 1_000_000
"""Arrivals drawn while the block is prepared, when nobody waits: 8 MB, and all of most blocks."""
KEPT_NS = 1_000_000_000
"""Arrivals this long past are forgotten; a change of schedule must reach the worker sooner."""


class Timetable:
    """`schedule` in chunks, ascending; `rate_rps` says how many the arrivals not yet drawn will be."""

    def __init__(self, schedule: Iterable[Int64s], rate_rps: float) -> None:
        self.due = array.array("q")
        self.first = 0
        """Number of the arrival due[0]."""
        self.drawn = 0
        """Number after the arrival due[-1]."""
        self.draw_at = 0
        """Whoever has come to this number calls `draw_ahead`; beyond every number when all is drawn."""
        self._rest: Iterator[Int64s] | None = iter(schedule)  # what is not yet drawn; None: nothing
        self._rate_rps = rate_rps
        while self._rest is not None and self.drawn < DRAWN_AT_FIRST:
            self._draw()

    def planned(self, end_ns: int) -> int:
        """Arrivals before `end_ns`, where the schedule ends: a count once all are drawn, else with what to expect."""
        expected = 0.0 if self._rest is None else self._rate_rps * (end_ns - self.due[-1]) / 1e9
        return self.drawn + round(expected)

    def draw_ahead(self, number: int, now_ns: int) -> None:
        """Draw until some arrivals after `number` are here or all are, and forget those before it that are old."""
        past = bisect_left(self.due, now_ns - KEPT_NS, hi=min(number, self.drawn) - self.first)
        del self.due[:past]
        self.first += past
        while number >= self.draw_at:
            self._draw()

    def change(self, at_ns: int, schedule: Iterable[Int64s], rate_rps: float) -> None:
        """Replace the arrivals from `at_ns` on by `schedule`, offsets from at_ns; `draw_ahead` is called next."""
        self._rest = chain(self._cut(at_ns), (part + at_ns for part in schedule))
        self._rate_rps = rate_rps

    def end(self, at_ns: int) -> None:
        """Leave out the arrivals from `at_ns` on, and draw all that were due before."""
        self._rest = self._cut(at_ns)
        while self._rest is not None:
            self._draw()

    def _cut(self, at_ns: int) -> Iterator[Int64s]:
        """Forget the drawn arrivals from `at_ns` on; returns those before it that are not yet drawn."""
        kept = bisect_left(self.due, at_ns)
        rest = self._rest if kept == len(self.due) else None
        del self.due[kept:]
        self.drawn = self.first + kept
        self.draw_at = 0
        return before(at_ns, rest or ())

    def _draw(self) -> None:
        part = next(self._rest, None) if self._rest is not None else None
        if part is None:
            self._rest, self.draw_at = None, 2**63
        else:
            self.due.frombytes(part.tobytes())
            self.drawn = self.first + len(self.due)
            self.draw_at = self.drawn - CHUNK // 2
