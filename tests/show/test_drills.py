"""Drills: every concept is asked for, numbers come from runs only, answers are right by another way, pages say so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.measure.prices import Price
from lab.run import cassette, prices, results
from lab.run.folder import RunFolder
from lab.show.drills.deck import DRILLS, posed
from lab.show.drills.drill import DECKS, Choice, Points, Posed, pose, said
from lab.show.drills.sheet import sheet
from lab.show.drills.source import Source
from tests.show.conftest import DONE, KV_CACHE, LLM_BATCHING, LLM_LOAD, QUANTIZATION
from tests.show.pages import charts, open_page, words

CONCEPTS = {
    "throughput", "TTFT", "tail latency", "cost", "online", "batch", "streaming", "batching", "quantization",
    "KV cache", "registry", "canary", "blue/green", "serverless", "cold start", "autoscaling",
    "CPU or GPU", "multi-model", "LoRA",
}  # fmt: skip


def source(run_id: str, **changes: Any) -> Source:
    folder = RunFolder.open(run_id)
    price = next(p for p in prices.catalogue() if p.usd_per_hour > 0)
    made = Source(run_id, results.document(folder), folder.document["experiment"], folder.events(), None, price)
    return replace(made, **changes)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, lab_home: Path) -> list[Source]:
    """What comes with the lab, on a machine where nothing has run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(tmp_path_factory.mktemp("nothing")))
        return [source(m.run, recorded="elsewhere") for m in cassette.shipped().values()]


@pytest.fixture(scope="module")
def own(shelf: Path, lab_home: Path) -> list[Source]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(shelf))
        return [source(run) for run in (DONE, KV_CACHE, LLM_BATCHING, QUANTIZATION, LLM_LOAD)]


def drill(name: str) -> Any:
    return next(drill for drill in DRILLS if drill.id == name)


def asked(name: str, sources: list[Source]) -> Posed:
    found = pose(drill(name), sources)
    assert found is not None
    return found


def test_every_concept_is_asked_for_and_every_drill_says_where_it_is_from() -> None:
    assert {drill.concept for drill in DRILLS} == CONCEPTS
    assert len(DRILLS) >= 24 and len({drill.id for drill in DRILLS}) == len(DRILLS)
    assert {drill.deck for drill in DRILLS} == set(DECKS)
    assert all(drill.source and drill.then and drill.runs for drill in DRILLS)


def test_without_a_run_of_ones_own_recorded_ones_ask_of_every_deck(recorded: list[Source]) -> None:
    found = posed(recorded)
    assert len(found) >= 24 and {one.drill.deck for one in found} == set(DECKS)
    for one in found:
        assert one.ask and one.formula and one.why and "{" not in one.ask + one.formula + one.why
        assert "n/a" not in one.ask + one.formula + "".join(one.points + one.options)
        if one.drill.chart is not None:
            drawn = one.drill.chart(one.source)
            assert drawn.alt and len(drawn.figure["data"]) <= 4


def test_an_own_run_comes_before_a_recorded_one(own: list[Source], recorded: list[Source]) -> None:
    found = {one.drill.id: one for one in posed([*recorded, own[0]])}
    assert found["batch_gain"].source.run_id == DONE
    assert found["fit"].source.recorded  # of a question that no own run answers


def test_a_figure_that_was_not_measured_asks_nothing(own: list[Source]) -> None:
    """T34: a run without a cell, and one whose cells lack the figure."""
    (first, *_) = own
    empty = replace(first, document={**first.document, "cells": [], "verdict": {"effects": []}})
    assert [one.drill.id for one in posed([empty])] == []
    cells = [{**c, "summary": {**c["summary"], "latency_p99_s": None}} for c in first.document["cells"]]
    assert pose(drill("spread"), [replace(first, document={**first.document, "cells": cells})]) is None


def test_numbers_by_another_way(own: list[Source]) -> None:
    spread = asked("spread", own)
    summaries = [
        c["summary"] for c in own[0].document["cells"] if c["role"] == "cell" and c["summary"]["latency_p99_s"]
    ]
    assert any(spread.truth == s["latency_p99_s"] / s["latency_p50_s"] for s in summaries)
    assert all(spread.values["latency_p99_s"] >= spread.values[f"latency_{p}_s"] for p in ("p50", "p95"))
    assert asked("samples", own).truth == 459
    assert asked("fan_out", own).truth == pytest.approx(9.5618, abs=1e-3)
    # SmolLM2's shape: 2 x 30 layers x 3 heads x 64 x 2 bytes
    assert asked("cache_bytes", own).truth == 22.5
    assert asked("cache_users", own).truth == 180.0
    # rank 8 on 576 -> 576 and 576 -> 192, 30 layers, 2 bytes
    assert asked("lora_size", own).truth == 8 * (576 + 576 + 576 + 192) * 30 * 2 / 1024
    # a token that is computed anew with everything before it
    cache_off = asked("cache_off", own)
    prompt, answer = cache_off.values["prompt_n"], cache_off.values["answer_n"]
    assert cache_off.values["without_n"] == sum(prompt + n for n in range(answer))
    # 16 p q / d^2 with p = 1.5 %, d = 1 %, to the next whole request
    assert asked("canary_errors", own).values["each_n"] == 2_364


def test_the_queue_by_its_formula(own: list[Source]) -> None:
    """The simulated server is M/D/1 but for its batches: the formula and the measurement agree near 80 %."""
    queue = asked("queue", own)
    busy = queue.values["offered_rps"] * queue.values["compute_mean_s"]
    assert queue.values["wait_s"] == pytest.approx(busy * queue.values["compute_mean_s"] / 2 / (1 - busy))
    assert queue.values["queue_mean_s"] == pytest.approx(queue.values["wait_s"], rel=0.5)


def test_cost_at_two_dollars_and_a_hundred_a_second_is_556(own: list[Source]) -> None:
    """T35; and of nothing that was served in time there is no cost, not an infinite one."""
    two = Price(**{**vars(own[0].price), "usd_per_hour": 2.0})
    cells = [{**c, "summary": {**c["summary"], "goodput_rps": 100.0}} for c in own[0].document["cells"]]
    document = {**own[0].document, "cells": cells}
    found = asked("cost", [replace(own[0], document=document, price=two)])
    assert found.truth == pytest.approx(5.5556, abs=1e-4) and "$5.56" in found.formula
    none = [{**c, "summary": {**c["summary"], "goodput_rps": 0.0}} for c in own[0].document["cells"]]
    assert pose(drill("cost"), [replace(own[0], document={**document, "cells": none}, price=two)]) is None


@pytest.mark.parametrize(
    ("given", "verdict"), [(459, "right"), (467, "right"), (600, "right order"), (1000, "wrong"), (0, "wrong")]
)
def test_an_estimate_is_judged_by_its_factor(given: float, verdict: str, own: list[Source]) -> None:
    assert asked("samples", own).judge(given) == verdict
    assert asked("samples", own).judge(None) == "yours to judge"


def test_a_choice_is_right_by_the_runs_own_figures(own: list[Source]) -> None:
    best = asked("format_best", own)
    rates = {
        level: own[3].at(level, own[3].load(0), "output_tokens_per_s")["output_tokens_per_s"] for level in best.options
    }
    assert best.options[best.truth or 0] == max(rates, key=lambda level: rates[level])
    assert best.judge(best.truth) == "right" and best.judge((best.truth or 0) + 1) == "wrong"


def test_names_in_a_text_are_written_by_their_unit() -> None:
    values = {"a_s": 0.0123, "b_rps": 1900, "c_n": 4603, "d_usd": 0.2, "e_bytes": 23_040, "f": "as it is"}
    assert said("{a_s}, {b_rps}, {c_n}, {d_usd}, {e_bytes}, {f}.", values) == (
        "12.3 ms, 1,900, 4,603, $0.20, 22.5 KiB, as it is."
    )


def test_the_cheat_sheet_names_the_runs_once(own: list[Source]) -> None:
    text = sheet(posed(own))
    assert text.count(DONE) == 1 and f"(run {DONE[-4:]})" in text
    assert all(title in text for title in DECKS.values())


# --- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.pages
def test_a_drill_is_answered_with_a_formula_and_a_chart(full_home: Path) -> None:
    app = open_page("drills", d="spread")
    assert not app.exception and not app.error
    assert "tail latency" in words(app) and f"from your run {DONE}" in words(app)
    assert charts(app) == [] and not app.code[0].value.startswith("p99")
    app.number_input(key="d_spread_number").set_value(0.5)
    app.button(key="d_spread_check").click().run()
    assert not app.exception
    assert "Not this time" in words(app)
    assert any(block.value.startswith("p99 / p50 = ") for block in app.code)
    assert len(charts(app)) == 1
    assert "1 wrong" in app.get("progress")[0].proto.text


@pytest.mark.pages
def test_a_deck_and_a_place_are_in_the_link_and_nonsense_is_told(full_home: Path) -> None:
    app = open_page("drills", d_deck="Change", d="canary_tail")
    assert "canary" in words(app) and "Drill 1 of" in app.get("progress")[0].proto.text
    app.button(key="d_next").click().run()
    assert app.query_params["d"] in ("canary_errors", ["canary_errors"])
    app = open_page("drills", d="../../etc", d_deck="bogus")
    assert not app.exception and "There is no drill `../../etc`" in words(app)


@pytest.mark.pages
def test_a_link_may_hide_the_answers(full_home: Path) -> None:
    app = open_page("drills", d="spread", hide="answers")
    assert "Answers are hidden" in words(app) and not [b for b in app.button if b.label == "Show the answer"]
    app = open_page("drills", d_sheet="true", hide="answers")
    assert "p99 / p50" not in words(app)


@pytest.mark.pages
@pytest.mark.parametrize(("kind", "field"), [(Choice, "radio"), (Points, "text_area")])
def test_the_other_kinds_of_answer_have_their_fields(kind: type, field: str, full_home: Path) -> None:
    name = next(d.id for d in DRILLS if isinstance(d.answer, kind) and "batching" in d.runs)
    app = open_page("drills", d=name)
    assert not app.exception and len(app.get(field)) == 1
