"""Slopes against scipy's, and verdicts over cycles whose truth is written down."""

import numpy as np
import pytest
import scipy

from lab.measure.leak import MIB, T_975, Cycle, judge, slope


def cycles(after, model=200.0, part="server"):
    """One cycle a reading, in MiB; each is before the next, and the model takes 200 MiB on top."""
    readings = [{"server": 42.0 * MIB, "processes": 0.0, "shared_memory": 0.0} for _ in after]
    for reading, value in zip(readings, after, strict=True):
        reading[part] += value * MIB
    before = [readings[0], *readings[:-1]]
    return [
        Cycle(1.0, 1.2, b, {**b, "processes": b["processes"] + model * MIB}, r)
        for b, r in zip(before, readings, strict=True)
    ]


def test_students_t_is_scipys():
    assert [round(float(scipy.stats.t.ppf(0.975, df)), 3) for df in range(1, 16)] == pytest.approx(T_975, abs=0.006)


@pytest.mark.parametrize("n", [3, 6, 11])
def test_a_slope_and_its_interval_are_scipys(n):
    y = np.random.default_rng(n).normal(0, 3, n) + 2.5 * np.arange(n)
    found, truth = slope(y), scipy.stats.linregress(np.arange(n), y)
    half = scipy.stats.t.ppf(0.975, n - 2) * truth.stderr
    assert found.bytes == pytest.approx(truth.slope)
    assert (found.low, found.high) == pytest.approx((truth.slope - half, truth.slope + half), rel=1e-3)


def test_two_readings_make_no_interval():
    with pytest.raises(ValueError, match="needs 3 readings, got 2"):
        slope([1.0, 2.0])


def test_twenty_mib_a_cycle_are_found_in_five_and_the_place_is_named():
    found = judge(cycles([0, 20, 40, 60, 80, 100], part="shared_memory"), {"gpu": "no GPU"})
    assert found.verdict == "leak"
    assert found.text == (
        "Leaks 20.0 MiB a cycle (95 %: 20.0 to 20.0), in shared memory (/dev/shm). 5 cycles left 100 MiB, 50% of what "
        "the model takes (200 MiB)."
    )
    assert (found.residue_bytes, found.residue_fraction) == (100 * MIB, 0.5)


def test_a_leak_is_found_through_the_noise_of_the_rest():
    noise = np.random.default_rng(1).normal(0, 0.5, 6)
    found = judge(cycles(list(noise + 20 * np.arange(6))), {})
    assert found.verdict == "leak"
    assert found.slope.low < 20 * MIB < found.slope.high


def test_a_clean_model_is_cleared_and_what_would_have_shown_is_said():
    found = judge(cycles([0.0, 0.02, -0.01, 0.01, 0.0, 0.01]), {})
    assert found.verdict == "clean"
    assert "One of more than 1.00 MiB a cycle would have shown" in found.text  # 0.5 % of 200 MiB


def test_what_is_set_up_once_is_no_leak():
    """30 MiB at the first load, flat after."""
    first, *rest = cycles([30.0] * 6)
    empty = {name: value - 30 * MIB * (name == "server") for name, value in first.before.items()}
    found = judge([Cycle(1, 1, empty, first.loaded, first.after), *rest], {})
    assert (found.verdict, found.once_bytes, found.residue_bytes) == ("clean", 30 * MIB, 0.0)


def test_readings_that_jump_about_decide_nothing():
    found = judge(cycles([0, 40, 3, 35, 1, 44]), {})
    assert found.verdict == "undecided"
    assert found.text.startswith("Not decided")


def test_a_part_that_grows_is_not_hidden_by_another_that_shrinks():
    grows = cycles([0, 20, 40, 60, 80, 100], part="shared_memory")
    hidden = [
        Cycle(c.load_s, c.unload_s, c.before, c.loaded, {**c.after, "server": (300 - 20 * n) * MIB})
        for n, c in enumerate(grows)
    ]
    found = judge(hidden, {})
    assert found.verdict == "leak"
    assert "in shared memory" in found.text
