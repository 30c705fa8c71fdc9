"""The percentile plot ends where the sample does."""

import numpy as np
import pytest

from lab.show.charts.figure import values_of
from lab.show.charts.latency import percentiles


def test_the_curve_ends_at_the_last_percentile_the_sample_supports() -> None:
    # 458 samples are one too few for p99 (MLPerf's count); 459 are enough, and p99.9 needs 4,603.
    few, enough = np.linspace(0.001, 0.1, 458), np.linspace(0.001, 0.1, 459)
    chart = percentiles({"few": few, "enough": enough}, "few", None, "80 % of saturation")
    last = {trace["name"]: values_of(trace["x"])[-1] for trace in chart.figure["data"]}
    assert last["few"] == pytest.approx(1 / (1 - 0.95), rel=1e-4)
    assert last["enough"] == pytest.approx(1 / (1 - 0.99), rel=1e-4)
    assert chart.table["few, ms"][2:] == [None, None, None]  # p99, p99.9, p99.99
    assert chart.notes[0] == "few ends at p95: 458 successes; p99 needs 459"


def test_values_are_percentiles_of_the_pooled_sample() -> None:
    latencies = np.random.default_rng(0).lognormal(-6, 1, 10_000)
    chart = percentiles({"a": latencies}, "a", 0.02, "this load")
    table = chart.table["a, ms"]
    # numpy's default is the same linear interpolation; the chart gets there without it.
    assert table[:4] == pytest.approx([np.percentile(latencies, p) * 1e3 for p in (50, 90, 99, 99.9)])


def test_too_few_for_a_median_is_not_drawn() -> None:
    chart = percentiles({"a": np.full(6, 0.01)}, "a", None, "this load")
    assert chart.figure["data"] == []
    assert "6 successes, the median needs 7" in chart.alt


def test_the_alternative_text_names_the_last_percentile() -> None:
    chart = percentiles({"a": np.full(500, 0.012)}, "a", None, "this load")
    assert "a reaches 12.0 ms at p99 (n = 500)" in chart.alt
