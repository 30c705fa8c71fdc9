"""The charts of language models, as dicts: what is drawn is what was given, and what is not drawn says why."""

from typing import Any

import numpy as np
import pytest

from lab.measure.position import Bucket, Held
from lab.measure.reconcile import Row
from lab.show.charts import levels, memory, slots, tokens
from lab.show.charts.figure import values_of
from lab.show.charts.slots import Stretch
from lab.show.grid import Grid

FACTOR, LENGTH, PROMPT = "model.kv_cache", "workload.output_tokens", "workload.prompt_tokens"
OFF, ON = "KV cache off", "KV cache on"
MIB = 2**20


def cell(kv_cache: bool, length: int, rate: float | None, prompt: int = 16, **more: Any) -> dict[str, Any]:
    notes = {} if rate is not None else {"output_tokens_per_s": "no answer was streamed"}
    summary = {"output_tokens_per_s": rate, "ttft_mean_s": 0.5, "latency_mean_s": 2.0, "notes": notes, **more}
    return {"factors": {PROMPT: prompt, LENGTH: length, FACTOR: kv_cache}, "repeat": 0, "summary": summary}


def effect(length: int, ratio: float | None, **more: Any) -> dict[str, Any]:
    found = {"level": True, "at": {PROMPT: 16, LENGTH: length}, "metric": "output_tokens_per_s", "verdict": "higher"}
    interval = {"ci_low": ratio and 0.9 * ratio, "ci_high": ratio and 1.1 * ratio}
    return {**found, "a": 20.0, "ratio": ratio, **interval, "difference": 30.0, "reason": "", **more}


def document(*effects: dict[str, Any]) -> dict[str, Any]:
    cells = [cell(False, 32, 20.0), cell(True, 32, 50.0), cell(False, 256, 10.0), cell(True, 256, None)]
    return {"cells": [*cells, cell(True, 32, 999.0, prompt=128)], "verdict": {"effects": list(effects)}}


def grid_of(found: dict[str, Any]) -> Grid:
    return Grid.of(found, FACTOR, False)


def at(length: int) -> str:
    return f"prompts of 16 tokens, answers of {length} tokens"


# --- levels by load ---------------------------------------------------------------------------------------------


def test_rows_are_the_levels_of_one_factor_and_the_others_stay_fixed() -> None:
    found = document(effect(32, 2.5))
    chart = levels.by_load(grid_of(found), found, "output_tokens_per_s", LENGTH, at(32))
    off, on = chart.figure["data"]
    assert (off["name"], list(values_of(off["x"])), off["y"]) == (OFF, [20.0, 10.0], ["32 tokens", "256 tokens"])
    assert (on["name"], list(values_of(on["x"])), on["y"]) == (ON, [50.0], ["32 tokens"])  # none of the long prompts
    assert chart.notes == (f"{ON} at 256 tokens is not drawn: no answer was streamed",)
    assert chart.figure["layout"]["xaxis"]["title"]["text"] == "output token rate, tok/s"


def test_the_interval_of_the_ratio_lies_on_the_baseline() -> None:
    found = document(effect(32, 2.5))
    on = levels.by_load(grid_of(found), found, "output_tokens_per_s", LENGTH, at(32)).figure["data"][1]
    assert on["text"] == ["<b>2.5×</b> (2.2 to 2.8×)"]  # 0.9 and 1.1 of 2.5
    assert values_of(on["error_x"]["arrayminus"]) == pytest.approx([50 - 0.9 * 2.5 * 20])
    assert values_of(on["error_x"]["array"]) == pytest.approx([1.1 * 2.5 * 20 - 50])


def test_without_a_ratio_the_difference_stands_and_without_a_verdict_nothing() -> None:
    for verdict, text in (("higher", "<b>+30.0 tok/s</b>"), ("not comparable", "")):
        found = document(effect(32, None, verdict=verdict))
        on = levels.by_load(grid_of(found), found, "output_tokens_per_s", LENGTH, at(32)).figure["data"][1]
        assert on["text"] == [text]


def test_a_row_without_the_baselines_figure_keeps_its_place() -> None:
    cells = [cell(False, 32, None), cell(True, 32, 50.0), cell(False, 256, 10.0), cell(True, 256, 60.0)]
    found = {"cells": cells, "verdict": {"effects": []}}
    chart = levels.by_load(grid_of(found), found, "output_tokens_per_s", LENGTH, at(32))
    assert chart.figure["data"][0]["y"] == ["256 tokens"]
    assert chart.figure["layout"]["yaxis"]["categoryarray"] == ["32 tokens", "256 tokens"]
    assert chart.alt == "32 tokens: 50.0 tok/s with KV cache on; 256 tokens: 60.0 tok/s with KV cache on."


# --- tokens -----------------------------------------------------------------------------------------------------


def buckets(*medians_s: float) -> list[Bucket]:
    return [Bucket(10 * i + 1, 10 * i + 10, s, s * 0.9, s * 1.1, 5) for i, s in enumerate(medians_s)]


def test_time_per_token_is_drawn_in_ms_at_the_middle_of_each_stretch() -> None:
    found = {OFF: buckets(0.02, 0.04, 0.08), ON: buckets(0.02, 0.02, 0.02)}
    chart = tokens.along_the_answer(found, OFF, at(32))
    off, on = chart.figure["data"]
    assert list(values_of(off["x"])) == [5.5, 15.5, 25.5]
    assert values_of(off["y"]) == pytest.approx([20.0, 40.0, 80.0])
    assert values_of(on["y"]) == pytest.approx([20.0, 20.0, 20.0])
    assert f"with {OFF} a token takes 20.0 ms at the start and 80.0 ms at token 30" in chart.alt
    assert chart.table["tokens"][2] == "21 to 30" and chart.table["waits"] == [5] * 6


def test_an_answer_too_short_is_not_drawn_and_says_so() -> None:
    chart = tokens.along_the_answer({OFF: buckets(0.02), ON: []}, OFF, at(32))
    assert chart.figure["data"] == []
    assert "long enough" in chart.alt


def test_an_answer_is_its_first_token_and_the_rest() -> None:
    chart = tokens.answer_time(grid_of(document()), at(32))
    first, rest = chart.figure["data"]
    assert (list(values_of(first["x"])), list(values_of(rest["x"]))) == ([0.5, 0.5], [1.5, 1.5])
    assert chart.table["whole answer, ms"] == [2000.0, 2000.0]


def test_a_token_costs_the_step_over_those_that_share_it() -> None:
    engine = {"engine_batch_mean": 4.0, "step_mean_s": 0.040}
    cells = [cell(False, 32, 1.0, engine_batch_mean=1.0, step_mean_s=0.02), cell(True, 32, 1.0, **engine)]
    chart = tokens.cost_of_one(grid_of({"cells": cells, "verdict": {}}), (OFF, ON))
    assert chart.table["answers in a step, mean over steps"] == [1.0, 4.0]
    assert chart.table["cost of a token, ms"] == pytest.approx([20.0, 10.0])
    assert chart.alt == "With 1.0 answers in a step on average a token costs 20.0 ms, with 4.0 it costs 10.0 ms."


def test_engines_that_count_nothing_are_named() -> None:
    nothing = {"engine_batch_mean": None, "step_mean_s": None}
    cells = [cell(True, 32, 1.0, **nothing)]
    cells[0]["summary"]["notes"]["step_mean_s"] = "the model reports no engine counters"
    chart = tokens.cost_of_one(grid_of({"cells": cells, "verdict": {}}), (ON,))
    assert "the model reports no engine counters" in chart.alt


# --- slots ------------------------------------------------------------------------------------------------------


def stretch(slots_: int, *requests: tuple[float, float, float]) -> Stretch:
    due, first, last = (np.array(column) for column in zip(*requests, strict=True))
    return Stretch(10.0, slots_, due, first, last, np.full(len(due), 7))


STATIC = stretch(2, (0, 0, 2), (0, 0, 8), (0, 8, 10), (4, 8, 9))
"""Two answers begin together, one ends after 2 s; the next two wait for the other's end after 8 s."""


def test_answers_take_the_first_free_slot() -> None:
    assert STATIC.placed() == [(0, 0), (0, 2), (1, 1), (1, 3)]


def test_a_slot_is_wasted_while_it_is_empty_and_a_request_waits() -> None:
    # From 2 to 8 s one of two slots is empty, and the third request waits: 6 of 20 slot seconds. After 9 s none waits.
    assert STATIC.wasted_fraction == pytest.approx(0.3)
    assert stretch(2, (0, 0, 2), (5, 5, 8)).wasted_fraction == 0.0  # empty, but nobody waits
    assert stretch(1, (0, 0, 10), (0, 10, 12)).wasted_fraction == 0.0  # one waits, but no slot is empty


def test_each_answer_is_a_bar_inside_the_stretch() -> None:
    chart = slots.slots(STATIC, "static batching", "300 % of saturation")
    (bars,) = chart.figure["data"]
    assert list(bars["y"]) == [1, 1, 2, 2]
    assert list(values_of(bars["base"])) == [0.0, 8.0, 0.0, 8.0]
    assert list(values_of(bars["x"])) == [2.0, 2.0, 8.0, 1.0]
    assert bars["marker"]["opacity"] == [1.0, 0.6, 1.0, 0.6]
    assert "30 % of their time they were empty while a request waited" in chart.alt


def test_a_request_that_was_never_answered_waits_and_has_no_bar() -> None:
    never = Stretch(10.0, 1, np.array([0.0]), np.array([12.0]), np.array([12.0]), np.array([0]))
    assert never.wasted_fraction == 1.0
    assert slots.slots(never, "one at a time", "this load").figure["data"] == []


# --- memory -----------------------------------------------------------------------------------------------------


def test_memory_is_drawn_against_tokens_with_what_the_config_predicts() -> None:
    readings = [Held(i, 100 * i, (500 + 2.0 * i) * MIB) for i in range(1, 5)]
    chart = memory.held({OFF: [Held(0, 0, 490.0 * MIB)], ON: readings}, OFF, 2 * MIB // 100)
    off, on, predicted = chart.figure["data"]
    assert list(values_of(off["x"])) == [0.0]
    assert list(values_of(on["x"])) == [100.0, 200.0, 300.0, 400.0]
    assert list(values_of(on["y"])) == [502.0, 504.0, 506.0, 508.0]
    assert values_of(predicted["y"]) == pytest.approx([502.0, 508.0], rel=1e-4)
    assert "20.5 KiB by the model's config" in chart.alt


def test_many_readings_are_drawn_as_few_medians() -> None:
    readings = [Held(i, i, MIB * (500.0 + i % 3)) for i in range(1000)]
    (points,) = memory.held({ON: readings}, OFF, None).figure["data"]
    assert len(values_of(points["x"])) == memory.MOST_POINTS
    assert set(values_of(points["y"])) == {501.0}


def test_the_ledger_names_its_error_and_what_is_missing() -> None:
    rows = [
        Row("weights", 257.0 * MIB, 250.0 * MIB, "what the engine allocated"),
        Row("scales", 0, None, "nothing is quantized"),
        Row("KV cache, room", 100.0 * MIB, None, "not measured"),
        Row("zero-points", 0, None, "in their scales", "in the lowest 4 bits of their scales"),
        Row("activations", 5.0 * MIB, None, "measured together, below"),
        Row("runtime", None, 230.0 * MIB, "the idle process without its weights"),
    ]
    chart = memory.ledger(rows, ON)
    assert chart.table["part"] == ["weights", "KV cache, room", "zero-points", "activations", "runtime"]
    assert chart.table["error, %"] == pytest.approx([2.8, None, None, None, None])
    assert [a["text"] for a in chart.figure["layout"]["annotations"]] == [
        "2.8 % too high",
        "not measured",
        "in the lowest 4 bits of their scales",
        "measured together, below",
        "not predicted",
    ]
    assert "weights 250 MiB measured, 2.8 % too high" in chart.alt


def test_a_ledger_of_nothing_says_why() -> None:
    assert "not on this machine" in memory.ledger([], ON, "the config of llm is not on this machine any more").alt


def test_an_effect_of_unknown_size_shows_its_bound() -> None:
    wide = {"ratio": 803.0, "ci_low": 13.0, "ci_high": 49_676.0, "verdict": "higher"}
    assert levels._effect(wide, "output_tokens_per_s") == "<b>at least 13×</b>"
    assert levels._effect({**wide, "ci_high": 900.0}, "output_tokens_per_s") == "<b>803×</b> (13 to 900×)"
