"""A runner that scales to zero, simulated: by paper arithmetic, and against what Poisson arrivals must give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.measure.serverless_sim import Rules, simulate


def test_one_worker_by_hand() -> None:
    """Start 2 s, service 1 s, gone after 3 s idle. Arrivals at 0, 4, 20: cold; warm (idle 3 to 4); cold again."""
    run = simulate([0.0, 4.0, 20.0], [1.0], [2.0], Rules(3.0), span_s=30.0)
    assert run.latency_s.tolist() == [3.0, 1.0, 3.0] and run.cold.tolist() == [True, False, True]
    # up 0 to 8 (start 2, busy 1, idle 1, busy 1, idle 3) and 20 to 26 (start 2, busy 1, idle 3)
    assert (run.starts, run.start_s, run.busy_s, run.idle_s) == (2, 4.0, 3.0, 7.0)
    assert run.up_s == 14.0 and run.cold_fraction == pytest.approx(2 / 3)


def test_who_comes_while_a_worker_comes_up_is_cold_too_and_first_come_is_first_served() -> None:
    run = simulate([0.0, 0.5, 1.0], [1.0], [2.0], Rules(5.0, concurrency=2), span_s=10.0)
    assert run.latency_s.tolist() == [3.0, 2.5, 3.0]  # the third waits for the first's place
    assert run.cold.tolist() == [True, True, False] and run.starts == 1


def test_more_wait_than_have_room_so_another_worker_comes() -> None:
    run = simulate([0.0, 0.0, 0.0], [1.0], [2.0], Rules(5.0, max_workers=3), span_s=20.0)
    assert run.starts == 3 and run.latency_s.tolist() == [3.0, 3.0, 3.0]
    assert simulate([0.0, 0.0, 0.0], [1.0], [2.0], Rules(5.0, max_workers=1)).latency_s.tolist() == [3.0, 4.0, 5.0]


def test_a_worker_that_is_kept_warm_makes_nobody_wait_and_is_paid_for_all_hours() -> None:
    run = simulate([0.0, 100.0], [1.0], [2.0], Rules(3.0, keep_warm=1), span_s=200.0)
    assert run.cold_fraction == 0 and run.latency_s.tolist() == [1.0, 1.0]
    assert run.up_s == pytest.approx(200.0) and run.starts == 0


def test_seconds_beyond_the_span_are_not_counted() -> None:
    run = simulate([0.0], [10.0], [2.0], Rules(50.0), span_s=5.0)
    assert (run.start_s, run.busy_s, run.idle_s) == (2.0, 3.0, 0.0)


@pytest.mark.parametrize("rate", [0.05, 0.2, 1.0])
def test_poisson_gaps_longer_than_the_timeout_are_the_cold_ones(rate: float) -> None:
    """Without start and service times: exp(-rate × idle) cold, up for 1 - exp(-rate × idle) of the time."""
    arrivals = np.cumsum(np.random.default_rng(3).exponential(1 / rate, 20_000))
    run = simulate(arrivals, [0.0], [0.0], Rules(5.0))
    assert run.cold_fraction == pytest.approx(math.exp(-5 * rate), abs=0.012)
    assert run.up_s / run.span_s == pytest.approx(1 - math.exp(-5 * rate), abs=0.012)


def test_all_time_is_start_busy_or_idle_of_one_worker_at_most() -> None:
    arrivals = np.cumsum(np.random.default_rng(5).exponential(2.0, 500))
    run = simulate(arrivals, [0.5, 1.5], [1.0, 3.0], Rules(4.0), seed=2)
    assert run.up_s <= run.span_s + 1e-6
    assert run.busy_s == pytest.approx(500 * 1.0, rel=0.1)  # one at a time: each request's service
    again = simulate(arrivals, [0.5, 1.5], [1.0, 3.0], Rules(4.0), seed=2)
    assert np.array_equal(again.latency_s, run.latency_s)


def test_nobody_asks() -> None:
    run = simulate([], [1.0], [1.0], Rules(3.0), span_s=10.0)
    assert run.cold_fraction is None and run.up_s == 0 and len(run.latency_s) == 0
