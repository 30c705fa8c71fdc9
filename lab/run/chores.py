"""A command of the lab that makes no run of its own (fetch, selftest, quality, mlflow), started from a page.

    start("fetch-llm", ["fetch", "llm"])      in a process of its own, which outlives the page; a second click finds it
    state("fetch-llm")                        how it stands: its last words, and how it ended
    stop("fetch-llm")

A chore is LAB_HOME/chores/NAME.lock, held while it goes on, NAME.log, its words, and NAME.json, how it ended. One that
serves something (`with_owner`) ends with the process that started it. Knows no page and none of the commands.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import atomic
from lab.errors import InputError, RunError
from lab.home import home
from lab.run.status import started
from lab.serve.process import last_lines

PROJECT = Path(__file__).parents[2]
NAME = re.compile(r"[a-z0-9-]{1,60}")
COMMAND = (sys.executable, "-m", "lab")
START_LIMIT_S, STOP_LIMIT_S, POLL_S = 60.0, 10.0, 0.1


@dataclass(frozen=True)
class Chore:
    """`said` is its last line; `status` its exit status, None while it goes on, -1 where it ended without a word."""

    name: str
    said: str
    status: int | None

    @property
    def going(self) -> bool:
        return self.status is None


def start(name: str, arguments: Sequence[str], *, with_owner: bool = False) -> None:
    """`python -m lab ARGUMENTS`, unless it goes on already. RunError when it does not begin."""
    if _owner_of(_path(name, "lock")) is not None:
        return
    _path(name, "json").unlink(missing_ok=True)
    owner = [f"--owner={os.getpid()}"] if with_owner else []
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.run.chores", *owner, name, *arguments],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if state(name) is not None:
            return
        if process.poll() is not None:
            break
        time.sleep(POLL_S)
    raise RunError(f"{' '.join(arguments)} did not begin; see {_path(name, 'log')}")


def state(name: str) -> Chore | None:
    """None where no such chore was ever begun."""
    said = next(iter(last_lines(_path(name, "log"), 1)), "").rpartition("\r")[2]
    if _owner_of(_path(name, "lock")) is not None:
        return Chore(name, said, None)
    try:
        ended: dict[str, Any] = json.loads(_path(name, "json").read_text())
        return Chore(name, said, int(ended["status"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Chore(name, said, -1) if said else None


def stop(name: str) -> None:
    """End it and all that it started."""
    lock = _path(name, "lock")
    for number in (signal.SIGTERM, signal.SIGKILL):
        pid = _owner_of(lock)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(pid, number)
        deadline = time.monotonic() + STOP_LIMIT_S
        while _owner_of(lock) is not None and time.monotonic() < deadline:
            time.sleep(POLL_S)


def _path(name: str, ending: str) -> Path:
    if not NAME.fullmatch(name):
        raise InputError(f"chore {name!r}: allowed are up to 60 lower-case letters, digits and dashes")
    return home() / "chores" / f"{name}.{ending}"


def _owner_of(lock: Path) -> int | None:
    """The process that holds the lock, which leads its session; None when nobody does."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(descriptor, 32) or b"0") or None
    finally:
        os.close(descriptor)
    return None


def _do(name: str, arguments: Sequence[str], owner: int | None) -> int:
    """The chore's own process: its words into the log, its end into NAME.json."""
    lock = _path(name, "lock")
    lock.parent.mkdir(exist_ok=True)
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # somebody was first
    begun = None if owner is None else started(owner)
    with _path(name, "log").open("wb") as log:
        os.pwrite(held, f"{os.getpid():<31}\n".encode(), 0)
        child = subprocess.Popen([*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=PROJECT)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child, of the same session, has it too, and ends first
        while child.poll() is None:
            if owner is not None and started(owner) != begun:
                child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
    atomic.write(_path(name, "json"), json.dumps({"arguments": list(arguments), "status": child.returncode}))
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    of = int(words.pop(0).partition("=")[2]) if words[0].startswith("--owner=") else None
    sys.exit(_do(words[0], words[1:], of))
