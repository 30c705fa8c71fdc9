"""What a rehearsal's blocks come to: right or wrong, and the sentences that say so."""

from __future__ import annotations

from typing import Any

import pytest

from lab.measure import rehearsal
from lab.measure.rehearsal import Block


def canary(challenger: str, decision: str, **more: Any) -> Block:
    told = {
        "way": "canary", "challenger": challenger, "decision": decision, "repeat": 0, "seconds": 12.3,
        "requests": 1000, "touched": 250, "failed": 0, "wrong": 0, "champion_failed": 0, "champion_wrong": 0,
        "champion_requests": 750, "text": "Roll back: errors are 2 %.", "comparisons": [],
        "moves": [{"t_s": 0.0, "action": "begin", "by": "rehearsal", "share": 0.25, "touched": None}],
        "traffic": {"t_s": [], "1": [], "2": []},
    }  # fmt: skip
    return {**told, **more}


def switch(**more: Any) -> Block:
    move = {
        "to": "green", "t_s": 0.0, "write_s": 0.002, "under_way": 8, "drain_s": 0.6, "late": 1, "late_s": 0.04,
        "slowest_before_s": 0.01, "slowest_after_s": 0.02,
    }  # fmt: skip
    told = {
        "way": "blue_green", "challenger": "good", "repeat": 0, "requests": 2060, "predictions": 2000, "streams": 60,
        "lost": 0, "twice": 0, "left": 0, "entered": 2060, "executed": 2000, "compared": 700, "differing": 0,
        "green_compared": 600, "green_other": 580, "by_version": {"blue": 1400, "green": 660},
        "moves": [move, {**move, "to": "blue", "late": 0, "late_s": 0.0}],
        "traffic": {"t_s": [], "blue": [], "green": []},
    }  # fmt: skip
    return {**told, **more}


def found(*blocks: Block) -> rehearsal.Rehearsal:
    told = [{"kind": "rehearsed", "t_ns": 1, **block} for block in blocks]
    whole = rehearsal.rehearsal([{"kind": "serving", "t_ns": 0}, *told])
    assert whole is not None
    return whole


def test_run_without_a_rehearsal_has_none() -> None:
    assert rehearsal.rehearsal([{"kind": "serving", "t_ns": 0}]) is None


@pytest.mark.parametrize(
    ("decisions", "holds"),
    [
        ((("good", "promoted"), ("errs", "rolled_back")), True),
        ((("good", "undecided"), ("errs", "rolled_back")), None),
        ((("good", "undecided"), ("errs", "promoted")), False),
        ((("good", "rolled_back"),), False),
    ],
)
def test_guard_is_right_when_each_got_what_it_deserved(
    decisions: tuple[tuple[str, str], ...], holds: bool | None
) -> None:
    told = found(*(canary(*decision) for decision in decisions))
    assert rehearsal.holds(told) is holds
    wrong = sum((c == "good") == (d == "rolled_back") for c, d in decisions if d != "undecided")
    assert (f", {wrong} wrongly" in rehearsal.sentences(told)[0]) == (wrong > 0)


def test_sentences_of_a_canary_say_whom_it_cost() -> None:
    head, bad, good = rehearsal.sentences(found(canary("errs", "rolled_back", failed=5), canary("good", "undecided")))[
        :3
    ]
    assert head == "The guard decided rightly in 1 of 2 rollouts, 1 not at all."
    assert bad == (
        "A v2 that errs was rolled back after 12.3 s: 250 of 1,000 requests (25 %) had met it and 5 of them failed."
    )
    assert "stood at 25 % in the end" in good


@pytest.mark.parametrize(
    ("more", "holds"),
    [
        ({}, True),
        ({"lost": 1}, False),
        ({"twice": 1}, False),
        ({"left": 1}, False),
        ({"differing": 1}, False),
        ({"entered": 2059}, False),
        ({"executed": 2001}, False),
        ({"refused": 3, "entered": 2058, "executed": 1998}, True),  # two at the door, one by Triton; none were lost
        ({"refused": 3, "entered": 2058, "executed": 1996}, False),
        ({"refused": 3, "entered": 2061}, False),
        ({"compared": 0}, None),
        ({"moves": []}, None),
    ],
)
def test_switch_holds_when_every_book_agrees(more: dict[str, Any], holds: bool | None) -> None:
    assert rehearsal.holds(found(switch(**more))) is holds


def test_half_a_run_shows_only_what_went_wrong() -> None:
    good, bad = found(switch()), found(switch(lost=1))
    assert [rehearsal.verdict(one, whole=True, limited=None)[0] for one in (good, bad)] == [True, False]
    assert [rehearsal.verdict(one, whole=False, limited=None)[0] for one in (good, bad)] == [None, False]


def test_beyond_the_clients_limit_a_canary_has_no_verdict_and_a_switch_one_about_what_came() -> None:
    why = "The load generator sent 143 req/s of the 200 req/s that were due."
    holds, said = rehearsal.verdict(found(canary("errs", "rolled_back")), whole=True, limited=why)
    assert holds is None and "No verdict" in said
    for one, came in ((found(switch()), True), (found(switch(lost=1)), False)):
        holds, said = rehearsal.verdict(one, whole=True, limited=why)
        assert holds is came and said.endswith(why) and "for the load that came" in said


def test_sentences_of_a_switch() -> None:
    said = " ".join(rehearsal.sentences(found(switch())))
    assert said.startswith(
        "Of 2,060 requests (2,000 predictions and 60 streams) none were lost and none answered twice"
    )
    assert "refused" not in said
    at_a_rate = rehearsal.sentences(found(switch(rate_rps=87.2), switch(rate_rps=87.2, repeat=1)))[0]
    assert at_a_rate.startswith("Of 4,120 requests (4,000 predictions at 87.2 req/s and 120 streams)")
    refused = " ".join(rehearsal.sentences(found(switch(refused=3, entered=2057, executed=1997))))
    assert "The books agree" in refused and "3 requests were refused" in refused and "none were lost" in refused
    assert "The books agree: users sent 2,060, the gateway took 2,060" in said
    assert "700 answers after the way back all are to the letter" in said
    assert "1 request sent after it still reached the old side, the last 40.0 ms later" in said
    assert "16 answers under way were finished where they began, the last after 0.60 s" in said or "600 ms" in said
    broken = " ".join(rehearsal.sentences(found(switch(lost=1, executed=1999, differing=2))))
    assert "1 was lost" in broken and "do not agree" in broken and "698 are to the letter" in broken


def test_tables_have_a_row_a_block() -> None:
    for blocks in ((canary("errs", "rolled_back"), canary("good", "promoted")), (switch(), switch(repeat=1))):
        head, *rows = rehearsal.table(found(*blocks))
        assert len(rows) == 2 and all(len(row) == len(head) for row in rows)
