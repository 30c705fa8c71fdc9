"""Which code a run was taken with: the checkout's commit, whether it was changed since, or the package's version."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.run import environment
from lab.run.environment import lab_version


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *own, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "tag", "v1-dirty")  # a name that must not be taken for the word
    return tmp_path


def test_a_checkout_tells_its_commit_and_whether_it_was_changed(checkout: Path) -> None:
    told = lab_version(checkout)
    head = git(checkout, "rev-parse", "HEAD")
    assert told == {"commit": head, "dirty": False, "changes": None, "version": None}
    (checkout / "a.py").write_text("a = 2\n")
    changed = lab_version(checkout)
    assert changed == {**told, "dirty": True, "changes": changed["changes"]} and changed["changes"]


def test_changes_are_told_apart_by_what_they_hold_and_not_by_when_they_were_made(checkout: Path) -> None:
    def changes() -> Any:
        return lab_version(checkout)["changes"]

    def back() -> None:
        git(checkout, "checkout", "-q", "--", ".")

    found = {}
    for text in ("a = 2\n", "a = 3\n"):
        (checkout / "a.py").write_text(text)
        found[text] = changes()
    (checkout / "a.py").unlink()
    found["gone"] = changes()
    back()
    (checkout / "a.py").touch()  # a time is no content
    assert changes() is None
    (checkout / "experiments").mkdir()
    (checkout / "notes.txt").write_text("outside of what runs")
    assert changes() is None
    (checkout / "experiments" / "new\n é.py").write_text("a = 2\n")
    found["new"] = changes()
    (checkout / "experiments" / "out").symlink_to("/dev/zero")  # neither followed nor read
    found["a link"] = changes()
    assert None not in found.values() and len(set(found.values())) == len(found)
    (checkout / "experiments" / "out").unlink()
    assert changes() == found["new"]
    (checkout / "experiments" / "new\n é.py").unlink()
    (checkout / "a.py").write_text("a = 2\n")
    git(checkout, "add", "a.py")  # staged or not, it is the same code
    assert changes() == found["a = 2\n"]


def test_another_repository_that_git_is_told_of_is_not_asked(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    assert lab_version(checkout)["commit"] == git_head(checkout)


def git_head(checkout: Path) -> str:
    branch = (checkout / ".git" / "HEAD").read_text().split()[-1]
    return (checkout / ".git" / branch).read_text().strip()


def test_outside_of_a_checkout_the_package_has_a_version_or_nothing_is_known(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = checkout / "site-packages"
    inside.mkdir()
    monkeypatch.setattr(environment, "_version", lambda package: {"serving-lab": "0.1.0"}.get(package))
    nothing = {"commit": None, "dirty": None, "changes": None, "version": None}
    assert lab_version(inside) == {**nothing, "version": "0.1.0"}
    monkeypatch.setattr(environment, "_version", lambda package: None)
    assert lab_version(inside) == nothing


def test_without_git_nothing_is_known(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert lab_version(checkout)["commit"] is None
