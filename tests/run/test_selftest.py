"""The self-test's own judgement: an honest meter passes, one that is off is found, whatever the server adds."""

import numpy as np
import pytest

from lab.run.selftest import known_shape

CONSTANT_S = np.full(200, 0.010)
SHAPE_S = np.tile([0.010] * 19 + [0.100], 20)  # mean 14.5 ms


@pytest.mark.parametrize("added_s", [0.0, 0.0017])
def test_what_the_server_adds_to_every_request_is_no_error_of_the_meter(added_s):
    outcome = known_shape(SHAPE_S + added_s, CONSTANT_S + added_s)
    assert outcome.passed
    assert outcome.truth == pytest.approx(0.0145 + added_s)
    assert f"{1e3 * added_s:.1f} ms that the server adds" in outcome.text


@pytest.mark.parametrize(
    "off",
    [
        pytest.param(lambda s: 1.06 * s, id="stretched by 6 %"),
        pytest.param(lambda s: s + 0.0025, id="2.5 ms that the constant service did not have"),
        pytest.param(lambda s: np.minimum(s, 0.09), id="a tail that is cut off"),
        pytest.param(lambda s: np.append(s, np.full(40, 0.02)), id="requests of another length among them"),
    ],
)
def test_a_meter_that_is_off_is_found(off):
    assert not known_shape(off(SHAPE_S) + 0.0017, CONSTANT_S + 0.0017).passed


def test_a_draw_with_more_long_sleeps_than_expected_has_their_mean_as_its_truth():
    drawn = np.tile([0.010] * 9 + [0.100], 40)
    assert known_shape(drawn, CONSTANT_S).truth == pytest.approx(0.019)
