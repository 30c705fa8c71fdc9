"""The reviewer's questions: each weakness of a run raises one, each strength answers one."""

from typing import Any

import pytest

from lab.errors import InputError
from lab.measure.doubts import when_quick
from lab.measure.redteam import Question, questions, waive
from lab.run import catalogue
from tests.measure.test_versus import MACHINE, side

DECLARED = catalogue.experiment("batching").model_dump(mode="json")


def document(**changes: Any) -> dict[str, Any]:
    cells = [
        {"role": "cell", "factors": {}, "repeat": repeat, "summary": side("x", seconds=40).summaries[0]}
        for repeat in range(2)
    ]
    return {
        "run": "x",
        "state": "done",
        "quick": False,
        "environment": MACHINE,
        "cells": cells,
        "answers": None,
        "verdict": {"holds": None, "text": "", "effects": []},
        "problems": [],
        **changes,
    }


def problem(code: str) -> dict[str, Any]:
    return {"code": code, "text": f"It is {code}.", "remedy": "Do better.", "blocks": "1 of 2"}


def asked(**changes: Any) -> dict[str, Question]:
    return {question.code: question for question in questions(document(**changes), DECLARED)}


def test_a_good_run_answers_most_of_them() -> None:
    found = asked()
    for code in ("loop", "warm_up", "unsteady", "samples", "repeats", "client_limited", "failures", "quiet"):
        assert found[code].status == "answered", found[code]
    # No run can answer these.
    assert {code for code, q in found.items() if q.status == "open"} >= {"seed", "elsewhere", "load_like_yours"}


def test_users_who_measured_the_saturation_are_no_contradiction() -> None:
    loops = {"role": "saturation", "factors": {}, "repeat": 0, "summary": side("x", seconds=40).summaries[0]}
    assert "saturation" not in asked()["loop"].answer
    found = asked(cells=[loops, *document()["cells"]])["loop"]
    assert found.status == "answered"
    assert found.answer.endswith("only measured the saturation, in 1 block that no level is judged by.")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"problems": [problem("unsteady")]}, "unsteady"),
        ({"problems": [problem("client_limited")]}, "client_limited"),
        ({"problems": [problem("cache_warm")]}, "cache_warm"),
        ({"problems": [problem("changed")]}, "changed"),
        ({"problems": [problem("near_ceiling")]}, "near_ceiling"),
        ({"problems": [problem("dropped")]}, "dropped"),
        ({"problems": [problem("a_new_doubt")]}, "a_new_doubt"),
        ({"quick": True}, "repeats"),
        ({"state": "cancelled"}, "partial"),
        ({"cells": []}, "samples"),
        ({"environment": {**MACHINE, "load_average_before": 1.9}}, "quiet"),
        ({"environment": {}}, "quiet"),
    ],
)
def test_each_weakness_leaves_its_question_open(changes: dict[str, Any], code: str) -> None:
    assert asked(**changes)[code].status == "open"


@pytest.mark.parametrize(
    ("lab", "status", "says"),
    [
        ({"commit": "0123456789abcdef", "dirty": False, "version": None}, "answered", "commit 0123456789ab, as it was"),
        ({"commit": "0123456789abcdef", "dirty": True, "version": None}, "open", "changed since, which"),
        ({"commit": "0123456789abcdef", "dirty": True, "changes": "3f09ab"}, "open", "changed since (hash 3f09ab)"),
        ({"commit": "0123456789abcdef", "dirty": None, "version": None}, "open", "nobody knows whether"),
        ({"commit": None, "dirty": None, "version": "0.1.0"}, "answered", "Version 0.1.0"),
        ({"commit": None, "dirty": None, "version": None}, "open", "does not say"),
        (None, "open", "does not say"),
        ("nonsense", "open", "does not say"),
    ],
)
def test_it_asks_which_code_was_run(lab: Any, status: str, says: str) -> None:
    found = asked(environment={**MACHINE, "lab": lab})["version"]
    assert found.status == status and says in found.answer


def test_a_weakness_is_asked_about_once() -> None:
    known = ("closed_loop", "quick", "too_few_samples", "failures", "unsteady")
    found = questions(document(problems=[problem(code) for code in known]), DECLARED)
    codes = [question.code for question in found]
    assert len(codes) == len(set(codes)) and not {"closed_loop", "quick", "too_few_samples"} & set(codes)
    # A block that was cut short in a run that went to its end has no other question that stands for it.
    assert asked(problems=[problem("cut_short")])["cut_short"].status == "open"


def test_a_closed_loop_counts_only_where_it_was_judged() -> None:
    """The reference runs of an experiment are closed loops whatever its own arrivals are."""
    assert asked(problems=[problem("closed_loop")])["loop"].status == "answered"
    cells = document()["cells"]
    cells[0]["summary"]["problems"] = [{**problem("closed_loop"), "forbids_verdict": False}]
    assert asked(cells=cells)["loop"].status == "open"


def test_what_nobody_measured_is_answered_by_nobody() -> None:
    found = asked(cells=[])
    for code in ("loop", "unsteady", "client_limited", "failures", "cache_warm", "server_count_mismatch"):
        assert found[code].status == "open", found[code]
    cells = document()["cells"]
    assert asked(cells=cells)["server_count_mismatch"].status == "open"  # nobody asked a server
    cells[0]["summary"]["server_success_delta"] = 100
    assert "in 1 of 2 blocks" in asked(cells=cells)["server_count_mismatch"].answer
    cells[0]["summary"]["steady"] = cells[1]["summary"]["steady"] = None
    assert asked(cells=cells)["unsteady"].status == "open"


def test_starts_are_asked_about_starts_and_not_about_a_load() -> None:
    way = {
        "starts": 5, "failed": [], "not_measured": None, "start": {"page_cache": "cold"}, "resident_fraction": 0.0,
    }  # fmt: skip
    declared = catalogue.experiment("cold_start").model_dump(mode="json")

    def about(off: float | None, **changes: Any) -> dict[str, str]:
        cold = {"cells": [way, {**way, **changes}], "unexplained_max_fraction": off}
        return {q.code: q.status for q in questions(document(cells=[], cold=cold), declared)}

    good = about(0.01)
    own = {"samples", "stages", "failures", "page_cache"}
    assert own <= good.keys() and all(good[code] == "answered" for code in own)
    assert not good.keys() & {"loop", "warm_up", "unsteady", "client_limited", "cache_warm", "server_count_mismatch"}
    assert about(0.2)["stages"] == about(None)["stages"] == "open"
    assert about(0.01, starts=2)["samples"] == "open"
    assert about(0.01, failed=["no memory"])["failures"] == "open"
    assert (
        about(0.01, resident_fraction=0.3)["page_cache"] == about(0.01, resident_fraction=None)["page_cache"] == "open"
    )


def test_failures_are_told_with_their_share() -> None:
    cells = document()["cells"]
    cells[0]["summary"] = side("x", refused=0.5).summaries[0]
    found = asked(cells=cells)["failures"]
    assert found.status == "open" and found.answer.startswith(("Up to 49", "Up to 50", "Up to 5"))


def test_open_questions_come_first() -> None:
    statuses = [question.status for question in questions(document(), DECLARED)]
    assert statuses == sorted(statuses, key=lambda status: status != "open")


def test_a_waiver_names_who_and_why_and_keeps_what_was_open() -> None:
    found = waive(questions(document(), DECLARED), {"seed": "Ann: one draw will do"})
    waived = next(question for question in found if question.code == "seed")
    assert waived.status == "waived"
    assert waived.answer.startswith("Waived: Ann: one draw will do (open was: All came from seed")


def test_only_what_is_asked_can_be_waived_and_not_without_a_reason() -> None:
    with pytest.raises(InputError, match=r"waiver 'sede': .*did you mean .seed."):
        waive(questions(document(), DECLARED), {"sede": "Ann"})
    with pytest.raises(InputError, match="no reason is given"):
        waive(questions(document(), DECLARED), {"seed": " "})


@pytest.mark.parametrize(("executed", "status"), [(100, "answered"), (99, "open")])
def test_a_switch_answers_for_its_counts_with_its_own_books(executed: int, status: str) -> None:
    block = {"requests": 110, "entered": 110, "predictions": 100, "executed": executed, "refused": 0}
    found = asked(rehearsal={"way": "blue_green", "blocks": [block]})["server_count_mismatch"]
    assert found.status == status and "both Tritons together" in found.answer


def test_a_quick_run_is_not_told_to_measure_longer() -> None:
    longer = {**problem("unsteady"), "remedy": when_quick("Warm up longer, measure longer, and look.")}
    assert longer["remedy"] == "Run it without --quick, and look."
    few = [{**cell, "summary": {**cell["summary"], "latency_n": 3}} for cell in document()["cells"]]
    assert asked(cells=few)["samples"].answer.endswith(": measure longer.")
    assert asked(cells=few, quick=True)["samples"].answer.endswith(": run it without --quick.")
