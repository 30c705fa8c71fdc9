"""A bet is scored by the measured interval, and the running score counts what could be told."""

import json
import math
from typing import Any

import pytest
import streamlit as st

from lab.errors import InputError
from lab.run import results
from lab.run.folder import RunFolder
from lab.show.bets import SIZES, Bet, Scored, judged, score, tally
from tests.show.conftest import DONE, KV_CACHE, LLM_BATCHING, QUANTIZATION
from tests.show.pages import open_page, words


def effect(verdict: str, ratio: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"verdict": verdict, "ratio": ratio, "ci_low": low, "ci_high": high, "reason": None}


@pytest.mark.parametrize(
    ("bet", "measured", "outcome"),
    [
        ("more:2x", effect("higher", 2.1, 1.9, 2.3), "right"),  # 2x stands for 1.73 to 2.45
        ("more:2x", effect("higher", 2.6, 2.4, 2.8), "right"),  # the interval reaches 2.45
        ("more:2x", effect("higher", 2.7, 2.5, 2.9), "right direction"),  # it does not
        ("more:10x", effect("higher", 40.0, 30.0, 60.0), "right"),  # the largest size stands for all above it
        ("more:1.2x", effect("higher", 6.0, 5.0, 7.0), "right direction"),
        ("fewer:2x", effect("lower", 0.5, 0.45, 0.55), "right"),
        ("more:2x", effect("lower", 0.5, 0.45, 0.55), "wrong"),
        ("same", effect("higher", 1.2, 1.1, 1.3), "wrong"),
        ("same", effect("no detectable difference", 1.01, 0.95, 1.08), "right"),
        ("more:2x", effect("no detectable difference", 1.01, 0.95, 1.08), "wrong"),  # 1.73 is not in it
        ("more:2x", effect("no detectable difference", 1.3, 0.7, 2.4), "can't tell"),
        ("same", effect("no detectable difference", 1.3, 0.7, 2.4), "can't tell"),
        ("more:2x", effect("higher", 3.0, 1.2, 8.0), "right direction"),  # too wide for a size
        ("more:2x", effect("higher", None), "right direction"),  # from nothing to something has no ratio
        ("fewer:2x", effect("higher", None), "wrong"),
        ("more:2x", effect("not comparable", None), "can't tell"),
        ("more:2x", None, "can't tell"),
    ],
)
def test_the_interval_decides(bet: str, measured: dict[str, Any] | None, outcome: str) -> None:
    found = score(Bet.read(bet), measured)
    assert found.outcome == outcome
    assert found.text.endswith(".") and not found.text.endswith("..")


def test_sizes_share_the_ratios_among_them_without_a_gap() -> None:
    spans = [Bet.read(f"more:{size.replace('×', 'x')}").span for size in SIZES]
    assert Bet.read("same").span[1] == spans[0][0] == pytest.approx(math.sqrt(1.2))
    assert [high for _, high in spans[:-1]] == [low for low, _ in spans[1:]]
    assert spans[-1][1] == math.inf
    low, high = Bet.read("fewer:2x").span
    assert (1 / high, 1 / low) == pytest.approx((math.sqrt(3.0), math.sqrt(6.0)))


def test_the_words_name_guess_measurement_and_interval() -> None:
    text = score(Bet.read("more:10x"), effect("higher", 2.0, 1.8, 2.2), "2 ms delay at 120 %").text
    assert text == (
        "You bet on more, 10×; measured with 2 ms delay at 120 %: more, 2.0× (1.80 to 2.2×). Right direction, "
        "overestimated by a factor of 5.0."
    )


@pytest.mark.parametrize("text", ["", "more", "more:4x", "same:2x", "less:2x", "more:NaNx", "more:-2x"])
def test_a_bet_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(InputError) as error:
        Bet.read(text)
    assert "allowed: same, or more:SIZE" in str(error.value) and "\n" not in str(error.value)


def test_a_bet_survives_the_run_folder_and_nonsense_there_is_none() -> None:
    bet = Bet.read("fewer:1.5x")
    assert Bet.of({"bet": {**vars(bet)}}) == bet and str(bet) == "fewer:1.5x"
    for kept in (None, 5, {}, {"direction": "up"}, {"direction": "more", "size": "7×"}, {"direction": "more"}):
        assert Bet.of({"bet": kept}) is None


def test_the_running_score_counts_points_of_what_could_be_told() -> None:
    found = [
        Scored("right", "", 1.0),
        Scored("right direction", "", 4.0),
        Scored("wrong", ""),
        Scored("can't tell", ""),
    ]
    assert tally(found) == (
        "1.5 of 3 points: 1 right, 1 right direction, 1 wrong; 1 more could not be told. Where the direction was "
        "right, the size was 2.0× too much on average."  # the geometric mean of 1 and 4
    )
    assert tally([]) == "" and tally(found[3:]) == "1 bet that the lab could not tell."


@pytest.mark.parametrize(
    ("run", "level"),
    [(LLM_BATCHING, "continuous"), (KV_CACHE, True), (QUANTIZATION, None)],
)
def test_each_experiment_is_judged_at_the_level_that_its_bet_is_about(run: str, level: Any, full_home: Any) -> None:
    folder = RunFolder.open(run)
    found, where = judged(results.document(folder), folder.document["experiment"])
    assert found is not None and where
    assert level is None or found["level"] == level
    if level is None:  # the fastest of its formats
        same = [e for e in results.document(folder)["verdict"]["effects"] if e["metric"] == found["metric"]]
        here = [e["ratio"] for e in same if e["at"] == found["at"] and e["ratio"] is not None]
        assert found["ratio"] == max(here)


@pytest.mark.pages
def test_a_kept_bet_counts_and_one_placed_afterwards_says_that_it_does_not(full_home: Any) -> None:
    late = words(open_page("batching", run=DONE, b_bet="fewer"))
    assert "You bet on fewer, 2×" in late and "does not count" in late and "Your bets on this machine" not in late
    path = full_home / "runs" / DONE / "run.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "bet": {**vars(Bet.read("more:10x"))}}))
    st.cache_data.clear()
    kept = words(open_page("batching", run=DONE, b_bet="fewer"))
    assert "You bet on more, 10×" in kept and "does not count" not in kept
    assert "Your bets on this machine: " in kept


@pytest.mark.pages
def test_a_link_may_hide_what_was_found(full_home: Any) -> None:
    said = words(open_page("batching", run=DONE, b_bet="fewer", hide="verdicts,nonsense"))
    assert "hidden by this link" in said and "You bet on" not in said
    assert "hide=nonsense: nothing of that name can be hidden" in said
