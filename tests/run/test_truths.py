"""The self-tests that need no server hold here too, and find a lab that is off."""

import numpy as np
import pytest

from lab.run import selftest_kept, truths


def test_the_lab_holds_its_own_truths() -> None:
    found = list(truths.all_of_them())
    assert [outcome.id for outcome in found] == ["S4", "S6", "S14", "S17"]
    assert [outcome.line() for outcome in found if not outcome.passed] == []


def test_a_percentile_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truths, "percentile", lambda values, p: float(np.quantile(values, p)) * 1.001)
    assert not next(outcome for outcome in truths.all_of_them() if outcome.id == "S6").passed


def test_a_result_is_kept_for_this_machine() -> None:
    found = [outcome.to_dict() for outcome in truths.all_of_them()]
    selftest_kept.keep(found)
    kept = selftest_kept.read()
    assert kept is not None and kept["tests"] == found and len(kept["fingerprint"]) == 12
