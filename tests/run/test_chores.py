"""Commands that a page starts: one of a name at a time, its words and its end, and a chore that ends with its owner."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.errors import InputError
from lab.run import chores
from tests.waiting import until

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


def held(name: str, home: Path) -> subprocess.Popen[bytes]:
    """A process that holds the chore's lock as the chore does, and sleeps."""
    (home / "chores").mkdir(exist_ok=True)
    code = (
        "import fcntl, os, sys, time\n"
        f"fd = os.open({str(home / 'chores' / f'{name}.lock')!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX); os.write(fd, str(os.getpid()).encode()); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_chore_says_its_words_and_how_it_ended() -> None:
    assert chores.state("list") is None
    chores.start("list", ["prices", "--no-such-option"])
    until(lambda: (found := chores.state("list")) is not None and not found.going)
    found = chores.state("list")
    assert found is not None and found.status == 2 and "unrecognized arguments" in found.said


def test_of_one_name_one_goes_on(own_home: Path) -> None:
    first = held("list", own_home)
    try:
        chores.start("list", ["prices"])  # finds the other, and begins nothing
        found = chores.state("list")
        assert found is not None and found.going
        assert not (own_home / "chores" / "list.log").exists()
        chores.stop("list")
        first.wait(60)
        assert chores.state("list") is None
    finally:
        first.kill()


def test_one_that_ended_without_a_word_is_no_success(own_home: Path) -> None:
    (own_home / "chores").mkdir()
    (own_home / "chores" / "list.log").write_text("half of it\n")
    found = chores.state("list")
    assert found is not None and (found.going, found.status, found.said) == (False, -1, "half of it")
    (own_home / "chores" / "list.json").write_text(json.dumps({"status": 0}))
    found = chores.state("list")
    assert found is not None and found.status == 0


@pytest.mark.parametrize("name", ["", "../x", "A", "a b", "x" * 61])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(InputError, match="chore "):
        chores.state(name)


@pytest.mark.processes
def test_what_serves_ends_with_its_owner(own_home: Path) -> None:
    owner = subprocess.Popen(["sleep", "60"])
    code = f"from lab.run import chores; chores.COMMAND = ('sleep',); chores._do('serves', ['60'], {owner.pid})"
    chore = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, start_new_session=True)
    try:
        until(lambda: (found := chores.state("serves")) is not None and found.going)
        owner.kill()
        owner.wait()
        until(lambda: (found := chores.state("serves")) is not None and not found.going)
        found = chores.state("serves")
        assert found is not None and found.status == -signal.SIGTERM
    finally:
        owner.kill()
        chore.wait(60)
