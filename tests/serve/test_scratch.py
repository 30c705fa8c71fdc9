"""A killed process's temporary folders are found and removed by who owned them, never by their name."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.serve import doctor, scratch

CHILD = "import sys, time; from lab.serve import scratch; print(scratch.make('lab-test-'), flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "tmp"
    place.mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place


def test_folder_of_a_killed_process_is_told_and_removed_with_the_next_one(temporary: Path) -> None:
    stranger = temporary / "lab-test-stranger"  # of the same kind, by its name; nobody recorded it
    stranger.mkdir()
    mine = scratch.make("lab-test-")
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        (left / "something").write_text("left")
        assert scratch.find() == []  # its owner lives
    finally:
        child.kill()
        child.communicate()
    assert scratch.find() == [left]
    check = next(check for check in doctor.checks() if check.name == "leftovers in temporary folders")
    assert not check.ok and str(left) in check.found and "next" in check.remedy
    with scratch.folder("lab-test-") as another:
        assert another.is_dir() and not left.exists()
    assert not another.exists() and mine.is_dir() and stranger.is_dir()
    assert scratch.find() == []
    scratch.remove(mine)
    assert not mine.exists() and list((temporary.parent / "home" / "scratch").iterdir()) == []
