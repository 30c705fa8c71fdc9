"""The pieces every figure is built from."""

import itertools
import math

import numpy as np
import pytest

from lab.show import theme
from lab.show.charts.figure import (
    MOST_LABEL,
    NOTHING_HEIGHT,
    End,
    end_labels,
    floats,
    log_range,
    nothing_to_draw,
    told_apart,
    values_of,
)


def test_numbers_survive_the_trip_and_a_gap_stays_a_gap() -> None:
    back = values_of(floats([1.5, None, math.nan, -2.0]))
    assert back[0] == 1.5
    assert np.isnan(back[1]) and np.isnan(back[2])
    assert back[3] == -2.0


def test_labels_of_lines_that_end_together_are_pushed_apart_and_stay_inside() -> None:
    ends = [End(name, 1.0, y, theme.TREATMENT) for name, y in (("a", 99.0), ("b", 98.0), ("c", 97.5), ("d", 10.0))]
    labels = end_labels(ends, (0.0, 100.0), log=False, height=300)
    pixels = sorted(label["y"] / 100 * 300 + label["yshift"] for label in labels)
    assert all(upper - lower >= 15 for lower, upper in itertools.pairwise(pixels))
    assert pixels[-1] <= 300


def test_a_label_with_room_stays_at_its_line() -> None:
    (label,) = end_labels([End("a", 1.0, 10.0, theme.TREATMENT)], (0.0, 2.0), log=True, height=300)
    assert label["y"] == pytest.approx(1.0)  # log10
    assert label["yshift"] == 0.0


def test_log_range_covers_the_values_and_ignores_what_a_log_axis_cannot_show() -> None:
    low, high = log_range([0.0, -5.0, math.nan, 1.0, 1000.0])
    assert low < 0.0 and high > 3.0
    assert high - low < 4.0


@pytest.mark.parametrize("values", [[], [0.0], [math.nan, -1.0]])
def test_log_range_without_a_positive_value(values: list[float]) -> None:
    assert log_range(values) == (0.0, 1.0)


def test_one_value_gets_a_decade() -> None:
    low, high = log_range([10.0])
    assert low < 1.0 < high
    assert high - low >= 1.0


def test_labels_lose_what_all_of_them_end_in() -> None:
    assert told_apart(["trees, batching on, no delay", "digits, batching on, no delay"]) == {
        "trees, batching on, no delay": "trees",
        "digits, batching on, no delay": "digits",
    }
    assert told_apart(["a, b", "b"]) == {"a, b": "a, b", "b": "b"}  # nothing would be left of the second
    assert told_apart(["alone, as it is"]) == {"alone, as it is": "alone, as it is"}
    assert len(told_apart(["x" * 60, "y"])["x" * 60]) == MOST_LABEL


def test_a_chart_without_data_takes_little_room_and_says_all_of_why() -> None:
    why = "p99 of batching off at its load is not drawn: needs 459 successes, has 1; largest seen 5.9 ms"
    chart = nothing_to_draw("A title", why, height=420)
    assert chart.figure["layout"]["height"] == NOTHING_HEIGHT
    (note,) = chart.figure["layout"]["annotations"]
    assert note["text"].replace("<br>", " ") == why and "<br>" in note["text"]
