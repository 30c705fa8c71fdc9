"""Cold starts taken apart: stages, sums, intervals and sentences, from events with known answers."""

from __future__ import annotations

from typing import Any

import pytest

from lab.errors import InputError
from lab.measure import cold
from lab.spec import Cell, ClosedLoop, Experiment, Judge, ModelSpec, Slo, Start, Workload

SECOND = 1_000_000_000
ALL = {"compile_cache": True, "mapped_weights": True, "zygote": True}
MIB = 2**20


def experiment(*levels: dict[str, Any]) -> Experiment:
    return Experiment(
        id="cold_start",
        question="q",
        hypothesis="h",
        model=ModelSpec(name="llm"),
        start=Start(),
        workload=Workload(arrival=ClosedLoop(concurrency=1), duration_s=1),
        slo=Slo(latency_s=1),
        factors={"start": levels},
        judge=Judge(factor="start", baseline={}, primary="cold_start_s", metrics=("cold_start_s",), expect="lower"),
    )


def start(
    cell: int, *stages: tuple[str, float], gap_s: float = 0.0, at_s: float = 100.0, **more: Any
) -> dict[str, Any]:
    """A start whose stages follow each other, with `gap_s` that no stage explains before the first answer."""
    asked, now, told = 100 * SECOND, 100 * SECOND, []
    for name, seconds in stages:
        now += int(gap_s * SECOND) if name == "first_answer" else 0
        told.append({"name": name, "begin_ns": now, "end_ns": now + int(seconds * SECOND)})
        now = told[-1]["end_ns"]
    usual = {"steady_s": [0.1, 0.1], "memory_bytes": 300 * MIB, "resident_fraction": 0.0}
    return {
        "kind": "cold_start", "t_ns": 0, "cell": cell, "repeat": 0, "asked_ns": asked, "answered_ns": now,
        "stages": told, **usual, **more,
    }  # fmt: skip


def found(
    events: list[dict[str, Any]], *levels: dict[str, Any]
) -> tuple[cold.Cold, list[dict[str, Any]], dict[str, Any]]:
    declared = experiment(*levels)
    assert declared.judge is not None
    judge = declared.judge.model_dump(mode="json")
    told = cold.cold(events, [cell.model_dump(mode="json") for cell in declared.cells()])
    return told, cold.effects(told, judge), judge


PLAIN = (("process", 0.5), ("import_torch", 1.5), ("compile", 7.0), ("first_answer", 1.0))
FAST = (("process", 0.01), ("compile", 0.09), ("first_answer", 0.9))


def test_stages_are_means_with_students_interval_and_add_up() -> None:
    middle, slower = ((*PLAIN[:2], ("compile", seconds), PLAIN[3]) for seconds in (8.0, 9.0))
    told, _, _ = found([start(0, *stages) for stages in (PLAIN, middle, slower)], {}, ALL)
    (plain,) = told["cells"]
    # 7, 8 and 9: mean 8, standard error 1 / sqrt(3); Student's t at two degrees of freedom is 4.303.
    assert plain["stages"]["compile"]["mean"] == pytest.approx(8.0)
    assert plain["stages"]["compile"]["high"] - 8.0 == pytest.approx(4.303 / 3**0.5, rel=0.02)
    assert plain["total_s"]["mean"] == pytest.approx((10.0 + 11.0 + 12.0) / 3)
    assert told["unexplained_max_fraction"] == pytest.approx(0.0, abs=1e-9)
    assert list(plain["stages"]) == ["process", "import_torch", "compile", "first_answer"]


def test_kept_code_is_loaded_and_whose_first_answer_is_told() -> None:
    told, effects, judge = found([start(n, *stages) for n, stages in ((0, PLAIN), (1, FAST))], {}, ALL)
    assert "compiles kernels 70 %" in cold.text(told, effects, judge)
    assert cold.steady(told) == (
        "llm, bf16, all remedies: its first answer takes 900 ms, later ones 100 ms (means of 1 start)."
    )
    kept, effects, judge = found([start(0, *PLAIN)], {"compile_cache": True})
    assert "loads kernels 70 %" in cold.text(kept, effects, judge)


def test_what_no_stage_explains_is_told_beyond_five_percent() -> None:
    told, _, _ = found([start(0, *PLAIN, gap_s=1.0)], {}, ALL)
    assert told["cells"][0]["unexplained_fraction"] == pytest.approx(1 / 11)
    assert any("the stages miss 9.09 % of the whole" in text for text in cold.problems(told))
    within, _, _ = found([start(0, *PLAIN, gap_s=0.4)], {}, ALL)
    assert not any("the stages miss" in text for text in cold.problems(within))


def test_two_starts_have_no_interval_and_none_has_no_figures() -> None:
    told, _, _ = found([start(0, *PLAIN)] * 2, {}, ALL)
    assert told["cells"][0]["total_s"] == {"mean": 10.0, "low": None, "high": None, "n": 2}
    assert cold.cold([], [])["cells"] == [] and cold.text(cold.cold([], []), [], None) == "No start was measured."


@pytest.mark.parametrize(("left_s", "holds"), [(1.0, True), (4.0, False)])
def test_the_whole_interval_decides_whether_a_quarter_is_left(left_s: float, holds: bool) -> None:
    fast = (("process", 0.1), ("first_answer", left_s - 0.1))
    events = [start(n, *stages) for _ in range(4) for n, stages in ((0, PLAIN), (1, fast))]
    told, effects, judge = found(events, {}, ALL)
    (effect,) = effects
    assert effect["ratio"] == pytest.approx(left_s / 10) and effect["at"] == {} and effect["level"] == ALL
    assert cold.holds(effects) is holds
    assert "10.0 s to the first answer" in cold.text(told, effects, judge).replace("(10.0 to 10.0 s) ", "")


def test_a_start_that_is_kept_warm_is_no_cold_start_with_remedies() -> None:
    assert cold.is_remedied(ALL) and not cold.is_remedied({**ALL, "keep_warm": True})
    assert cold.holds([]) is None


def test_prices_are_what_is_held_while_nothing_runs() -> None:
    before = {"kind": "cold_cell", "t_ns": 0, "cell": 1, "weight_bytes": 1, "parent_bytes": 400 * MIB,
              "kept_bytes": {"compile_cache": 2 * MIB, "mapped_weights": 260 * MIB}}  # fmt: skip
    told, _, _ = found([start(0, *PLAIN), before, start(1, *FAST)], {}, ALL)
    assert cold.price(told["cells"][1]) == (
        "Its price: 400 MiB of memory for the parent that waits, 2.0 MiB of disk for kept code and 260 MiB of disk for "
        "packed weights."
    )
    assert cold.price(told["cells"][0]) == ""


def test_a_page_cache_that_was_not_emptied_is_told() -> None:
    events = [start(0, *PLAIN, resident_fraction=0.8), start(1, *FAST, resident_fraction=None)]
    texts = " ".join(cold.problems(found(events, {}, ALL)[0]))
    assert "80 % of its files were still in the page cache" in texts
    assert "whether its files had left the page cache could not be seen" in texts


def test_starts_that_failed_and_cells_that_cannot_be_are_named() -> None:
    broken = {
        "kind": "cold_start",
        "t_ns": 0,
        "cell": 0,
        "repeat": 0,
        "error": "it ended (signal 9)",
        "failed": "error",
    }
    without = {"kind": "cold_cell", "t_ns": 0, "cell": 1, "not_measured": "no such thing"}
    told, _, _ = found([broken, without], {}, ALL)
    texts = " ".join(cold.problems(told))
    assert "1 start failed: it ended (signal 9)." in texts and "was not measured: no such thing." in texts
    assert cold.text(told, [], None) == "No start was measured. it ended (signal 9)"


def test_ways_that_no_model_has_are_one_sentence_each_reason() -> None:
    without = [
        {"kind": "cold_cell", "t_ns": 0, "cell": n, "not_measured": why} for n, why in enumerate(["a", "b", "a"])
    ]
    texts = cold.problems(found(without, {}, {"zygote": True}, ALL)[0])
    assert [text for text in texts if "not measured" in text] == [
        "llm, bf16, plain start; llm, bf16, all remedies were not measured: a.",
        "llm, bf16, forked from a parent was not measured: b.",
    ]


def test_levels_of_start_set_fields_and_leave_the_others() -> None:
    cells: list[Cell] = experiment({}, {"compile_cache": True}, {"runtime": "triton"}).cells()
    assert [cell.start and cell.start.compile_cache for cell in cells] == [False, True, False]
    assert cells[2].start is not None and cells[2].start.runtime == "triton"
    with pytest.raises(InputError, match="start: zygote true with runtime 'triton'"):
        experiment({"runtime": "triton", "zygote": True})
