"""A shell is given no path with a space; a real Triton serves from a home with anything in its name."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab.errors import ServerError
from lab.serve import plain_path, python_env, scratch
from lab.serve.triton import Server
from lab.spec import ModelSpec
from tests.serve.test_triton import ask

PROJECT = Path(__file__).parents[2]
ODD = "my höme (1) $HOME & 'co'"


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    plain_path._folder.cache_clear()
    yield
    plain_path._folder.cache_clear()


def words(path):
    """What a shell makes of it, unquoted."""
    return subprocess.run(["bash", "-c", f"printf '%s\\n' {path}"], capture_output=True, text=True).stdout.splitlines()


def test_a_plain_path_is_taken_as_it_is():
    assert plain_path.of(Path("/srv/lab-1_2.x/repository")) == Path("/srv/lab-1_2.x/repository")


def test_any_other_is_reached_through_a_link_that_a_shell_leaves_whole(tmp_path):
    odd = tmp_path / ODD
    odd.mkdir()
    link = plain_path.of(odd)
    assert words(link) == [str(link)]
    assert link.resolve() == odd
    assert plain_path.of(odd) == link  # a second server of this process
    scratch.remove(link.parent)


def test_a_temporary_folder_that_is_no_better_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b"))
    link = plain_path.of(tmp_path / ODD)
    assert words(link) == [str(link)]
    scratch.remove(link.parent)
    plain_path._folder.cache_clear()
    monkeypatch.setattr(plain_path.os, "access", lambda *_: False)
    with pytest.raises(ServerError, match=r"^TMPDIR .*allowed: a TMPDIR of letters"):
        plain_path.of(tmp_path / ODD)


def test_the_links_go_with_their_process(tmp_path):
    code = "import sys, pathlib; from lab.serve import plain_path; print(plain_path.of(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path / ODD)]
    made = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()
    assert made.startswith(tempfile.gettempdir()) and not Path(made).parent.exists()


@pytest.mark.triton
def test_a_model_is_served_from_a_home_with_anything_in_its_name(tmp_path, lab_home, triton_installed, monkeypatch):
    """In the C locale, too: there names are ASCII to whoever is told nothing else."""
    odd = tmp_path / ODD
    (odd / "triton").mkdir(parents=True)
    for path in (lab_home / "triton").iterdir():
        if path.name != python_env.folder().name:  # that is made anew, below the odd name
            (odd / "triton" / path.name).symlink_to(path)
    (odd / "downloads").symlink_to(lab_home / "downloads")
    monkeypatch.setenv("LAB_HOME", str(odd))
    monkeypatch.delenv("LANG", raising=False)
    monkeypatch.setenv("LC_ALL", "C")
    with Server.start(repository=odd / "repository", log=odd / "triton.log") as server:
        server.load(ModelSpec(name="null"))
        assert ask(server, "null", [[7]]).tolist() == [[7]]
    assert [path.name for path in (odd / "repository").iterdir()] == ["null"]
