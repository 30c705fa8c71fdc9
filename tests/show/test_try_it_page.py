"""The page Try it, against a model that is a stand-in."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.runtime.scriptrunner import StopException

from lab.errors import ServerError
from lab.run import conversation
from lab.run.conversation import Piece
from lab.show.ui import reads, trying
from lab.spec import ModelSpec
from lab.watch import probe
from tests.show.pages import open_page, words
from tests.show.synthetic_llm import CONFIG

pytestmark = pytest.mark.pages


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for the language model; what it was asked."""
    asked: list[dict[str, Any]] = []

    def say(prompt: str, **sampling: Any) -> Iterator[Piece]:
        asked.append({"prompt": prompt, **sampling})
        sent_ns = time.perf_counter_ns()
        for i, (text, tokens) in enumerate((("a <b>", 4), (" $x$", 3), (" c", 3))):
            yield Piece(text, tokens, sent_ns, sent_ns + (i + 1) * 100_000_000, "length" if i == 2 else None, 9, None)

    def prepare(spec: ModelSpec) -> str:
        asked.append({"prepared": (spec.kv_cache, spec.scheduler, spec.stream_interval)})
        return "127.0.0.1:1"

    monkeypatch.setattr(conversation, "lacking", lambda spec: None)
    monkeypatch.setattr(conversation, "prepare", prepare)
    monkeypatch.setattr(conversation, "say", say)
    return asked


def test_an_answer_is_written_and_scored(empty_home: Path, model: list[dict[str, Any]]) -> None:
    app = open_page("try_it", t_cache="false", t_chunk="4", t_tokens="32")
    app.button(key="write").click().run()
    assert not app.exception
    assert model[0] == {"prepared": (False, "continuous", 4)}
    assert (model[1]["max_tokens"], model[1]["temperature"]) == (32, 0.0)
    (text,) = [h.proto.body for h in app.get("html") if "class='lab-answer'" in h.proto.body]
    assert "a &lt;b&gt; $x$ c" in text
    assert "It reached the longest allowed: 10 tokens after a prompt of 9" in words(app)
    assert "With KV cache off, 4 in a chunk the first of 10 tokens came after 100 ms" in words(app)


def test_the_switcher_scores_the_same_answer_anew(empty_home: Path, model: list[dict[str, Any]]) -> None:
    app = open_page("try_it")
    app.button(key="write").click().run()
    between = {}
    for tool in ("lab", "AIPerf", "LLMPerf"):
        app.segmented_control(key="t_tool").set_value(tool).run()
        between[tool] = app.metric[1].value
    assert between == {"lab": "33.3 ms", "AIPerf": "22.2 ms", "LLMPerf": "100 ms"}
    assert len(model) == 2  # asked once


def test_an_answer_stands_beside_its_floor(
    empty_home: Path, model: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page("try_it")
    app.button(key="write").click().run()
    assert "What a token takes at least here is not known yet" in words(app)
    found = probe.Probe("a processor", 2, 2e9, 170e9, 60e9, 400e9)
    monkeypatch.setattr(probe, "kept", lambda: found)
    monkeypatch.setattr(reads, "model_config", lambda spec: CONFIG)
    # 134,515,008 weights of 16 bits and 14 tokens of 23,040 bytes at 2 GB/s are 135 ms; 33.3 were measured.
    assert "This machine can evidently do more than the probe found" in words(app.run())
    found = replace(found, read_bandwidth_bytes_s=20e9)
    told = words(app.run())
    assert "at this machine's 20.0 GB/s that takes 13.5 ms at least" in told
    assert "Measured: 33.3 ms, 40.4 % of what the machine can do" in told
    app.toggle(key="t_cache").set_value(False).run()
    app.button(key="write").click().run()
    assert "there is no step to hold against a floor" in words(app)


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("", "There is no prompt yet"),
        (" \n ", "There is no prompt yet"),
        ("x" * 4001, "has 4,001 characters; allowed: 4,000"),
    ],
)
def test_a_prompt_that_cannot_be_asked_says_why(
    prompt: str, why: str, empty_home: Path, model: list[dict[str, Any]]
) -> None:
    app = open_page("try_it")
    app.text_area(key="t_prompt").set_value(prompt).run()
    assert app.button(key="write").disabled
    assert why in words(app)
    app.text_area(key="t_prompt").set_value("x" * 4000).run()
    assert not app.button(key="write").disabled


def test_why_nothing_can_be_written_is_said(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "lacking", lambda spec: ("server", "No Triton runs; start it"))
    app = open_page("try_it")
    assert app.button(key="write").disabled
    assert "No Triton runs; start it" in words(app)


def test_a_click_while_it_writes_stops_the_server_too(
    empty_home: Path, model: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def say(prompt: str, **sampling: Any) -> Iterator[Piece]:
        try:
            for _ in range(1000):
                yield Piece("more ", 1, time.perf_counter_ns(), time.perf_counter_ns(), None, 9, None)
        finally:
            closed.append(True)

    def click(*_: Any, **__: Any) -> str:  # as Streamlit ends a script: at its next word to the page
        if asked["drawn"] > 0:
            raise StopException
        asked["drawn"] += 1
        return "<p>…</p>"

    asked = {"drawn": 0}
    monkeypatch.setattr(conversation, "say", say)
    monkeypatch.setattr(trying, "_answer_box", click)
    monkeypatch.setattr(trying, "REDRAW_S", 0.0)
    app = open_page("try_it")
    app.button(key="write").click().run()
    assert closed == [True]
    assert len(app.session_state["tried"][0].pieces) == 1


def test_an_answer_that_breaks_off_is_kept_as_far_as_it_came(
    empty_home: Path, model: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(prompt: str, **sampling: Any) -> Iterator[Piece]:
        yield Piece("half", 1, time.perf_counter_ns(), time.perf_counter_ns(), None, 9, None)
        raise ServerError("model llm: the server is gone")

    monkeypatch.setattr(conversation, "say", say)
    app = open_page("try_it")
    app.button(key="write").click().run()
    assert [e.value for e in app.error] == ["model llm: the server is gone"]
    assert "It was stopped: 1 token" in words(app)


def test_what_is_missing_is_brought_by_a_button_and_no_command(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lacking, key in (("server", "chore_go_serve"), ("weights", "chore_go_fetch-llm")):
        monkeypatch.setattr(conversation, "lacking", lambda spec, lacking=lacking: (lacking, "It is not here."))
        app = open_page("try_it")
        assert app.button(key=key) and app.button(key="write").disabled
        assert "python -m lab" not in words(app) and "It is not here." in words(app)
