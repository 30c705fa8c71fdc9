"""What could have been found, how much longer it takes, and what a machine's noise says of a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from lab.measure import noise, power
from lab.measure.compare import Effect, compare
from lab.measure.noise import Floor, Noise
from lab.measure.records import OK, Requests, Window

SECOND = 1_000_000_000


def effect(ratio: float, half: float, verdict: str = "no detectable difference") -> Effect:
    """With an interval of `half` in logs."""
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    return Effect("latency_p50_s", 1.0, ratio, ratio, low, high, ratio - 1, low - 1, high - 1, verdict, "")


def test_the_detectable_effect_is_bloms_multiple_of_the_standard_error() -> None:
    """Half-width 1.96 s and 80 % power: 2.8 s. With s = 0.01 that is 2.84 %."""
    found = power.detectable_fraction(effect(1.0, 1.959964 * 0.01))
    assert found == pytest.approx(math.exp((1.959964 + 0.841621) * 0.01) - 1, rel=1e-6)
    assert power.detectable_fraction(Effect("x", 0, 0, None, None, None, 0, 0, 0, "not comparable", "")) is None


def test_four_times_the_time_halves_it() -> None:
    asked = effect(1.0, 0.10)
    detectable = power.detectable_fraction(asked)
    assert detectable is not None
    half_of_it = math.sqrt(1 + detectable) - 1  # half in logs
    assert power.more_s(asked, 60.0, half_of_it) == pytest.approx(180.0)
    assert power.more_s(asked, 60.0, 2 * detectable) == 0.0


def test_it_is_told_in_minutes() -> None:
    assert power.told(effect(1.0, 0.10), 60.0) == "15.4 % would have been found; about 8 more minutes would find 5 %"
    assert power.told(effect(1.0, 0.01), 60.0) == "1.44 % would have been found"
    assert power.about(12) == "about 20 more seconds"
    assert power.about(3 * 86_400) == "more than another day of measuring"


def exponential(rate_s: float, seed: int, seconds: float) -> list[tuple[Requests, Window]]:
    rng = np.random.default_rng(seed)
    due = np.arange(0, seconds, 0.01)
    due_ns = (due * SECOND).astype(np.int64)
    took = (rng.gamma(4, rate_s / 4, len(due)) * SECOND).astype(np.int64)
    outcome = np.full(len(due), OK, np.uint8)
    return [(Requests(due_ns, due_ns, due_ns + took, outcome), Window(0, 0, int(seconds * SECOND)))]


def test_what_is_said_to_be_detectable_is_found_and_much_less_is_not() -> None:
    """The promise, held against compare() itself: of 12 pairs with that very difference most are told apart."""
    base = compare(exponential(0.01, 1, 20), exponential(0.01, 2, 20), "latency_p50_s")
    found = power.detectable_fraction(base)
    assert found is not None
    told = [
        compare(exponential(0.01, 10 + n, 20), exponential(0.01 * (1 + found), 90 + n, 20), "latency_p50_s").verdict
        for n in range(12)
    ]
    assert told.count("higher") >= 7


def test_a_floor_is_students_t_on_repeats() -> None:
    """Eight repeats with standard deviation 2 %, one repeat a side: t(7) x 2 % x sqrt(2)."""
    floor = Floor("latency_p50_s", 0.005, 0.02, 8)
    expected = math.exp(scipy.stats.t.ppf(0.975, 7) * 0.02 * math.sqrt(2)) - 1
    assert floor.fraction(1) == pytest.approx(expected, rel=2e-3)
    assert floor.fraction(4) == pytest.approx(math.exp(math.log1p(expected) / 2) - 1, rel=2e-3)


def test_equals_stay_below_their_floor_in_19_of_20() -> None:
    """Repeats drawn from one log-normal: differences of two more fall below the floor as often as they should."""
    rng = np.random.default_rng(5)
    inside = []
    for _ in range(400):
        logs = rng.normal(0, 0.03, 8)
        floor = Floor("x", 1.0, float(np.std(logs, ddof=1)), 8).fraction(1)
        inside.append(abs(rng.normal(0, 0.03) - rng.normal(0, 0.03)) < math.log1p(floor))
    assert 0.92 < np.mean(inside) < 0.98


def test_a_difference_is_real_within_noise_or_not_told() -> None:
    passport = Noise("abc", "2026-11-30T12:00:00", "digits", 5.0, {"latency_p50_s": Floor("latency_p50_s", 1, 0.02, 8)})
    floor = passport.floor("latency_p50_s")
    assert floor == pytest.approx(0.069, abs=0.002)
    assert noise.standing(effect(1.2, 0.01, "higher"), passport, 1) == "real"
    assert noise.standing(effect(1.03, 0.01, "higher"), passport, 1) == "within noise"
    assert noise.standing(effect(1.03, 0.01), passport, 1) == "none"
    assert noise.standing(effect(1.2, 0.01, "higher"), None, 1) == "none"
    assert "differ by up to 6.9" in noise.told(effect(1.03, 0.01, "higher"), passport, 1)
    assert noise.told(effect(1.2, 0.01, "higher"), passport, 1) == ""
    assert Noise.from_dict(passport.to_dict()) == passport
