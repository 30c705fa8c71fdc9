"""How a run ends whose blocks are decided on the way; no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.errors import RunError
from lab.run.catalogue import single
from lab.run.folder import RunFolder
from lab.run.lock import who_measures
from lab.run.runner import Stop, create
from lab.run.turn import once, turn


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    asked = {"arrival": {"kind": "constant", "rate_rps": 1.0}, "duration_s": 1.0}
    experiment = single({"name": "null"}, asked, name="search")
    return create(experiment, "20261130-010101-search-turn", quick=False, settings=[], url=None)


def ended(folder: RunFolder) -> tuple[str, str, str, float]:
    """State, message, phase and progress; the state is that of the summary too."""
    status = folder.status()
    assert json.loads((folder.path / "summary.json").read_text())["state"] == status.state
    return status.state, status.message, status.phase, status.progress


def test_the_machine_is_its_own_until_it_is_done(folder: RunFolder) -> None:
    with turn(folder, "search", Stop(), lambda text: None):
        assert who_measures() == folder.run_id
        assert folder.status().state == "starting"
    assert who_measures() is None
    assert ended(folder) == ("done", "", "search", 1.0)


def test_one_that_was_stopped_is_cancelled(folder: RunFolder) -> None:
    stop = Stop()
    with turn(folder, "search", stop, lambda text: None):
        stop.set()
    assert ended(folder) == ("cancelled", "stopped by the user", "search", 1.0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RunError("the server died"), "the server died"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (ZeroDivisionError(), "it ended without saying why"),
    ],
)
def test_one_that_broke_off_says_why(folder: RunFolder, error: Exception, words: str) -> None:
    with pytest.raises(type(error)), turn(folder, "search", Stop(), lambda text: None):
        raise error
    assert who_measures() is None
    assert ended(folder) == ("failed", words, "search", 1.0)


def test_who_waits_says_so_when_the_one_before_changes() -> None:
    said: list[str] = []
    tell = once(said.append)
    for place, holder in ((2, "a"), (1, "a"), (1, "b"), (1, "b")):
        tell(place, holder)
    assert said == ["waiting: place 2 behind a", "waiting: place 1 behind b"]
