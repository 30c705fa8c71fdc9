"""One child process that dies with its owner and whose output goes to a file with a bound.

A keeper thread starts the child, copies its output, and lives as long as the child: Linux delivers the parent-death
signal when the *thread* that started the child ends, not when the process does. The signal is set by a small Python
program that then becomes the child (exec), because running code between fork and exec of a threaded process can
deadlock. The child is killed rather than asked: nobody is left to wait for it. Whatever the child started in its
session is killed once its end is seen, or ours (watchdog.py).

Knows nothing of Triton.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from lab import atomic, priority
from lab.serve import watchdog

LOG_BYTES = 5_000_000
"""A log is moved to NAME.1 at this size, so both together hold at most twice as much."""

TOLD_S = 1.0
"""How long the owner of a process that has ended may take to notice."""

_PR_SET_PDEATHSIG = 1
_BECOME = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the owner ended before its child began")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Process:
    """Runs `command` (a program's path and its arguments) in its own session, so that Ctrl-C reaches the owner only,
    which then stops the child in order. `told`: how it ended is written down beside its log, for others who ask
    (`exit_status_of`). OSError when it cannot be started."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        niceness: int = 0,
        told: bool = False,
    ) -> None:
        self._session_ended = False
        self._ended = _ended(log) if told else None
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        given = (list(command), dict(environment), log, niceness, started)
        keeper = threading.Thread(target=self._keep, args=given, daemon=True)
        keeper.name = f"keeper of {Path(command[0]).name}"
        keeper.start()
        child = started.get()
        if isinstance(child, OSError):
            raise child
        self._child = child
        self.pid = child.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; -N when signal N ended it."""
        status = self._child.poll()
        if status is not None:
            self._end_session(self._child)
        return status

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within the limit."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._end_session(self._child)
        return True

    def send_signal(self, number: int) -> None:
        """To the child alone, if it still runs."""
        self._child.send_signal(number)

    def _end_session(self, leader: subprocess.Popen[bytes]) -> None:
        """What it started ends with it: a stub of Triton's whose server was killed may wait for ever for its word."""
        if not self._session_ended:
            self._session_ended = True
            with suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)
            watchdog.forget(leader.pid)
            if leader.returncode and self._ended is not None:
                with suppress(OSError):
                    atomic.write(self._ended, f"{leader.pid} {leader.returncode}\n")

    def _keep(
        self,
        command: list[str],
        environment: dict[str, str],
        path: Path,
        niceness: int,
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError],
    ) -> None:
        become = [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log = BoundedLog(path)
            child = subprocess.Popen(
                become,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            started.put(error)
            return
        priority.give(child.pid, niceness)
        watchdog.watch(child.pid)
        started.put(child)
        assert child.stdout is not None  # noqa: S101  a pipe was asked for
        with log:
            while chunk := os.read(child.stdout.fileno(), 65_536):
                log.write(chunk)
        child.wait()
        self._end_session(child)


class BoundedLog:
    """A file of at most `limit` bytes and its predecessor NAME.1. A full disk loses lines, not the child."""

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._file = path.open("ab")

    def write(self, chunk: bytes) -> None:
        try:
            if self._file.tell() + len(chunk) > self._limit:
                self._file.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._file = self._path.open("ab")
            self._file.write(chunk)
            self._file.flush()
        except (OSError, ValueError):  # ValueError: the file could not be opened again above
            return

    def __enter__(self) -> BoundedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def last_lines(path: Path, count: int) -> list[str]:
    """The last non-empty lines of a log, reading at most its last 64 kB; [] when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 65_536))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def exit_status_of(pid: int, log: Path) -> int | None:
    """How a process that has ended did, whose owner is another process and may only be about to notice: -N by signal N.
    None when it ended in order, or when its owner is gone too."""
    deadline = time.monotonic() + TOLD_S
    while True:
        with suppress(OSError, ValueError):
            told, status = map(int, _ended(log).read_text().split())
            if told == pid:
                return status
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)


def _ended(log: Path) -> Path:
    """Where the owner of the last process with that log that did not end in order wrote down how it did."""
    return log.with_name(log.name + ".ended")


def born(pid: int) -> float | None:
    """When the process started, seconds since the epoch; None when there is no such process (or only its zombie)."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def is_same(pid: int, started: float) -> bool:
    """Whether `pid` still is the process that started then. Pids come again; two seconds absorb a stepped clock."""
    found = born(pid)
    return found is not None and abs(found - started) < 2.0
