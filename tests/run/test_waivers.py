"""Waivers kept with a run: what may be waived, what a torn or hostile file leaves, and commands that say it."""

from pathlib import Path

import pytest

from lab.__main__ import main
from lab.errors import InputError
from lab.measure.redteam import Question
from lab.run import waivers
from lab.run.folder import RunFolder

RUN = "20261130-010101-load-waiv"
ASKED = (Question("seed", "One draw?", "Yes.", "open"), Question("loop", "Closed?", "No.", "answered"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return RunFolder.create(RUN, {"experiment": {}, "cells": []})


def test_the_newest_line_of_a_question_counts(folder: RunFolder) -> None:
    waivers.waive(RUN, ASKED, "seed", "Ann", "one draw will do")
    waivers.waive(RUN, ASKED, "seed", " Bob ", "two\nlines")
    assert str(waivers.kept(folder)["seed"]).startswith("Bob, 20") and waivers.kept(folder)["seed"].why == "two lines"
    waivers.take_back(RUN, "seed", "Ann")
    assert waivers.kept(folder) == {}
    assert len((folder.path / waivers.FILE).read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("code", "who", "why", "says"),
    [
        ("sede", "Ann", "x", 'raises no such question; did you mean "seed"'),
        ("loop", "Ann", "x", "the run answers this question itself"),
        ("seed", "  ", "x", "has no name"),
        ("seed", "Ann", "", "has no reason"),
        ("seed", "Ann", "x" * 501, "has a reason of 501 characters"),
    ],
)
def test_what_waives_nothing_is_refused_in_one_line(
    code: str, who: str, why: str, says: str, folder: RunFolder
) -> None:
    with pytest.raises(InputError, match=says):
        waivers.waive(RUN, ASKED, code, who, why)
    assert waivers.kept(folder) == {}
    with pytest.raises(InputError, match="nobody waived that question"):
        waivers.take_back(RUN, "seed", "Ann")


def test_lines_that_are_no_waivers_are_passed_over(folder: RunFolder) -> None:
    waivers.waive(RUN, ASKED, "seed", "Ann", "one draw will do")
    with (folder.path / waivers.FILE).open("a") as file:
        file.write('{"code": "loop"}\n[]\n{"code": 1, "who": 2, "why": 3, "utc": 4}\n{ torn')
    assert waivers.kept(folder).keys() == {"seed"}
    assert waivers.told(folder, ASKED[1:]) == {}  # not asked in this report


def test_the_command_says_first_what_it_did(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.run.results.document", lambda folder: {})
    monkeypatch.setattr("lab.measure.redteam.questions", lambda document, experiment: list(ASKED))
    assert main(["review", RUN, "--waive", "seed", "--by", "Ann", "--because", "one draw will do"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Waived: seed, by Ann, 20") and said.partition("\n")[0].endswith(": one draw will do")
    assert main(["review", RUN, "--take-back", "seed"]) == 0
    assert capsys.readouterr().out.startswith("Taken back: the waiver of seed, by Ann\n\n")
    assert main(["review", RUN]) == 0
    assert capsys.readouterr().out.startswith("    OPEN  seed")


def test_the_command_needs_a_run_and_one_thing_to_do(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["review", "20261130-010101-no-such-run"]) == 2
    assert main(["review", RUN, "--waive", "seed", "--take-back", "seed"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "allowed: one of the two" in told[1]
