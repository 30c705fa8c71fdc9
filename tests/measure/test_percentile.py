"""Truth: MLPerf LoadGen's sample counts, numpy's quantile, scipy's binomial, and coverage on simulated samples."""

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from lab.measure.percentile import interval, needed, ordered_at, percentile, percentile_of_sorted


@pytest.mark.parametrize(("p", "count"), [(0.5, 7), (0.9, 44), (0.95, 90), (0.99, 459), (0.999, 4603)])
def test_needed_is_loadgens_count(p, count):
    assert needed(p) == count


def test_ten_values_interpolate_linearly():
    """T23: 1 … 10 ms."""
    values = np.arange(1, 11)
    assert [percentile(values, p) for p in (0.5, 0.9, 0.99, 1)] == [5.5, pytest.approx(9.1), pytest.approx(9.91), 10]


def test_no_values_have_no_percentile():
    assert percentile([], 0.5) is None


@given(
    st.lists(st.integers(0, 10**13), min_size=1, max_size=60),
    st.floats(0, 1),
)
def test_percentile_is_numpys(values, p):
    assert percentile(values, p) == pytest.approx(float(np.quantile(np.array(values), p)), rel=1e-9, abs=1e-6)


@given(st.lists(st.integers(0, 10**13), max_size=60), st.lists(st.floats(0, 1), max_size=4))
def test_values_ordered_only_where_it_matters_have_the_same_percentiles(values, quantiles):
    array = np.array(values, dtype=np.int64)
    partly = ordered_at(array, quantiles)
    assert sorted(partly.tolist()) == sorted(values)
    assert [percentile_of_sorted(partly, p) for p in quantiles] == [percentile(array, p) for p in quantiles]
    assert not values or partly[-1] == max(values)


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=60))
def test_percentiles_rise_with_p_and_end_at_the_maximum(values):
    """P21: 1, 2, 53 samples; the maximum is never below a percentile."""
    found = [percentile(values, p) for p in (0.5, 0.9, 0.95, 0.99, 0.999, 1)]
    assert found == sorted(found)
    assert found[-1] == max(values)


def brute_force_ranks(n, p, tail):
    """Straight from the definition, with scipy's binomial."""
    below = max((rank for rank in range(1, n + 1) if scipy.stats.binom.cdf(rank - 1, n, p) <= tail), default=None)
    above = min((rank for rank in range(1, n + 1) if scipy.stats.binom.cdf(rank - 1, n, p) >= 1 - tail), default=None)
    return below, above


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 2, 7, 44, 100, 459, 1000])
def test_interval_ranks_are_the_binomials(n, p):
    """Values equal to their own rank give the ranks away."""
    low, high = interval(np.arange(1, n + 1), p)
    below, above = brute_force_ranks(n, p, 0.025)
    assert (low, high) == (below, above)


def test_interval_of_a_thousand_brackets_the_p99_between_the_983rd_and_996th():
    """UX.md quotes this bracket (by the normal approximation) as "roughly"."""
    low, high = interval(np.arange(1, 1001), 0.99)
    assert abs(low - 983) <= 1
    assert abs(high - 996) <= 1


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99])
def test_both_sides_are_bounded_once_the_percentile_is_shown(p):
    low, high = interval(np.arange(needed(p)), p)
    assert low is not None
    assert high is not None


def test_a_million_values_have_an_interval_close_to_the_normal_approximation():
    n, p = 1_000_000, 0.99
    low, high = interval(np.arange(1, n + 1), p)
    half = 1.96 * (n * p * (1 - p)) ** 0.5
    assert low == pytest.approx(n * p - half, abs=2)
    assert high == pytest.approx(n * p + half, abs=2)


@pytest.mark.parametrize(("n", "p"), [(50, 0.5), (200, 0.95), (1000, 0.99)])
def test_interval_covers_the_truth_in_95_percent_of_samples(n, p):
    rng = np.random.default_rng(1)
    truth = scipy.stats.expon.ppf(p)
    covered = 0
    for _ in range(1000):
        low, high = interval(np.sort(rng.exponential(size=n)), p)
        covered += (low is None or low <= truth) and (high is None or truth <= high)
    assert 0.94 <= covered / 1000 <= 0.99


def test_fewer_independent_samples_widen_the_interval():
    values = np.arange(1, 10_001)
    low, high = interval(values, 0.9)
    wider_low, wider_high = interval(values, 0.9, effective_n=100)
    assert wider_low < low < high < wider_high
    assert interval(values, 0.99, effective_n=50)[1] is None
