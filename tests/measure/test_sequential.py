"""The tests that may be looked at any time: their formula by other arithmetic, their error by simulation."""

from __future__ import annotations

import math

import numpy as np
from scipy import integrate, stats

from lab.measure.sequential import RATIOS, Events, Firsts, rate_bounds


def test_evidence_is_the_mean_of_likelihood_ratios() -> None:
    events = Events()
    events.add(0.05, [2], [7])
    events.add(0.25, [3], [1])
    ratios = []
    for ratio in RATIOS:
        log = 0.0
        for share, ours, theirs in ((0.05, 2, 7), (0.25, 3, 1)):
            under = share * ratio / (share * ratio + 1 - share)
            log += stats.binom.logpmf(ours, ours + theirs, under) - stats.binom.logpmf(ours, ours + theirs, share)
        ratios.append(math.exp(log))
    assert math.isclose(math.exp(events.log_more()[0]), float(np.mean(ratios)), rel_tol=1e-9)
    assert math.isclose(events.expected()[0], 0.05 * 9 + 0.25 * 4)


def test_nothing_is_compared_where_nothing_was_drawn() -> None:
    events = Events()
    for share in (0.0, 1.0):
        events.add(share, [5], [0])
    assert events.total()[0] == 0 and events.log_more()[0] == 0


def test_alike_versions_are_seldom_told_apart_however_often_one_looks() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(1000):
        share = 0.25
        ours = random.random(400) < share  # whose each event was
        events = Events(400)
        events.by_share[share] = np.arange(1.0, 401)
        events.challenger = np.cumsum(ours).astype(float)
        wrong += bool(events.log_more().max() >= math.log(1 / 0.05))  # a look after each event
    assert wrong <= 68  # 1000 × 0.05 and 2.6 standard deviations


def test_user_is_one_event_in_each_column_however_often_it_is_harmed() -> None:
    firsts = Firsts(np.array([1.0, 2.0, 3.0]))
    assert firsts.add(np.array([1.5, 2.5, 0.5])).tolist() == [2, 1, 0]  # each drawn by itself
    assert firsts.add(np.array([1.5, 1.9, 1.5]), ["ann", "ann", None]).tolist() == [2, 0, 0]
    assert firsts.add(np.array([2.5]), ["ann"]).tolist() == [0, 1, 0]  # worse than ever
    assert firsts.add(np.array([2.5, 1.2, 9.0]), ["ann", "ann", "bob"]).tolist() == [1, 1, 1]
    assert firsts.add(np.zeros(0)).tolist() == firsts.add(np.array([0.5]), ["cem"]).tolist() == [0, 0, 0]
    assert firsts.worst == {"ann": 2.5, "bob": 9.0}  # who was not harmed is not kept


def test_written_and_read_it_is_the_same() -> None:
    events = Events(3)
    events.add(0.01, [1, 2, 3], [4, 5, 6])
    again = Events.from_dict(events.to_dict())
    assert np.array_equal(again.log_fewer(), events.log_fewer()) and again.by_share.keys() == {0.01}


def test_rate_bounds_are_where_the_mixture_reaches_its_bar() -> None:
    """The mixture by numerical integration, over Jeffreys' prior."""

    def mixture(rate: float, events: int, trials: int) -> float:
        def integrand(p: float) -> float:
            return float(stats.binom.pmf(events, trials, p) * stats.beta.pdf(p, 0.5, 0.5))

        whole = integrate.quad(integrand, 0, 1, points=[events / trials], limit=200)[0]
        return float(whole / stats.binom.pmf(events, trials, rate))

    for events, trials in ((3, 100), (50, 100), (0, 40)):
        low, high = rate_bounds(events, trials, 0.05)
        assert math.isclose(mixture(high, events, trials), 20, rel_tol=1e-4)
        assert low == 0 if events == 0 else math.isclose(mixture(low, events, trials), 20, rel_tol=1e-4)
    assert rate_bounds(0, 0, 0.05) == (0.0, 1.0)
    assert rate_bounds(10, 10, 0.05)[1] == 1.0


def test_rate_bounds_hold_at_every_look() -> None:
    random = np.random.default_rng(1)
    missed = 0
    for _ in range(200):
        seen = np.cumsum(random.random(1000) < 0.03)
        looks = [rate_bounds(int(seen[n - 1]), n, 0.05) for n in (10, 30, 100, 300, 600, 1000)]
        missed += any(not low <= 0.03 <= high for low, high in looks)
    assert missed <= 18
