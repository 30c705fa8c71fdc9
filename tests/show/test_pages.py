"""Every page in every state, run by Streamlit's AppTest: what it says, what it offers, and that nothing raises."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import streamlit as st

from lab.run import gauge
from lab.show.ui import machine, reads
from tests.show.conftest import DONE, FAILED, KV_CACHE, LLM_BATCHING, LLM_LOAD, QUANTIZATION, STOPPED
from tests.show.pages import (
    GOING,
    PAGES,
    PROJECT,
    charts,
    load_run,
    open_page,
    words,
)

pytestmark = pytest.mark.pages


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_to_do_when_nothing_has_run(page: str, empty_home: Path) -> None:
    app = open_page(page)
    assert not app.exception
    assert len(app.title) == 1
    assert not app.error
    assert len(app.info) + len(app.button) >= 1


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("run", [DONE, STOPPED, FAILED])
def test_a_page_shows_a_run_that_ended(page: str, run: str, full_home: Path) -> None:
    app = open_page(page, run=run)
    assert not app.exception
    assert len(app.title) == 1
    assert len(app.metric) <= 4


@pytest.mark.parametrize(
    ("page", "run"),
    [
        ("batching", DONE),
        ("live", DONE),
        ("live", LLM_LOAD),
        ("kv_cache", KV_CACHE),
        ("scheduling", LLM_BATCHING),
        ("quantization", QUANTIZATION),
    ],
)
def test_every_chart_has_a_text_with_a_number_and_a_unit_and_its_data(page: str, run: str, full_home: Path) -> None:
    app = open_page(page, run=run)
    assert not app.exception and not app.error
    drawn = charts(app)
    assert len(drawn) >= 1
    for data in drawn:
        told = re.search(r"\d (ms|s|req/s|tok/s|%|MiB|executions|µs)", data["alt"])
        assert told or "nothing to draw" in data["alt"], data["alt"]
        assert len(data["figure"]["data"]) <= 4 or page == "live"
    shown = [data for data in drawn if data["figure"]["data"]]
    assert len([e for e in app.expander if e.label.endswith("Show data")]) == len(shown) >= 1


@pytest.mark.parametrize("page", ["start", "live", "cost", "rollout"])
def test_the_load_generators_ceiling_stands_on_every_page(page: str, empty_home: Path) -> None:
    assert "client not gauged" in words(open_page(page))
    gauge.keep(9234.5, workers=1)
    st.cache_data.clear()
    assert "client ≤ 9,234 req/s" in words(open_page(page))


def test_the_status_line_says_whether_triton_runs_and_counts_no_models(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no Triton" in words(open_page("start"))
    monkeypatch.setattr(reads, "server", lambda: True)
    assert "Triton runs" in words(open_page("start"))


@pytest.mark.parametrize("page", ["batching", "live"])
@pytest.mark.parametrize("run", ["does-not-exist", "../../etc/passwd", ""])
def test_a_run_that_is_not_there_is_told_in_one_line(page: str, run: str, full_home: Path) -> None:
    app = open_page(page, run=run)
    assert not app.exception
    told = [warning.value for warning in app.warning]
    assert len(told) == (1 if run else 0)
    assert all("\n" not in line and repr(run) in line for line in told)


def test_a_damaged_folder_is_listed_and_does_not_hide_the_others(full_home: Path) -> None:
    (full_home / "runs" / DONE / "run.json").write_text("{ torn")
    app = open_page("runs")
    assert not app.exception
    assert "damaged" in words(app) and "stopped" in words(app)
    assert open_page("live", run=DONE).warning[0].value.count("\n") == 0


DAMAGE = {
    "no cells": ("run.json", lambda d: d.pop("cells")),
    "cells of no kind": ("run.json", lambda d: d.update(cells=5)),
    "an experiment of no kind": ("run.json", lambda d: d.update(experiment=[1])),
    "a summary without its verdict": ("summary.json", lambda d: d.pop("verdict")),
    "a summary of no kind": ("summary.json", lambda d: d.update(cells=[{"factors": {}}])),
}


@pytest.mark.parametrize("page", ["start", "batching", "live", "runs", "system"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_that_makes_no_sense_is_one_line(
    page: str, damage: str, full_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, spoil = DAMAGE[damage]
    path = full_home / "runs" / DONE / name
    document = json.loads(path.read_text())
    spoil(document)
    path.write_text(json.dumps(document))
    app = open_page(page, run=DONE)
    assert not app.exception
    assert len(app.error) <= 1
    assert all("\n" not in error.value and "cannot be shown: " in error.value for error in app.error)
    caplog.clear()


def test_an_exception_while_a_run_is_read_is_one_line(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load_run()
    monkeypatch.setattr(reads, "look", lambda *_: {}["series"])
    app = open_page("live", run=GOING)
    assert not app.exception
    (error,) = app.error
    assert error.value.startswith(
        f"run '{GOING}' cannot be shown: 'series' is missing; its files or the lab are at fault"
    )
    assert any(record.exc_info for record in caplog.records)
    caplog.clear()


def test_a_fault_of_a_page_is_laid_on_no_run(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "logs", lambda: {}["place"])
    (error,) = open_page("system").error
    assert error.value.startswith("this page cannot be shown: 'place' is missing; that is a fault of the page")
    caplog.clear()


@pytest.mark.parametrize(("run", "shown"), [(DONE, True), ("x; rm -rf /", False), ("../../etc/passwd", False)])
def test_a_command_line_is_given_only_for_what_can_be_a_run(run: str, shown: bool, full_home: Path) -> None:
    commands = [block.value for block in open_page("live", run=run).code if "lab show" in block.value]
    assert commands == ([f"python -m lab show {run}"] if shown else [])


def test_no_page_needs_torch_or_mlflow(empty_home: Path) -> None:
    code = (
        "import sys; from streamlit.testing.v1 import AppTest\n"
        "app = AppTest.from_file('app.py', default_timeout=60).run()\n"
        f"for page in {PAGES!r}: app.switch_page(f'pages/{{page}}.py').run()\n"
        "assert not app.exception\n"
        "print([m for m in ('torch', 'mlflow', 'transformers', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr[-2000:]


def test_pages_stay_thin() -> None:
    assert len((PROJECT / "app.py").read_text().splitlines()) < 60
    for page in PAGES:
        assert len((PROJECT / "pages" / f"{page}.py").read_text().splitlines()) < 150
