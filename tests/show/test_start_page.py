"""The page Start: one click is one run, and its end leads on."""

from pathlib import Path
from typing import Any

import pytest

from lab.errors import RunError
from lab.run import launch
from lab.run.folder import RunFolder
from lab.show.ui import reads
from tests.show.pages import load_run, open_page, run_in_url, words

pytestmark = pytest.mark.pages


def test_one_click_starts_the_quick_experiment_and_shows_it(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    app = open_page("start")
    app.button(key="start").click().run()
    assert not app.exception
    ((experiment, settings, quick, run_id),) = started
    assert (experiment, settings, quick) == ("batching", [], True)
    assert run_in_url(app) == run_id
    assert "under load" in app.title[0].value  # the live page of that run


def test_a_second_click_means_the_same_run(
    empty_home: Path, started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "active_runs", list)  # the second click was on its way before the page knew of a run
    app = open_page("start")
    for _ in range(2):
        app.button(key="start").click().run()
        app.switch_page("pages/start.py").run()
    assert len(started) == 2
    assert len({run_id for *_, run_id in started}) == 1


def test_the_next_start_after_a_run_has_ended_is_another_run(
    empty_home: Path, started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "active_runs", list)
    app = open_page("start")
    for _ in range(2):
        app.button(key="start").click().run()
        RunFolder.open(started[-1][3]).set_status("done")
        app.switch_page("pages/start.py").run()
    assert len({run_id for *_, run_id in started}) == 2


def test_a_refused_start_is_one_line(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise RunError("run x made no folder within 20 s; see `python -m lab doctor`")

    monkeypatch.setattr(launch, "start", refuse)
    app = open_page("start")
    app.button(key="start").click().run()
    assert not app.exception
    assert [error.value for error in app.error] == ["run x made no folder within 20 s; see `python -m lab doctor`"]
    assert app.title[0].value == "What does dynamic batching buy on this machine?"


def test_while_a_run_goes_on_the_button_rests_and_says_why(empty_home: Path) -> None:
    load_run()
    app = open_page("start")
    assert app.button(key="start").disabled
    assert "One run measures at a time" in words(app)
    assert "Load on digits" in words(app)


def test_what_is_missing_is_fetched_by_a_button(empty_home: Path) -> None:
    app = open_page("start")
    assert "python -m lab" not in words(app)
    assert app.button(key="chore_go_fetch").label == "Fetch what is missing"


def test_its_run_goes_on_to_the_verdict(empty_home: Path, started: list[tuple[Any, ...]]) -> None:
    app = open_page("start")
    app.button(key="start").click().run()
    assert app.query_params["then"] in ("batching", ["batching"])
    assert "this page goes on to what it found by itself" in words(app)
