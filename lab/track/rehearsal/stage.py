"""The gateway of a rehearsal: a process of its own on routes of its own, which ends with its owner."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import priority, stopping
from lab.errors import RunError
from lab.serve.process import Process, last_lines
from lab.track.routes import Routes

PROJECT = Path(__file__).parents[3]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 40.0
ANSWER_LIMIT_S = 30.0
LOOK_S = 0.05


@dataclass(frozen=True)
class Stage:
    """`url` of the gateway, its process, and the routes that it follows."""

    url: str
    process: Process
    routes: Routes
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """RunError once the gateway has ended: what users find after that says nothing about a rollout."""
        status = self.process.exit_status
        if status is None:
            return
        said = last_lines(self.log, 1) if status > 0 else []  # one that was killed says no last word
        why = f"killed by signal {-status}" if status < 0 else said[0] if said else "without a word"
        raise RunError(f"the gateway ended during the rehearsal: {why}; see {self.log}")

    def told(self) -> dict[str, Any]:
        """What the gateway says of itself: "entered", "in_flight" and the routes in force. RunError once it has
        ended."""
        self.check()
        with urllib.request.urlopen(f"{self.url}/routes", timeout=ANSWER_LIMIT_S) as answer:  # noqa: S310  our own gateway's
            found: dict[str, Any] = json.load(answer)
        return found

    def settled(self, limit_s: float = ANSWER_LIMIT_S) -> int:
        """Requests that are still under way once they have had time to end."""
        until_s = time.monotonic() + limit_s
        while (left := int(self.told()["in_flight"])) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        return left


@contextmanager
def stage(routes: Routes, log: Path) -> Iterator[Stage]:
    """A gateway on `routes`, which name what they need."""
    process, url = begin(routes, log, ["--routes", str(routes.folder), "--port", "0"])
    try:
        yield Stage(url, process, routes, log)
    finally:
        end(process)


def begin(routes: Routes, log: Path, words: Sequence[str], limit_s: float = START_LIMIT_S) -> tuple[Process, str]:
    """`lab gateway` with these words, and the URL at which it follows `routes`; it dies with this process. RunError
    with its last words when it does not come up."""
    command = [sys.executable, "-m", "lab", "gateway", *words]
    process = Process(command, {**os.environ, "PYTHONPATH": str(PROJECT)}, log, niceness=priority.MEASURED)
    until_s = time.monotonic() + limit_s
    try:
        while (url := routes.gateway()) is None:
            stopping.check()
            if process.wait(LOOK_S):
                said = [line.removeprefix("error: ") for line in last_lines(log, 1)]
                raise RunError(f"the gateway ended before it listened: {said[0] if said else 'without a word'}")
            if time.monotonic() > until_s:
                raise RunError(f"the gateway did not listen within {limit_s:g} s; see {log}")
    except BaseException:
        end(process)
        raise
    return process, url


def end(process: Process) -> None:
    """Answers under way are finished; killed when that takes too long."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    if not process.wait(STOP_LIMIT_S):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_LIMIT_S)
