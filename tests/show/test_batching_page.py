"""An experiment's page in five blocks, on runs of the batching experiment."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lab.__main__ import main
from lab.run.text import lines
from lab.show.charts import batching
from lab.show.grid import ALONE, Grid, load_name, short_label
from tests.show.conftest import DONE, FAILED, KV_CACHE, LLM_BATCHING, LLM_LOAD, STOPPED
from tests.show.pages import (
    GOING,
    charts,
    load_run,
    open_page,
    words,
)
from tests.show.synthetic import batching_run

pytestmark = pytest.mark.pages
LOAD = "workload.arrival.saturation_fraction"


def test_a_finished_comparison_opens_with_its_headline(full_home: Path, document: dict[str, Any]) -> None:
    app = open_page("batching", run=DONE)
    headline = document["verdict"]["text"].partition(". ")[0].rstrip(".")
    assert f"#### {headline}." in [m.value for m in app.markdown]
    assert [metric.label for metric in app.metric] == ["Served in time", "p50 latency", "p99 latency", "Mean batch"]
    titles = {data["figure"]["layout"]["yaxis"]["title"]["text"] for data in charts(app)[:2]}
    assert titles == {"latency from the scheduled arrival, ms"}


def test_the_page_says_whether_the_answers_stayed_the_same(empty_home: Path) -> None:
    batching_run(DONE, duration_s=1.0)
    assert "(64 requests, largest difference 3.8e-06)" in words(open_page("batching", run=DONE))
    batching_run(STOPPED, duration_s=1.0, difference=0.02)
    app = open_page("batching", run=STOPPED)
    assert "up to 0.02 apart, 0.0001 is allowed" in words(app)  # in place of a headline
    assert "The answers differ" in app.error[0].value


def test_the_link_chooses_level_and_load(full_home: Path) -> None:
    app = open_page("batching", run=DONE, b_level="5 ms delay", b_load="10 %")
    assert "Executed batch sizes at 10 % of saturation" in words(app)
    assert "5 ms delay" in charts(app)[0]["alt"]


def test_nonsense_in_the_link_falls_back_to_the_default(full_home: Path) -> None:
    app = open_page("batching", run=DONE, b_level="bogus", b_load="NaN", b_slo="abc", b_size="9999", b_bet="x")
    assert not app.exception
    assert "Executed batch sizes at 120 % of saturation" in words(app)
    assert app.number_input(key="b_slo").value == 20.0


def test_one_request_has_one_cost_on_the_page(full_home: Path) -> None:
    said = words(open_page("batching", run=DONE))
    costs = re.findall(r"[Oo]ne item costs .+? of compute alone and .+? in a batch of \d+", said)
    assert len(costs) == 2  # in the verdict and under Why
    assert costs[0].lower() == costs[1].lower()


def test_a_load_that_forbids_a_verdict_is_not_the_default_and_says_why(full_home: Path) -> None:
    path = full_home / "runs" / DONE / "summary.json"
    document = json.loads(path.read_text())
    text = "The client was the limit."
    problem = {"code": "client_limited", "text": text, "remedy": "More workers.", "forbids_verdict": True}
    fraction = "workload.arrival.saturation_fraction"
    for cell in document["cells"]:
        if cell["factors"].get(fraction) == 1.2:
            cell["summary"]["problems"] = [problem]
    del document["verdict"]["headline"]  # it would be about another load, too
    for effect in document["verdict"]["effects"]:
        if effect["at"].get(fraction) == 1.2:
            effect.update(verdict="not comparable", reason=text, ratio=None)
    path.write_text(json.dumps(document))
    said = words(open_page("batching", run=DONE, b_bet="more"))
    assert "Executed batch sizes at 80 % of saturation" in said
    assert "You bet on more" in said  # scored at 80 %, not left open
    assert "No verdict on these figures" not in said
    said = words(open_page("batching", run=DONE, b_load="120 %"))
    assert f"No verdict on these figures] batching off: {text}" in said


def test_a_bet_is_scored(full_home: Path) -> None:
    app = open_page("batching", run=DONE, b_bet="fewer")
    assert "You bet on fewer, 2×" in words(app)


def test_the_bet_names_the_objective_that_will_score_it(full_home: Path) -> None:
    path = full_home / "runs" / DONE / "run.json"
    document = json.loads(path.read_text())
    document["experiment"]["slo"]["latency_s"] = 0.035
    path.write_text(json.dumps(document))
    assert "within 35 ms, compared" in words(open_page("batching", run=DONE, b_slo="50"))
    assert "within 50 ms, compared" in words(open_page("batching", run=GOING, b_slo="50"))  # no such run


def test_a_stopped_run_says_that_it_is_partial(full_home: Path) -> None:
    """5 blocks of saturation and 2 of the 15 cells; the third was cut."""
    app = open_page("batching", run=STOPPED)
    assert app.warning[0].value == ("Stopped by hand after 7 of 20 blocks; the one that had begun is not compared.")
    assert "Only 3 of 15 cells are measured" in words(app)
    assert any(m.value.startswith("#### At 2") for m in app.markdown)  # not the "Not decided" of the badge above it
    assert "is not drawn" in words(app) or "ends at" in words(app)


def test_a_failed_run_says_after_how_much_and_why(full_home: Path) -> None:
    said = "Failed after 8 of 20 blocks: the server died while the load ran: signal 9."
    assert open_page("batching", run=FAILED).warning[0].value == said
    assert open_page("live", run=FAILED).error[0].value == said


def test_the_page_and_the_terminal_doubt_in_the_same_words(full_home: Path, document: dict[str, Any]) -> None:
    """A problem that several blocks have is told with the figures of the first, and says so."""
    told = [line.removeprefix("- ") for line in lines(document) if line.startswith("- ")]
    shown = [m.value for m in open_page("batching", run=DONE).markdown if m.value.startswith("- ")]
    shown = [text for text in shown if "\n" not in text]  # the verdict's sentences are one list
    assert [text.removeprefix("- ").replace(" *", " ").removesuffix("*") for text in shown] == told
    assert any("blocks, the first: " in text for text in shown)


def test_a_run_that_is_over_is_shown_whole(full_home: Path) -> None:
    (drawn,) = charts(open_page("live", run=DONE))
    begin, end = drawn["figure"]["layout"]["xaxis"]["range"]
    assert (begin, end > 60) == (0, True)  # 5 + 30 blocks of 1.5 and 2 s
    (drawn,) = charts(open_page("live", run=DONE, w_over="30 s"))
    assert drawn["figure"]["layout"]["xaxis"]["range"][0] == pytest.approx(end - 30)


@pytest.mark.parametrize(
    ("run", "title"),
    [(KV_CACHE, "KV cache on llm"), (LLM_BATCHING, "Continuous batching on llm"), (LLM_LOAD, "llm under load")],
)
def test_a_run_goes_by_its_experiments_own_title(run: str, title: str, full_home: Path) -> None:
    assert open_page("live", run=run).title[0].value == title


def test_a_run_of_an_experiment_without_a_title_goes_by_its_id(full_home: Path) -> None:
    path = full_home / "runs" / KV_CACHE / "run.json"
    document = json.loads(path.read_text())
    del document["experiment"]["title"]
    path.write_text(json.dumps(document))
    assert open_page("live", run=KV_CACHE).title[0].value == "Kv cache on llm"


def test_a_withheld_figure_is_a_card_with_a_reason(full_home: Path) -> None:
    app = open_page("batching", run=STOPPED)
    (p99,) = [metric for metric in app.metric if metric.label == "p99 latency"]
    assert p99.value == "n/a" and "459" in p99.proto.help


def test_a_run_that_compares_nothing_is_sent_to_its_live_page(empty_home: Path) -> None:
    load_run()
    app = open_page("batching", run=GOING)
    assert "answers no such question" in app.info[0].value


def test_the_run_form_hands_on_what_was_chosen(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    app = open_page("batching", b_model="embedder", b_slo="50", b_depth="whole")
    app.button(key="run_ab").click().run()
    ((experiment, settings, quick, _),) = started
    assert (experiment, settings, quick) == ("batching", ["model.name=embedder", "slo.latency_s=0.05"], False)


def test_the_cards_open_on_what_the_headline_is_about(full_home: Path, document: dict[str, Any]) -> None:
    told = document["verdict"]["headline"]
    app = open_page("batching", run=DONE)
    load = f"{100 * told['at']['workload.arrival.saturation_fraction']:g} %"
    delay_us = told["level"]["max_queue_delay_us"]
    assert app.segmented_control(key="b_load").value == f"{load} of saturation"
    assert app.segmented_control(key="b_level").value == (f"{delay_us / 1000:g} ms delay" if delay_us else "no delay")
    assert load in words(app).partition("#### ")[2].partition("\n")[0]


def test_the_badge_says_at_how_many_loads_it_holds(full_home: Path, document: dict[str, Any]) -> None:
    holding = sum(load["answer"] == "yes" for load in document["verdict"]["where"])
    assert 0 < holding < 3
    assert f"The hypothesis holds at {holding} of 3 loads]" in words(open_page("batching", run=DONE))


@pytest.mark.parametrize("points", [0, 1, 2])
def test_the_table_beside_a_chart_is_the_json_export(
    points: int, full_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T34: with no load point, one and two, every chart renders, and what "Show data" shows is what --json prints."""
    assert main(["show", DONE, "--json"]) == 0
    exported = json.loads(capsys.readouterr().out)
    loads = {cell["factors"][LOAD]: None for cell in exported["cells"] if cell["role"] == "cell"}
    kept = list(loads)[:points]
    cells = [c for c in exported["cells"] if c["role"] == "cell" and c["factors"][LOAD] in kept]
    grid = Grid.of({**exported, "cells": cells}, "model.batching", None)
    pair = (grid.baseline, next((level for level in grid.levels if level != grid.baseline), grid.baseline))
    load = next(iter(grid.loads), ALONE)
    drawn = [
        batching.throughput_latency(grid, pair, 0.020),
        batching.batch_sizes(grid, pair, load),
        batching.where_time_goes(grid, load),
        batching.cost_of_one([c["summary"] for c in cells], "digits"),
    ]
    assert all(chart.alt for chart in drawn)
    shown = pd.DataFrame(drawn[0].table)
    assert len(shown) == 5 * 2 * points  # levels × repeats × loads, those that are not drawn among them
    for cell in cells:
        level = short_label("model.batching", cell["factors"]["model.batching"])
        rows = shown[(shown["level"] == level) & (shown["repeat"] == cell["repeat"] + 1)]
        (row,) = [r for r in rows.to_dict("records") if r["load"] == load_name({LOAD: cell["factors"][LOAD]})]
        summary = cell["summary"]
        assert row["served, req/s"] == summary["throughput_rps"]
        for p in ("p50", "p99"):
            found, told = row[f"{p}, ms"], summary[f"latency_{p}_s"]
            assert (found is None or math.isnan(found)) if told is None else found == pytest.approx(1e3 * told)


def test_below_a_run_that_is_gone_nothing_is_promised(empty_home: Path) -> None:
    gone = words(open_page("batching", run=GOING))
    assert f"there is no run '{GOING}'" in gone and "will stand here" not in gone and "What happened" not in gone
