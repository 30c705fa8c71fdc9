"""What measured blocks leave unexplained, and what of it is expected where: against means on paper."""

from __future__ import annotations

import numpy as np
import pytest

from lab.measure.planner import discrepancy
from lab.measure.planner.discrepancy import ALIKE, BESIDE, FAR, NEAR, UNKNOWN, Place, Rest, corrected, expected, paces

HERE = Place(8, 0.0, 0.5)
LEFT = (0.1, 0.2, 0.3)


def test_one_block_is_believed_by_half():
    work, latency = expected([Rest(HERE, 0.2, LEFT)], HERE)
    assert work == pytest.approx(0.1)
    assert latency == pytest.approx([0.05, 0.1, 0.15])


def test_many_blocks_that_agree_are_believed():
    work, latency = expected([Rest(HERE, 0.2, LEFT)] * 9, HERE)
    assert work == pytest.approx(0.18) and latency == pytest.approx([0.09, 0.18, 0.27])


@pytest.mark.parametrize(
    ("place", "counts"),
    [
        (Place(8, 0.0, 0.5 + NEAR), np.exp(-0.5)),  # one deviation away in load
        (Place(8, 0.0, 0.5 + 6 * NEAR), FAR),
        (Place(16, 0.0, 0.5), ALIKE),
        (Place(8, 0.002, 0.5), ALIKE),
        (Place(1, 0.0, 0.5), 0.0),  # who batches says nothing of who does not
    ],
)
def test_a_block_counts_by_how_near_it_is(place: Place, counts: float):
    work, _ = expected([Rest(place, 0.2)], HERE)
    assert work == pytest.approx(0.2 * counts / (counts + 1), abs=1e-6)


def test_without_batches_a_delay_is_no_setting():
    work, _ = expected([Rest(Place(1, 0.005, 0.5), 0.2)], Place(1, 0.0, 0.5))
    assert work == pytest.approx(0.1)


def test_what_is_not_known_counts_for_nothing():
    work, latency = expected([Rest(HERE, 0.2, UNKNOWN), Rest(HERE, np.nan, LEFT)], HERE)
    assert work == pytest.approx(0.1) and latency == pytest.approx([0.05, 0.1, 0.15])
    assert expected([], HERE)[0] == 0.0 and not expected([], HERE)[1].any()


def test_quantiles_move_as_told_and_the_order_stays():
    given_s = np.random.default_rng(0).permutation(np.linspace(0.001, 0.1, 10_001))
    moved_s = corrected(given_s, np.log([1.0, 1.5, 2.0]))
    assert np.median(moved_s) == pytest.approx(np.median(given_s), rel=1e-3)
    for p, times in ((0.95, 1.5), (0.99, 2.0)):
        assert np.quantile(moved_s, p) == pytest.approx(times * np.quantile(given_s, p), rel=2e-3)
    assert (np.argsort(moved_s) == np.argsort(given_s)).all()
    assert corrected(given_s, np.zeros(3)) is given_s


def test_a_slower_hour_is_told_from_a_dearer_setting():
    """Two settings in turn, one 30 % dearer than modelled, on a machine that half-way becomes 20 % slower."""
    places = [HERE, Place(1, 0.0, 0.5)] * 20
    dearer, slower = np.tile([0.0, np.log(1.3)], 20), np.repeat([0.0, np.log(1.2)], 20)
    found = paces(dearer + slower, places)
    assert found.mean() == pytest.approx(0, abs=1e-9)
    away = np.r_[BESIDE : 20 - BESIDE, 20 + BESIDE : 40 - BESIDE]  # from where it changes, which neighbours smear
    assert found[away] == pytest.approx((slower - slower.mean())[away], abs=0.03)


def test_a_block_that_counted_nothing_has_its_neighbours_pace():
    off = np.array([0.2, 0.2, np.nan, 0.2, 0.2, *[-0.2] * 20])
    found = discrepancy.paces(off, [HERE] * len(off))
    assert not np.isnan(found).any() and found[2] == pytest.approx(found[1], abs=0.1)
