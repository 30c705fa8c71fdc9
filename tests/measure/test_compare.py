"""Truth: paper arithmetic, scipy's t, and many pairs of simulated servers whose difference is known."""

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import InputError
from lab.measure import compare as module
from lab.measure.compare import compare, compare_figures
from lab.measure.percentile import percentile
from lab.measure.records import OK, REFUSED, Requests, Window
from lab.measure.samples import measure_of
from lab.measure.segments import cut
from lab.measure.summary import summarize
from lab.spec import Slo

S = 1_000_000_000
SLO = Slo(latency_s=0.02)


def block(due_s, latency_s, refused=None):
    due = np.round(np.asarray(due_s) * S).astype(np.int64)
    done = due + np.round(np.broadcast_to(latency_s, due.shape) * S).astype(np.int64)
    outcome = np.full(len(due), OK, np.uint8)
    if refused is not None:
        outcome[refused], done[refused] = REFUSED, due[refused] + 100_000
    return Requests(due, due, done, outcome), Window(0, 0, 10 * S)


EVEN = np.arange(0, 10, 0.01)


def blocks(latency_s, repeats=3, seed=0, noise=0.02, **more):
    rng = np.random.default_rng(seed)
    return [block(EVEN, latency_s * rng.lognormal(0, noise, len(EVEN)), **more) for _ in range(repeats)]


# --- what the numbers are ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metric", ["throughput_rps", "goodput_rps", "latency_mean_s", "latency_p50_s", "latency_p99_s"]
)
def test_the_figures_of_one_block_are_the_summarys(metric):
    a, b = blocks(0.018, repeats=1, noise=0.1), blocks(0.016, repeats=1, noise=0.1)
    effect = compare(a, b, metric, SLO)
    for value, ((requests, window),) in ((effect.a, a), (effect.b, b)):
        summary = summarize(requests, window=window, planned=None, slo=SLO)
        assert value == pytest.approx(getattr(summary, metric), rel=1e-9)
    assert effect.ratio == pytest.approx(effect.b / effect.a)
    assert effect.difference == pytest.approx(effect.b - effect.a)


def test_a_percentile_of_repeats_is_of_the_pooled_requests():
    a = [block(EVEN, 0.001), block(EVEN, 0.003), block(EVEN, 0.005)]
    pooled = percentile(np.concatenate([np.full(1000, x) for x in (0.001, 0.003, 0.005)]), 0.95)
    assert compare(a, a, "latency_p95_s").a == pytest.approx(pooled)


def test_binned_percentiles_of_resamples_are_close_to_exact_ones():
    rng = np.random.default_rng(0)
    side = cut([block(EVEN, rng.exponential(0.01, len(EVEN))) for _ in range(3)], measure_of("latency_p99_s", None))
    assert side.estimate(side.sums.sum(axis=(0, 1))) == pytest.approx(side.whole, rel=0.01)


def test_student_is_scipys():
    for freedom in (3, 4, 5, 8, 12, 30, 1e6):
        assert module.student(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=2e-3)


def test_an_interval_from_repeats_alone_by_hand():
    """Log ratios 0.1, 0.2, 0.3: spread 0.1, moderated with the expected 0.02 as three repeats: see below."""
    a, b = [100.0, 100.0, 100.0], [100 * np.exp(x) for x in (0.1, 0.2, 0.3)]
    effect = compare_figures(a, b, "memory_peak_bytes")
    expected = 2 * 0.014**2
    moderated = (3 * expected + 2 * 0.1**2) / 5
    half = scipy.stats.t.ppf(0.975, 5) * np.sqrt(moderated / 3)
    assert np.log(effect.ci_high / effect.ci_low) / 2 == pytest.approx(half, rel=1e-3)
    assert effect.verdict == "higher"


def test_an_interval_from_one_repeat_by_hand():
    """b takes 8, 9, 10, 11, 12 ms in its five segments, a 10 ms throughout: the mean of five has the error
    s / √5 = 0.071 of it. Two starts add 0.014 each; t has 4 degrees of freedom for the first, 3 for the second."""
    a = [block(EVEN, 0.010)]
    b = [block(EVEN, np.repeat([0.008, 0.009, 0.010, 0.011, 0.012], 200))]
    effect = compare(a, b, "latency_mean_s")
    within, between = np.var([0.8, 0.9, 1.0, 1.1, 1.2], ddof=1) / 5, 2 * 0.014**2
    freedom = (within + between) ** 2 / (within**2 / 4 + between**2 / 3)
    half = scipy.stats.t.ppf(0.975, freedom) * np.sqrt(within + between)
    assert np.log(effect.ci_high / effect.ci_low) / 2 == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize(("where", "clumps"), [(slice(0, 1000, 50), 20), (slice(0, 20), 1), (slice(40, 60), 2)])
def test_clumps_count_the_places_where_the_slow_requests_came(where, clumps):
    """1,000 requests in 20 stretches of 50; 20 of them slow: one in each stretch, all in the first, ten in two."""
    latency = np.full(len(EVEN), 0.01)
    latency[where] = 0.1
    side = cut([block(EVEN, latency)], measure_of("latency_p98_s", None))
    assert side.clumps == pytest.approx(clumps)


def test_a_tail_from_a_single_stall_tells_nothing():
    """b has one stall in one of its repeats, and p99 is 10 times as high for that alone."""
    a, b = blocks(0.010, seed=1), blocks(0.010, seed=2)
    slow = np.full(len(EVEN), 0.010)
    slow[300:340] = 0.1
    b[1] = block(EVEN, slow)
    effect = compare(a, b, "latency_p99_s")
    assert effect.ratio > 5
    assert effect.verdict == "no detectable difference"
    assert "came in a few clumps" in effect.reason


# --- what is said -----------------------------------------------------------------------------------------------


def test_a_planted_slowdown_of_20_percent_is_found():
    effect = compare(blocks(0.010, seed=1), blocks(0.012, seed=2), "latency_p50_s")
    assert effect.verdict == "higher"
    assert effect.ci_low < 1.2 < effect.ci_high


def test_the_same_blocks_are_no_difference():
    a = blocks(0.010)
    for metric in ("goodput_rps", "throughput_rps", "latency_p99_s", "error_fraction"):
        assert compare(a, a, metric, SLO).verdict == "no detectable difference"


def test_swapping_the_sides_turns_the_ratio_over():
    a, b = blocks(0.010, seed=1), blocks(0.013, seed=2)
    there, back = compare(a, b, "latency_p50_s"), compare(b, a, "latency_p50_s")
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.ci_low == pytest.approx(1 / back.ci_high)
    assert (there.verdict, back.verdict) == ("higher", "lower")


def test_a_tail_with_too_few_samples_is_not_compared():
    """T24: 100 requests on each side have no p99."""
    a = [block(np.arange(0, 10, 0.1), 0.01)]
    effect = compare(a, a, "latency_p99_s")
    assert effect.verdict == "not comparable"
    assert effect.reason == "p99 needs 459 successes on each side, has 100 and 100"
    assert effect.a is None and effect.b is None  # withheld here too
    assert effect.ci_low is None


def test_a_server_that_refuses_half_is_never_declared_faster():
    """T11: a refuses every second request at once and is quick for the rest; b serves all of them slowly."""
    a = blocks(0.005, refused=np.arange(0, len(EVEN), 2))
    b = blocks(0.015)
    for metric in ("latency_p50_s", "latency_mean_s", "latency_p95_s"):
        forth, back = compare(a, b, metric, SLO), compare(b, a, metric, SLO)
        assert forth.verdict == back.verdict == "not comparable"
        assert forth.reason == "unequal completed load: 50 % of the requests failed against 0 %"
    throughput = compare(a, b, "throughput_rps", SLO)
    assert throughput.verdict == "higher"
    assert "unequal completed load" in throughput.reason


def test_a_server_that_fails_more_and_is_slower_is_slower():
    """What failed would have made it slower still."""
    a = blocks(0.005)
    b = blocks(0.015, refused=np.arange(0, len(EVEN), 2))
    assert compare(a, b, "latency_p50_s", SLO).verdict == "higher"


def test_from_nothing_to_something_has_a_difference_and_no_ratio():
    effect = compare(blocks(0.030), blocks(0.010), "goodput_rps", SLO)
    assert (effect.a, effect.ratio, effect.verdict) == (0, None, "higher")
    assert effect.difference == pytest.approx(100, rel=0.01)
    assert effect.difference_low > 0


def test_nothing_on_both_sides_is_no_difference():
    """T5: all failed on both sides; latency has no figure to compare."""
    a = blocks(0.01, refused=np.arange(len(EVEN)))
    assert compare(a, a, "throughput_rps").verdict == "no detectable difference"
    latency = compare(a, a, "latency_p50_s")
    assert latency.verdict == "not comparable"
    assert latency.reason == "there is no p50 on either side"


def test_no_blocks_are_not_comparable():
    assert compare([], [], "throughput_rps").verdict == "not comparable"
    assert compare_figures([], [], "memory_peak_bytes").verdict == "not comparable"
    assert compare_figures([None], [1.0], "memory_peak_bytes").verdict == "not comparable"


def test_repeats_without_a_partner_are_left_out():
    a, b = blocks(0.010, repeats=3), blocks(0.010, repeats=2)
    assert compare(a, b, "throughput_rps").a == pytest.approx(compare(a[:2], b, "throughput_rps").a)


def test_an_unknown_metric_and_a_missing_objective_are_named():
    with pytest.raises(InputError, match=r"latency_p99.*allowed"):
        compare([], [], "latency_p99", SLO)
    with pytest.raises(InputError, match="needs an objective"):
        compare([], [], "goodput_rps")


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(0, 400), st.integers(0, 10_000))
def test_any_records_give_a_finding_without_nan(repeats, n, seed):
    rng = np.random.default_rng(seed)

    def any_blocks():
        return [
            block(np.sort(rng.uniform(0, 10, n)), rng.exponential(0.01, n), refused=rng.random(n) < rng.random())
            for _ in range(repeats)
        ]

    a, b = any_blocks(), any_blocks()
    for metric in ("goodput_rps", "slo_attainment_fraction", "error_fraction", "latency_mean_s", "latency_p90_s"):
        effect = compare(a, b, metric, SLO)
        numbers = [value for value in vars(effect).values() if isinstance(value, float)]
        assert np.isfinite(numbers).all()
        if effect.ci_low is not None:
            assert 0 < effect.ci_low <= effect.ratio <= effect.ci_high


# --- how often it is wrong --------------------------------------------------------------------------------------


PAIRS = 20
METRICS = ("goodput_rps", "throughput_rps", "latency_p50_s", "latency_p99_s")


def pair(rng, *, load, slowdown=1.0, repeats=3, end_s=6.0, service_s=0.001):
    """Two settings of a queue with one server under one schedule: a request takes 1 ms, give or take 5 %, every five
    seconds comes a stall of some 5 ms, and each start of the server is faster or slower by 1 %, as starts are."""
    due_s = np.cumsum(rng.exponential(service_s / load, int(1.2 * end_s * load / service_s)))
    due_s = due_s[due_s < end_s]

    def served(factor):
        took = service_s * factor * rng.lognormal(0, 0.01) * rng.normal(1, 0.05, len(due_s))
        stalled = rng.integers(0, len(due_s), rng.poisson(end_s / 5))
        np.add.at(took, stalled, rng.exponential(0.005, len(stalled)))
        work = np.cumsum(took)
        done_s = work + np.maximum.accumulate(due_s - (work - took))  # Lindley's recursion, unrolled
        due, done = (np.round(t * S).astype(np.int64) for t in (due_s, done_s))
        return Requests(due, due, done, np.full(len(due), OK, np.uint8)), Window(0, S, round(end_s * S))

    return [[served(factor) for _ in range(repeats)] for factor in (1.0, slowdown)]


@pytest.mark.parametrize(("load", "repeats", "end_s"), [(0.1, 3, 6.0), (0.8, 3, 6.0), (0.8, 1, 3.0), (1.2, 3, 4.0)])
def test_equal_settings_come_out_as_no_detectable_difference(load, repeats, end_s):
    """S13: at least 18 of 20 pairs, for each metric. Neighbouring requests share queues here, as they do in truth."""
    rng = np.random.default_rng(13)
    wrong = dict.fromkeys(METRICS, 0)
    for _ in range(PAIRS):
        a, b = pair(rng, load=load, repeats=repeats, end_s=end_s)
        for metric in METRICS:
            wrong[metric] += compare(a, b, metric, SLO).verdict in ("higher", "lower")
    assert max(wrong.values()) <= PAIRS - 18, wrong


@pytest.mark.parametrize(("load", "metric"), [(0.1, "latency_p50_s"), (0.8, "latency_p50_s"), (1.2, "throughput_rps")])
def test_a_slowdown_of_20_percent_is_found_in_a_queue(load, metric):
    """S13: planted in the service time; above saturation it shows in throughput."""
    rng = np.random.default_rng(14)
    expected = "lower" if metric == "throughput_rps" else "higher"
    pairs = [pair(rng, load=load, slowdown=1.2) for _ in range(5)]
    assert [compare(a, b, metric, SLO).verdict for a, b in pairs] == [expected] * 5
