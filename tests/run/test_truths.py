"""The self-tests that need no server hold here too, and find a lab that is off."""

import numpy as np
import pytest

from lab.load.schedule import arrivals
from lab.run import selftest_kept, truths
from lab.spec import Arrival, Poisson


def test_the_lab_holds_its_own_truths() -> None:
    found = list(truths.all_of_them())
    assert [outcome.id for outcome in found] == ["S4", "S6", "S14", "S17"]
    assert [outcome.line() for outcome in found if not outcome.passed] == []


def lognormal(arrival: Arrival, duration_s: float, seed: int) -> np.ndarray:
    """Independent gaps of an exponential's mean and variation that are none."""
    rng = np.random.default_rng(seed)
    gaps_s = rng.lognormal(-np.log(2) / 2, np.sqrt(np.log(2)), int(arrival.rate_rps * duration_s)) / arrival.rate_rps
    return (np.cumsum(gaps_s) * 1e9).astype(np.int64)


def rescaled(arrival: Arrival, duration_s: float, seed: int) -> np.ndarray:
    """Every second has just as many arrivals as were asked for."""
    rng = np.random.default_rng(seed)
    each = np.sort(rng.random((int(duration_s), int(arrival.rate_rps))), axis=1)
    return ((each + np.arange(int(duration_s))[:, None]).ravel() * 1e9).astype(np.int64)


def slower(arrival: Arrival, duration_s: float, seed: int) -> np.ndarray:
    return arrivals(type(arrival)(rate_rps=arrival.rate_rps / 1.03), duration_s, seed)


@pytest.mark.parametrize(
    ("drawn", "told"), [(lognormal, "KS p 0.00"), (rescaled, "0.00 × their mean"), (slower, "+3.")]
)
def test_arrivals_that_only_look_like_poissons_are_found(drawn, told, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(arrival: Arrival, duration_s: float, seed: int) -> np.ndarray:
        return (drawn if isinstance(arrival, Poisson) else arrivals)(arrival, duration_s, seed)

    monkeypatch.setattr(truths, "arrivals", other)
    found = next(truths.all_of_them())
    assert found.id == "S4" and not found.passed
    assert told in found.text


def test_a_percentile_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truths, "percentile", lambda values, p: float(np.quantile(values, p)) * 1.001)
    assert not next(outcome for outcome in truths.all_of_them() if outcome.id == "S6").passed


def test_a_result_is_kept_for_this_machine() -> None:
    found = [outcome.to_dict() for outcome in truths.all_of_them()]
    selftest_kept.keep(found)
    kept = selftest_kept.read()
    assert kept is not None and kept["tests"] == found and len(kept["fingerprint"]) == 12
