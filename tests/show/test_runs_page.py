"""The page Runs."""

import json
import shutil
from pathlib import Path

import pytest

from lab.run import results
from lab.run.folder import RunFolder
from lab.show.ui import listing, reads
from tests.show.conftest import DONE, STOPPED
from tests.show.pages import (
    GOING,
    load_run,
    open_page,
    words,
)

pytestmark = pytest.mark.pages


def test_runs_are_found_by_words_and_state(full_home: Path) -> None:
    assert words(open_page("runs", r_q="batching-fail")).count("20261130-") == 1
    app = open_page("runs", r_state="stopped")
    assert STOPPED in words(app) and DONE not in words(app)
    assert "No run matches" in words(open_page("runs", r_q="no such thing"))


def test_the_search_minds_no_capitals() -> None:
    line = reads.RunLine("20261130-020202-x", "done", "", "batching", "Batching", "Digits", 1, False, "")
    assert listing.matching([line], "bATCHING digits", None) == [line]
    assert listing.matching([line], "embedder", None) == []


def test_a_damaged_run_says_why_in_full_and_so_does_its_download(full_home: Path) -> None:
    (full_home / "runs" / DONE / "run.json").write_text("{ torn")
    assert any("run.json: damaged: Expecting" in c.value for c in open_page("runs").caption)
    assert "run.json: damaged" in json.loads(listing._figures(DONE))["error"]


def test_deleting_removes_the_run_and_a_refusal_is_told(full_home: Path) -> None:
    load_run()
    app = open_page("runs")
    assert app.button(key=f"delete_{GOING}").disabled
    listing.delete(DONE)
    assert not (full_home / "runs" / DONE).exists()


def test_the_download_is_the_document(full_home: Path) -> None:
    assert json.loads(listing._figures(DONE)) == json.loads(json.dumps(results.document(RunFolder.open(DONE))))


def test_two_hundred_runs_are_listed_at_once_and_a_page_at_a_time(full_home: Path) -> None:
    source = full_home / "runs" / DONE
    for i in range(200):
        copy = full_home / "runs" / f"20261129-{i:06d}-batching-copy"
        copy.mkdir()
        for name in ("run.json", "status.json"):
            shutil.copy(source / name, copy / name)
    app = open_page("runs")
    assert not app.exception
    assert len([b for b in app.button if str(b.key).startswith("delete_")]) == listing.PAGE_SIZE
    runs, last = 200 + len(list((full_home / "runs").glob("20261130-*"))), 18
    app.number_input(key="r_page").set_value(last).run()
    assert len([b for b in app.button if str(b.key).startswith("delete_")]) == runs - (last - 1) * listing.PAGE_SIZE
