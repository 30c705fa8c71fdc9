"""Truth: rates and latencies that were put in."""

import numpy as np

from lab.measure.records import OK, Requests, Window
from lab.measure.steady import steadiness

S = 1_000_000_000


def block(due_s, latency_s):
    due = (np.asarray(due_s) * S).astype(np.int64)
    done = due + (np.broadcast_to(latency_s, due.shape) * S).astype(np.int64)
    return Requests(due, due, done, np.full(len(due), OK, np.uint8))


def test_even_load_is_steady():
    found = steadiness(block(np.arange(0, 9, 0.01), 0.005), Window(0, 0, 9 * S))
    assert found.steady
    assert found.throughput_rps == (100, 100, 100)


def test_poisson_arrivals_at_a_low_rate_are_steady():
    """15/s for 9 s: 45 ± 7 a third, far from 10 %, and nothing is wrong. At most a few in a hundred may look so."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        due = np.sort(rng.uniform(0, 9, rng.poisson(135)))
        wrong += not steadiness(block(due, rng.gamma(4, 0.001, len(due))), Window(0, 0, 9 * S)).steady
    assert wrong <= 5


def test_a_growing_backlog_is_unsteady_and_named():
    due = np.arange(0, 9, 0.01)
    found = steadiness(block(due, 0.01 + due / 6), Window(0, 0, 9 * S))
    assert not found.steady
    assert found.backlog_grows


def test_a_rate_that_drops_in_the_last_third_is_unsteady():
    due = np.concatenate([np.arange(0, 6, 0.01), np.arange(6, 9, 0.02)])
    found = steadiness(block(due, 0.005), Window(0, 0, 9 * S))
    assert not found.steady
    assert not found.backlog_grows


def test_few_successes_say_nothing():
    assert steadiness(block(np.arange(0, 9, 0.5), 0.005), Window(0, 0, 9 * S)) is None
