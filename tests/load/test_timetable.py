"""Numbers of arrivals stay what they are while the timetable draws, forgets and changes."""

import numpy as np
import pytest

from lab.load import timetable
from lab.load.schedule import CHUNK, chunks
from lab.load.timetable import Timetable
from lab.spec import Constant

S = 1_000_000_000


def metronome(rate_rps: float, duration_s: float) -> Timetable:
    return Timetable(chunks(Constant(rate_rps=rate_rps), duration_s, 0), rate_rps)


def test_all_of_a_usual_block_is_counted_before_it_starts() -> None:
    assert metronome(5000, 60.0).planned(60 * S) == 300_000


def test_an_hour_is_held_a_second_at_a_time() -> None:
    table = metronome(10_000, 3600.0)
    assert table.planned(3600 * S) in range(35_999_998, 36_000_003)
    last = 0
    for number in range(0, 2_000_000, 1000):
        if number >= table.draw_at:
            table.draw_ahead(number, number * 100_000)
            last = len(table.due)
        assert table.due[number - table.first] == number * 100_000
    assert 10_000 <= last <= 10_000 + 2 * CHUNK


def test_a_change_behind_what_is_drawn_keeps_the_arrivals_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetable, "DRAWN_AT_FIRST", 1)
    table = metronome(10_000, 10.0)  # drawn to 0.41 s
    table.change(2 * S, chunks(Constant(rate_rps=10), 8.0, 0), 10)
    table.draw_ahead(0, 0)
    while table.draw_at < 2**63:
        table.draw_ahead(table.drawn, 0)
    assert table.planned(10 * S) == 20_000 + 80
    expected = [*range(0, 2 * S, S // 10_000), *range(2 * S, 10 * S, S // 10)]
    assert np.array_equal(table.due, expected)
