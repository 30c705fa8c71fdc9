"""Main effects and interactions against numpy's least squares, and against planted ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lab.measure.factorial import factorial, is_factorial, told

FACTORS = {
    "model.batching": (None, {"max_batch_size": 32}),
    "model.precision": ("fp32", "int8"),
    "model.instances": (1, 2),
}
CELLS = list(itertools.product((0, 1), repeat=3))


def planted(noise: float, repeats: int, seed: int = 0) -> dict[tuple[int, ...], list[float]]:
    """Batching 2x; int8 1.5x without batching and 1.2x with it; instances nothing."""
    rng = np.random.default_rng(seed)

    def mean(batching: int, precision: int, _: int) -> float:
        return 100 * (2 if batching else 1) * ((1.2 if batching else 1.5) if precision else 1)

    return {c: [mean(*c) * math.exp(rng.normal(0, noise)) for _ in range(repeats)] for c in CELLS}


def test_without_noise_effects_are_what_was_planted() -> None:
    found = factorial(FACTORS, planted(0, 2), "throughput_rps")
    assert found is not None
    ratio = {c.factors: c.ratio for c in found.contrasts}
    assert ratio["model.batching",] == pytest.approx(2 * math.sqrt(1.2 / 1.5))
    assert ratio["model.precision",] == pytest.approx(math.sqrt(1.2 * 1.5))
    assert ratio["model.instances",] == pytest.approx(1)
    assert ratio["model.batching", "model.precision"] == pytest.approx(1.2 / 1.5)
    assert len(found.contrasts) == 7


def test_effects_are_least_squares_ones() -> None:
    values = planted(0.05, 3)
    found = factorial(FACTORS, values, "throughput_rps")
    assert found is not None
    rows = [(c, v) for c in CELLS for v in values[c]]
    signs = np.array([[1, *(1 if x else -1 for x in c)] for c, _ in rows], float)
    fit, *_ = np.linalg.lstsq(signs, np.log([v for _, v in rows]), rcond=None)
    assert [math.log(c.ratio) for c in found.main()] == pytest.approx((2 * fit[1:]).tolist())


def test_what_is_not_there_is_seldom_found_and_what_is_nearly_always() -> None:
    false = right = 0
    for seed in range(100):
        found = factorial(FACTORS, planted(0.03, 2, seed), "throughput_rps")
        assert found is not None
        finding = {c.factors: c.finding for c in found.contrasts}
        false += finding["model.instances",] != "no detectable difference"
        right += finding["model.batching", "model.precision"] == "lower"
    assert false <= 10 and right >= 95


def test_it_is_told_in_sentences() -> None:
    found = factorial(FACTORS, planted(0.01, 3), "throughput_rps")
    assert found is not None
    text = told(found)
    assert "batching on, no delay has 1.78× (1.77 to 1.80×) the throughput of batching off" in text
    assert "No detectable difference by instances" in text
    assert "They interact: what batching does is" in text and "0.81× (0.80 to 0.82×) as much with int8" in text
    assert "The highest throughput" in text and "with batching on, no delay, int8" in text


def test_an_unmeasured_cell_leaves_no_balance() -> None:
    values = planted(0.01, 1)
    assert factorial(FACTORS, {**values, (1, 1, 1): [None]}, "goodput_rps") is None
    assert factorial(FACTORS, {**values, (1, 1, 1): [0.0]}, "goodput_rps") is None
    assert is_factorial(FACTORS) and not is_factorial({"model.precision": ("fp32", "int8")})
    assert not is_factorial({**FACTORS, "model.instances": (1, 2, 4)})
