"""The pieces every figure is built from."""

import itertools
import math

import numpy as np
import pytest

from lab.show import theme
from lab.show.charts.figure import End, end_labels, floats, log_range, values_of


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
