"""Truth: cases with a known answer (MEASUREMENT.md T…, cases/reports.md P…), and a second, slow implementation."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.measure.percentile import needed
from lab.measure.records import OUTCOMES, Requests, Window
from lab.measure.server import server_delta
from lab.measure.summary import Summary, summarize
from lab.spec import Slo
from tests.measure.rows import codes, even

MS = 1_000_000


# --- cases with a known answer ----------------------------------------------------------------------------------


def test_eight_arrivals_at_a_serial_server(requests_of, window_of):
    """T3: due every 100 ms, one at a time, 500 ms each. p99 is withheld at n = 8; interpolation gives 3272 ms."""
    rows = [(100 * i, 500 * i, 500 * (i + 1), "ok") for i in range(8)]
    summary = summarize(requests_of(rows), window=window_of(4001), planned=8, slo=None)
    assert summary.latency_mean_s == pytest.approx(1.9)
    assert summary.latency_p50_s == pytest.approx(1.9)
    assert summary.latency_max_s == pytest.approx(3.3)
    assert summary.send_lag_mean_s == pytest.approx(1.4)
    assert summary.service_mean_s == pytest.approx(0.5)
    assert summary.latency_p99_s is None
    assert "client_limited" in codes(summary)


def test_a_freeze_is_many_slow_requests(requests_of, window_of):
    """T4: 100/s for 30 s, the server frozen from 12 s to 18 s: 600 of 3000 wait 6 s … 0 s, so p90 is 3 s."""
    rows = []
    for i in range(3000):
        due = i * 10.0
        rows.append((due, due, max(due, 18_000.0) + 1 if 12_000 <= due < 18_000 else due + 1, "ok"))
    summary = summarize(requests_of(rows), window=window_of(30_000), planned=3000, slo=Slo(latency_s=0.1))
    assert summary.latency_p90_s == pytest.approx(3.0, rel=0.02)
    assert summary.latency_p50_s == pytest.approx(0.001)
    assert summary.latency_max_s == pytest.approx(6.0, rel=0.01)
    assert summary.slo_attainment_fraction == pytest.approx(0.80, abs=0.005)
    assert "unsteady" in codes(summary)


def test_every_request_fails(requests_of, window_of):
    """T5, P22b."""
    summary = summarize(
        requests_of(even(50, 0.2, outcome="refused"), detail="connection refused"),
        window=window_of(500),
        planned=50,
        slo=Slo(latency_s=0.1),
    )
    assert summary.throughput_rps == 0
    assert summary.goodput_rps == 0
    assert summary.slo_attainment_fraction == 0
    assert summary.error_fraction == 1
    assert summary.refused == 50
    assert summary.latency_mean_s is None
    assert summary.latency_p50_s is None
    (problem,) = [problem for problem in summary.problems if problem.code == "no_success"]
    assert problem.forbids_verdict
    assert "50 refused" in problem.text
    assert "connection refused" in problem.text


def test_fast_failures_stay_out_of_latency_and_throughput(requests_of, window_of):
    """P22a: 1000 ok at 100 ms and 50 instant 503: error rate 4.76 %."""
    rows = even(1000, 100, gap_ms=10) + even(50, 0.1, gap_ms=200, outcome="error")
    requests = requests_of(rows, detail="503")
    summary = summarize(requests, window=window_of(10_100), planned=1050, slo=Slo(latency_s=0.2))
    assert summary.error_fraction == pytest.approx(0.0476, abs=5e-5)
    assert summary.latency_p50_s == pytest.approx(0.1)
    assert summary.latency_mean_s == pytest.approx(0.1)
    assert summary.throughput_rps == pytest.approx(1000 / 10.1)
    assert summary.goodput_rps == pytest.approx(1000 / 10.1)
    assert summary.slo_attainment_fraction == pytest.approx(1000 / 1050)
    assert "4.76 %" in next(problem.text for problem in summary.problems if problem.code == "failures")


def test_a_short_window_gives_the_rate_of_that_window(requests_of, window_of):
    """T20: 20 requests, all done within 0.4 s, are 50 req/s."""
    rows = even(20, 19, gap_ms=20)
    summary = summarize(requests_of(rows), window=window_of(400), planned=20, slo=None)
    assert summary.throughput_rps == pytest.approx(50)


def test_thirty_samples_have_no_p99(requests_of, window_of):
    """T24, S6: withheld with the count it needs, the count it has and the largest seen."""
    rows = [*even(29, 5), (290, 290, 302, "ok")]
    summary = summarize(requests_of(rows), window=window_of(400), planned=30, slo=None)
    assert summary.latency_p99_s is None
    assert summary.latency_p99_low_s is None
    assert summary.notes["latency_p99_s"] == "needs 459 successes, has 30; largest seen 12.0 ms"
    assert summary.latency_p50_s == pytest.approx(0.005)
    problem = next(problem for problem in summary.problems if problem.code == "too_few_samples")
    assert "459" in problem.text
    assert "6.12 s" in problem.remedy  # 30 in 0.4 s: 459 take 0.4 × 459 / 30


@pytest.mark.parametrize("n", [1, 2, 10, 458, 459, 10_000])
def test_percentiles_are_numpys_or_withheld(n, window_of):
    """S6: numpy on the raw list, from the count that the percentile needs."""
    rng = np.random.default_rng(n)
    due = np.arange(n) * MS
    took = rng.integers(MS, 900 * MS, n)
    requests = Requests(due, due, due + took, np.zeros(n, np.uint8))
    summary = summarize(requests, window=window_of(n + 1000), planned=n, slo=None)
    for name, p in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        shown = getattr(summary, f"latency_{name}_s")
        if n < needed(p):
            assert shown is None
        else:
            assert shown == pytest.approx(np.quantile(took, p) / 1e9, rel=1e-12)


def test_identical_inputs_answered_from_the_cache(requests_of, window_of, server_table):
    """P23, T28: 5 answers, 4 of them from the cache; throughput counts answers, not inferences."""
    counters = {"success_count": 5, "cache_hit_count": 4, "inference_count": 1, "execution_count": 1}
    table = server_table({0: dict.fromkeys(counters, 0), 1000: counters})
    summary = summarize(
        requests_of(even(5, 1, gap_ms=200)),
        window=window_of(1000),
        planned=5,
        slo=None,
        server=server_delta(table, "digits", 0, 1000 * MS),
    )
    assert summary.cache_hit_fraction == pytest.approx(0.8)
    assert summary.throughput_rps == pytest.approx(5)
    problem = next(problem for problem in summary.problems if problem.code == "cache_warm")
    assert problem.forbids_verdict
    assert "80 %" in problem.text


@pytest.mark.parametrize(("rows", "n"), [([], 0), ([(0, 0, 5, "ok")], 1), ([(0, 0, 5, "ok"), (5, 5, 9, "ok")], 2)])
def test_no_one_and_two_requests_summarise(requests_of, window_of, rows, n):
    """T34: whatever is there; every None says why; the JSON document gives the same summary back."""
    summary = summarize(requests_of(rows), window=window_of(10), planned=n, slo=Slo(latency_s=0.1))
    assert summary.ok == n
    assert summary.throughput_rps == pytest.approx(100 * n)
    assert Summary.from_dict(json.loads(json.dumps(summary.to_dict()))) == summary


def test_littles_law_holds_exactly_for_a_closed_steady_set(requests_of, window_of):
    """S8: 2 users without think time, 100 ms each: 2 in flight, 20/s."""
    rows = [(100 * i, 100 * i, 100 * (i + 1), "ok") for i in range(-1, 51) for _user in range(2)]
    summary = summarize(requests_of(rows), window=window_of(5000), planned=None, slo=None, closed_loop=True)
    assert summary.in_flight_mean == pytest.approx(2.0)
    assert summary.little_ratio == pytest.approx(1.0)
    assert "closed_loop" in codes(summary)


def test_littles_law_holds_within_5_percent_for_a_queue(window_of):
    """S8 on a simulated M/D/1 queue at 80 % load, 2 ms each: 0.8 + 0.8² / (2 × 0.2) = 2.4 in the system."""
    rng = np.random.default_rng(5)
    due = np.cumsum(rng.exponential(2.5e6, 30_000)).astype(np.int64)
    done, free = np.zeros_like(due), 0
    for i, t in enumerate(due.tolist()):
        free = max(free, t) + 2 * MS
        done[i] = free
    requests = Requests(due, due, done, np.zeros(len(due), np.uint8))
    summary = summarize(requests, window=window_of(70_000, 5_000), planned=None, slo=None)
    assert summary.little_ratio == pytest.approx(1.0, abs=0.05)
    assert summary.in_flight_mean == pytest.approx(2.4, rel=0.1)


def test_intervals_hold_the_truth_although_neighbours_share_their_fate(window_of):
    """A stall slows 50 requests in a row. Taken for independent, they would make the p95 look far surer than it is:
    of 200 runs, the truth (pooled over all of them) must lie in the 95 % interval of at least 180."""
    rng = np.random.default_rng(8)
    runs = []
    for _ in range(200):
        due = np.arange(0, 10_000 * MS, 5 * MS)
        slow = np.repeat(rng.random(40) < 0.06, 50)
        took = np.round(MS * np.where(slow, rng.uniform(20, 200, 2000), rng.uniform(1, 5, 2000))).astype(np.int64)
        runs.append(Requests(due, due, due + took, np.zeros(2000, np.uint8)))
    truth = np.quantile(np.concatenate([run.done_ns - run.due_ns for run in runs]), 0.95) / 1e9
    summaries = [summarize(run, window=window_of(10_000), planned=2000, slo=None) for run in runs]
    held = sum(
        (s.latency_p95_low_s or 0) <= truth <= (float("inf") if s.latency_p95_high_s is None else s.latency_p95_high_s)
        for s in summaries
    )
    assert held >= 180


# --- windows, clocks and what is live ---------------------------------------------------------------------------


def test_a_slow_tail_is_not_cut_off_at_the_windows_end(requests_of, window_of):
    """Latency: due in the window, whenever answered. Throughput: answered in the window, whenever due."""
    rows = [(-5, -5, 5, "ok"), *even(9, 1), (90, 90, 2000, "ok"), (101, 101, 102, "ok")]
    summary = summarize(requests_of(rows), window=window_of(100), planned=12, slo=None)
    assert summary.latency_n == 10
    assert summary.latency_max_s == pytest.approx(1.910)
    assert summary.throughput_rps == pytest.approx(100)
    assert summary.offered_rps == pytest.approx(100)


def test_warm_up_enters_no_figure_but_the_counts(requests_of, window_of):
    rows = even(50, 400) + even(50, 2, first_ms=500)
    summary = summarize(requests_of(rows), window=window_of(1000, 500), planned=100, slo=None)
    assert summary.ok == 100
    assert summary.latency_max_s == pytest.approx(0.002)
    assert summary.window_s == pytest.approx(0.5)


def test_live_equals_final_on_the_records_so_far(requests_of, window_of):
    rows = even(200, 30)
    now_ms = 1234
    so_far = [row for row in rows if row[2] <= now_ms]
    arguments = {"window": window_of(2000, 100), "planned": 200, "slo": Slo(latency_s=0.02), "now_ns": now_ms * MS}
    assert summarize(requests_of(rows), **arguments) == summarize(requests_of(so_far), **arguments)


def test_live_past_the_end_gives_the_final_figures(requests_of, window_of):
    arguments = {"window": window_of(2000, 100), "planned": 200, "slo": Slo(latency_s=0.02)}
    final = summarize(requests_of(even(200, 30)), **arguments)
    live = summarize(requests_of(even(200, 30)), **arguments, now_ns=9000 * MS)
    for name in ("throughput_rps", "goodput_rps", "latency_p95_s", "in_flight_mean", "error_fraction", "sent"):
        assert getattr(live, name) == getattr(final, name)


def test_live_offered_load_does_not_shrink_with_the_backlog(requests_of, window_of):
    """100/s arrive, 50/s are served in order: after 10 s the newest answered request arrived at 5 s."""
    rows = [(10 * i, 10 * i, 20 * (i + 1), "ok") for i in range(1000)]
    live = summarize(requests_of(rows), window=window_of(20_000), planned=1000, slo=None, now_ns=10_000 * MS)
    assert live.offered_rps == pytest.approx(100, rel=0.01)
    assert live.throughput_rps == pytest.approx(50, rel=0.01)
    assert live.dropped is None


def test_before_the_window_begins_there_is_nothing(requests_of, window_of):
    summary = summarize(
        requests_of(even(5, 1)), window=window_of(2000, 1000), planned=200, slo=Slo(latency_s=0.02), now_ns=100 * MS
    )
    assert summary.window_s is None
    assert summary.throughput_rps is None
    assert summary.notes["throughput_rps"] == "the measured window has not begun"
    assert summary.sent == 5


# --- any set of records -----------------------------------------------------------------------------------------

END_MS, FROM_MS = 400, 50


@st.composite
def records(draw, min_size=0):
    rows = []
    for _ in range(draw(st.integers(min_size, 60))):
        due = draw(st.integers(0, 500))
        outcome = draw(st.sampled_from(OUTCOMES))
        lag = draw(st.integers(0, 40))
        sent = None if outcome != "ok" and draw(st.booleans()) else due + lag
        rows.append((due, sent, due + lag + draw(st.integers(0, 200)), outcome))
    return rows


def flat(summary):
    """Every figure of a summary, without the prose."""
    return {
        f.name: getattr(summary, f.name) for f in dataclasses.fields(Summary) if f.name not in ("notes", "problems")
    }


@given(rows=records(), objective_ms=st.integers(1, 200))
def test_a_second_implementation_agrees(requests_of, window_of, rows, objective_ms):
    """Loops over rows, and an event sweep for the requests in flight."""
    summary = summarize(
        requests_of(rows),
        window=window_of(END_MS, FROM_MS),
        planned=len(rows),
        slo=Slo(latency_s=objective_ms / 1000),
    )
    window_s = (END_MS - FROM_MS) / 1000
    due = [row for row in rows if FROM_MS <= row[0] < END_MS]
    ended = [row for row in rows if FROM_MS <= row[2] < END_MS]
    good = [row for row in rows if row[3] == "ok" and row[2] - row[0] <= objective_ms]
    took = sorted(row[2] - row[0] for row in due if row[3] == "ok")
    lags = sorted(row[1] - row[0] for row in due if row[1] is not None)
    assert summary.offered_rps == pytest.approx(len(due) / window_s)
    assert summary.throughput_rps == pytest.approx(sum(row[3] == "ok" for row in ended) / window_s)
    assert summary.goodput_rps == pytest.approx(sum(row in ended for row in good) / window_s)
    if due:
        assert summary.slo_attainment_fraction == pytest.approx(sum(row in due for row in good) / len(due))
    told = [row for row in due if row[3] != "cancelled" or row[1] is None]  # but what was under way at a stop
    if told:
        assert summary.error_fraction == pytest.approx(sum(row[3] != "ok" for row in told) / len(told))
    assert summary.latency_n == len(took)
    if took:
        assert summary.latency_mean_s == pytest.approx(math.fsum(took) / len(took) / 1000)
        assert summary.latency_max_s == pytest.approx(took[-1] / 1000)
    assert summary.latency_p50_s == (pytest.approx(np.median(took) / 1000) if len(took) >= 7 else None)
    if lags:
        assert summary.send_lag_p99_s == pytest.approx(np.quantile(lags, 0.99) / 1000)
    sent = [(row[1], row[2]) for row in rows if row[1] is not None]
    assert summary.in_flight_mean * window_s * 1000 == pytest.approx(swept_ms(sent))
    if summary.little_ratio is not None:
        in_system = swept_ms([(row[0], row[2]) for row in rows if row[3] == "ok"]) / 1000 / window_s
        assert summary.little_ratio == pytest.approx(in_system / (summary.throughput_rps * summary.latency_mean_s))


def swept_ms(spans):
    events = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    total, in_flight, last = 0.0, 0, FROM_MS
    for t, step in events:
        here = min(max(t, FROM_MS), END_MS)
        total += in_flight * (here - last)
        in_flight, last = in_flight + step, here
    return total


@given(rows=records(), unplanned=st.integers(0, 20))
def test_counts_add_up(requests_of, window_of, rows, unplanned):
    """S7."""
    planned = len(rows) + unplanned
    summary = summarize(requests_of(rows), window=window_of(END_MS, FROM_MS), planned=planned, slo=None)
    assert summary.planned == summary.sent + summary.dropped
    assert summary.sent == sum(getattr(summary, outcome) for outcome in OUTCOMES)


@given(rows=records())
def test_percentiles_rise_and_goodput_is_within_throughput(requests_of, window_of, rows):
    summary = summarize(requests_of(rows), window=window_of(END_MS), planned=len(rows), slo=Slo(latency_s=0.05))
    names = ("p50", "p90", "p95", "p99", "p999", "max")
    shown = [value for name in names if (value := getattr(summary, f"latency_{name}_s")) is not None]
    assert shown == sorted(shown)
    assert summary.goodput_rps <= summary.throughput_rps
    for name in ("p50", "p95", "p99"):
        value = getattr(summary, f"latency_{name}_s")
        low, high = getattr(summary, f"latency_{name}_low_s"), getattr(summary, f"latency_{name}_high_s")
        if value is not None:
            assert low is None or low <= value
            assert high is None or value <= high


@given(rows=records(), seed=st.integers(0, 99))
def test_the_order_of_rows_changes_nothing(requests_of, window_of, rows, seed):
    """Two load workers write two streams; pooled in any order they are one block."""
    shuffled = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    arguments = {"window": window_of(END_MS, FROM_MS), "planned": len(rows), "slo": Slo(latency_s=0.05)}
    one, two = summarize(requests_of(rows), **arguments), summarize(requests_of(shuffled), **arguments)
    assert one == two


@given(rows=records(), objective=st.sampled_from([None, Slo(latency_s=0.05)]), live=st.booleans())
def test_whatever_is_none_says_why_and_survives_json(requests_of, window_of, rows, objective, live):
    summary = summarize(
        requests_of(rows),
        window=window_of(END_MS, FROM_MS),
        planned=None,
        slo=objective,
        now_ns=200 * MS if live else None,
    )
    missing = {name for name, value in flat(summary).items() if value is None}
    assert missing == set(summary.notes)
    assert all(reason.strip() and "\n" not in reason for reason in summary.notes.values())
    text = json.dumps(summary.to_dict(), allow_nan=False)
    assert Summary.from_dict(json.loads(text)) == summary


def test_a_window_that_is_empty_divides_by_nothing(requests_of):
    summary = summarize(requests_of(even(5, 1)), window=Window(0, 10, 10), planned=5, slo=Slo(latency_s=1))
    assert summary.throughput_rps is None
    assert summary.in_flight_mean is None


def test_timeouts_that_end_after_the_window_are_failures_of_the_window(requests_of, window_of):
    # A model that hangs from 4 s on: its requests give up 10 s after they were due, long after the window of 6 s.
    rows = [(ms, ms, ms + 10, "ok") for ms in range(0, 4000, 10)]
    rows += [(ms, ms, ms + 10_000, "timeout") for ms in range(4000, 6000, 10)]
    summary = summarize(requests_of(rows), window=window_of(6000), planned=len(rows), slo=None)
    assert summary.error_fraction == pytest.approx(200 / 600)
    failures = next(problem for problem in summary.problems if problem.code == "failures")
    assert "200 timeout" in failures.text
