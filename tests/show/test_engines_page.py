"""Engines on the page Your server: what a run found, and what the form starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.run import catalogue, launch, results
from lab.run.plan import cell_blocks, settle, with_rate
from lab.serve.health import ModelState
from lab.show.charts import engines as charts
from lab.show.ui import your_server
from tests.show.pages import components, open_page, words
from tests.show.synthetic_llm import LlmAuthor

pytestmark = pytest.mark.pages

RUN = "20261130-020301-engines-done"
VLLM, GONE = "SmolLM2 at 127.0.0.1:8100", "ts at 127.0.0.1:18080"
LEVELS: list[dict[str, Any]] = [
    {"url": None},
    {"url": "openai+http://127.0.0.1:8100", "protocol": "openai", "served_model": "SmolLM2"},
    {"url": "torchserve+http://127.0.0.1:18080", "protocol": "torchserve", "served_model": "ts"},
]


@pytest.fixture
def document(empty_home: Path) -> dict[str, Any]:
    """A run of the lab's engine and one as fast, which ends one answer otherwise, beside a third that was not there."""
    settings = [("workload", LEVELS), ("judge.baseline", LEVELS[0]), ("workload.duration_s", 20)]
    experiment = settle(catalogue.experiment("engines"), settings, quick=True)
    author = LlmAuthor(experiment, RUN, seconds=60)
    author.folder.event("engine_failed", cell=2, text="nobody listens there")
    for index, block in enumerate(cell_blocks(experiment)[:2]):
        author.llm_block(index, with_rate(block, None))
    author.folder.event("questions", texts=["Why is the sky blue?", "Who was first?"])
    author.folder.event("words", cell=0, texts=["Because of light.", "The first one."])
    author.folder.event("words", cell=1, texts=["Because of <air>.", "The first one."])
    return results.document(author.end("done"))


@pytest.mark.pages
def test_the_run_is_told_with_words_and_speed(document: dict[str, Any]) -> None:
    app = open_page("your_server", run=RUN)
    said = words(app)
    assert not app.exception
    assert f"With 4 in flight, {VLLM} writes" in said and "where the lab's engine writes" in said
    assert f"{VLLM} gives 1 of 2 answers in the same words as the lab's engine" in said
    assert f"{GONE} failed: nobody listens there." in said
    assert [metric.label for metric in app.metric] == ["the lab's engine", VLLM, GONE]
    assert "1 of 2 in the same words" in app.metric[1].delta and app.metric[2].value == "n/a"
    drawn = [data["figure"]["data"][0]["y"] for data in components(app) if "figure" in data]
    assert drawn == [[VLLM, "the lab's engine"]] * 2  # the one that failed is in the notes
    answers = [node.proto.body for node in app.get("html") if "lab-answer'" in node.proto.body]
    assert answers == [
        "<div class='lab-answer'>Because of<mark> light.</mark></div>",
        "<div class='lab-answer'>Because of<mark> &lt;air&gt;.</mark></div>",
    ]


def test_a_chart_says_why_an_engine_is_not_in_it(document: dict[str, Any]) -> None:
    rows = document["engines"]["rows"]
    chart = charts.speed(rows)
    assert chart.notes == (f"{GONE} is not drawn: nobody listens there",)
    assert chart.table["engine"] == ["the lab's engine", VLLM, GONE] and chart.table["tokens/s"][2] is None
    uncounted = [{**row, "figures": {**row["figures"], "output_tokens_per_s": None}} for row in rows]
    drawn = charts.speed(uncounted)
    assert "answers/s" in drawn.table and "Not every engine counts" in drawn.notes[0]
    assert "nothing to draw" in charts.begins([rows[2]]).alt


@pytest.mark.pages
def test_the_form_starts_the_command_it_shows(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(launch, "start_command", lambda *given: started.append(given))
    app = open_page("your_server")
    app.segmented_control(key="g_part").set_value("Language model engines beside each other").run()
    assert "alone, an engine is no comparison" in words(app)
    app.text_area(key="e_engines").set_value("openai+http://127.0.0.1:8100=SmolLM2").run()
    app.number_input(key="e_users").set_value(8).run()
    app.button(key="e_go").click().run()
    command, arguments, _ = started[0]
    assert command == "engines" and arguments[:4] == [
        "--engine",
        "openai+http://127.0.0.1:8100=SmolLM2",
        "--concurrency",
        "8",
    ]
    app = open_page("your_server")
    app.segmented_control(key="g_part").set_value("Language model engines beside each other").run()
    app.text_area(key="e_engines").set_value("127.0.0.1:8100").run()
    assert "allowed is URL=MODEL" in words(app)


class Small:
    """A server of the OpenAI protocol with one model."""

    def __enter__(self) -> Small:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def states(self) -> list[ModelState]:
        return [ModelState("small", True, None)]


def test_a_model_behind_the_openai_protocol_is_measured_with_an_objective(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(launch, "start_command", lambda *given: started.append(given))
    monkeypatch.setattr(your_server, "at", lambda url: Small())
    app = open_page("your_server")
    app.text_input(key="g_url").set_value("openai+http://127.0.0.1:8100").run()
    app.number_input(key="g_prompt").set_value(32).run()
    app.button(key="g_go").click().run()
    command, arguments, _ = started[0]
    assert command == "load" and arguments[:4] == ["--url", "openai+http://127.0.0.1:8100", "--model", "small"]
    assert {"--prompt-tokens=32", "--output-tokens=64", "--ttft=1000", "--itl=100"} <= set(arguments)
    app = open_page("your_server")
    app.text_input(key="g_url").set_value("torchserve+http://127.0.0.1:8080").run()
    assert "openai+http://HOST:PORT" in words(app)


def test_an_address_that_came_with_a_link_is_asked_once_the_user_says_so(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def at(url: str) -> Small:
        asked.append(url)
        return Small()

    monkeypatch.setattr(your_server, "at", at)
    monkeypatch.setenv("LAB_API_KEY", "secret")
    app = open_page("your_server", g_url="openai+http://127.0.0.1:8101")
    assert not asked and "the key of your environment goes with it" in words(app)
    app.button(key="g_ask").click().run()
    assert asked == ["openai+http://127.0.0.1:8101"]
