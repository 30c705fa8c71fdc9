"""A point a second: counts by hand, percentiles against numpy over the trailing window, increments equal one go."""

import numpy as np

from lab.measure.records import ERROR, OK, Requests
from lab.measure.series import SECOND_NS, RequestSeries, growth, last_reading

ORIGIN = 7 * SECOND_NS


def requests(due_s, done_s, outcome=None):
    due = ORIGIN + (np.asarray(due_s) * 1e9).astype(np.int64)
    done = ORIGIN + (np.asarray(done_s) * 1e9).astype(np.int64)
    return Requests(
        due, due, done, np.full(len(due), OK, np.uint8) if outcome is None else np.asarray(outcome, np.uint8)
    )


def test_counts_go_to_the_second_of_arrival_and_of_completion():
    series = RequestSeries(ORIGIN)
    series.add(requests([0.1, 0.2, 0.9, 1.5], [0.2, 1.1, 1.2, 1.6], [OK, OK, ERROR, OK]))
    columns = series.columns(2)
    assert columns["offered_rps"].tolist() == [3, 1]
    assert columns["throughput_rps"].tolist() == [1, 2]
    np.testing.assert_allclose(columns["error_fraction"], [0, 1 / 3])


def test_percentiles_are_numpys_over_the_trailing_five_seconds():
    rng = np.random.default_rng(1)
    due = np.sort(rng.uniform(0, 10, 5000))
    done = due + rng.exponential(0.05, 5000)
    series = RequestSeries(ORIGIN)
    series.add(requests(due, done))
    column = series.columns(9)["latency_p95_ms"]
    inside = (done >= 4) & (done < 9)
    np.testing.assert_allclose(column[8], np.percentile(1e3 * (done - due)[inside], 95), rtol=1e-4)


def test_too_few_samples_are_a_gap():
    series = RequestSeries(ORIGIN)
    series.add(requests(np.linspace(0, 0.9, 50), np.linspace(0.05, 0.95, 50)))
    columns = series.columns(1)
    assert np.isfinite(columns["latency_p50_ms"][0])
    assert np.isnan(columns["latency_p95_ms"][0])  # needs 90
    assert np.isnan(columns["latency_p99_ms"][0])  # needs 459


def test_many_small_steps_equal_one_big_step():
    rng = np.random.default_rng(2)
    due = np.sort(rng.uniform(0, 20, 20_000))
    done = due + rng.exponential(0.02, 20_000)
    order = np.argsort(done)
    whole, steps = RequestSeries(ORIGIN), RequestSeries(ORIGIN)
    whole.add(requests(due, done))
    for part in np.array_split(order, 40):
        steps.add(requests(due[part], done[part]))
    assert whole.seconds == steps.seconds
    for name, column in whole.columns(whole.seconds).items():
        np.testing.assert_allclose(steps.columns(steps.seconds)[name], column, rtol=1e-6, err_msg=name)


def test_a_second_without_anything_is_zero_requests_and_no_latency():
    series = RequestSeries(ORIGIN)
    series.add(requests([0.1] * 10, [0.2] * 10))
    series.add(requests([8.1] * 10, [8.2] * 10))
    columns = series.columns(9)
    assert columns["throughput_rps"][6] == 0
    assert np.isnan(columns["latency_p50_ms"][6])


def test_a_counter_that_falls_was_reset_and_never_counts_backwards():
    t = ORIGIN + np.array([0, 1, 2, 3]) * SECOND_NS
    grown = growth(t, np.array([100.0, 130.0, 20.0, 25.0]), ORIGIN, 3)
    np.testing.assert_allclose(grown, [30, 20, 5])


def test_seconds_outside_the_readings_are_unknown():
    t = ORIGIN + np.array([1, 2]) * SECOND_NS
    grown = growth(t, np.array([0.0, 5.0]), ORIGIN, 3)
    assert np.isnan(grown[[0, 2]]).all()
    assert grown[1] == 5


def test_the_last_reading_stands_until_the_readings_end():
    t = ORIGIN + np.array([0.5, 2.5]) * SECOND_NS
    shown = last_reading(t.astype(np.int64), np.array([10.0, 30.0]), ORIGIN, 5)
    np.testing.assert_array_equal(shown, [10, 10, 30, np.nan, np.nan])
