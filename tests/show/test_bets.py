"""A bet is scored on direction and size."""

from typing import Any

import pytest

from lab.show.bets import score


def effect(verdict: str, ratio: float | None, reason: str | None = None) -> dict[str, Any]:
    return {"verdict": verdict, "ratio": ratio, "reason": reason}


@pytest.mark.parametrize(
    ("direction", "size", "measured", "right", "word"),
    [
        ("more", "3×", effect("higher", 2.6), True, "close"),  # 3 / 2.6 = 1.15
        ("more", "10×", effect("higher", 2.0), True, "overestimated by a factor of 5.0"),
        ("more", "1.2×", effect("higher", 6.0), True, "underestimated by a factor of 5.0"),
        ("fewer", "2×", effect("lower", 0.5), True, "close"),  # half is two times fewer
        ("more", "2×", effect("lower", 0.5), False, "fewer"),
        ("about the same", "2×", effect("no detectable difference", 1.01), True, "Right"),
        ("more", "2×", effect("no detectable difference", 1.01), False, "about the same"),
        ("more", "2×", effect("higher", None), True, "Right"),  # from nothing to something has no ratio
    ],
)
def test_score(direction: str, size: str, measured: dict[str, Any], right: bool, word: str) -> None:
    verdict, sentence = score(direction, size, measured)
    assert verdict is right
    assert word in sentence


def test_a_reason_that_ends_in_a_full_stop_gets_no_second_one() -> None:
    assert score("more", "2×", effect("not comparable", None, "the client limited it."))[1].count(".") == 1


@pytest.mark.parametrize("measured", [None, effect("not comparable", None, "the windows differ")])
def test_a_bet_on_what_was_not_compared_stays_open(measured: dict[str, Any] | None) -> None:
    verdict, sentence = score("more", "2×", measured)
    assert verdict is None
    assert "stays open" in sentence
