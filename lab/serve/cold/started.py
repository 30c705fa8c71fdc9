"""A worker that is up: where it listens, the stages of its start, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.serve.cold import limit
from lab.serve.cold.line import Line, ending

STOP_LIMIT_S = 10.0
"""A limit, not an expectation: a worker that is asked to end takes milliseconds."""


@dataclass(frozen=True)
class Stage:
    name: str
    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9


class Worker:
    """One that is ready. `asked_ns`: when it was asked for."""

    def __init__(
        self,
        line: Line,
        pid: int,
        port: int,
        stages: Sequence[Stage],
        asked_ns: int,
        process: subprocess.Popen[bytes] | None,
        cgroup: Path | None = None,
    ) -> None:
        self.pid, self.port, self.stages, self.asked_ns = pid, port, tuple(stages), asked_ns
        self.ready_ns = time.perf_counter_ns()
        self._line, self._process, self._cgroup = line, process, cgroup

    @property
    def socket(self) -> socket.socket:
        """Readable when the worker has ended."""
        return self._line.socket

    @property
    def pids(self) -> list[int]:
        return [self.pid]

    def alive(self) -> bool:
        return not self._line.ended()

    def why_ended(self) -> str:
        """In words, of one that was not asked to."""
        status = None if self._process is None else self._process.poll()
        if self._cgroup is not None and limit.was_exceeded(self._cgroup):
            return "killed by the kernel: it took more than its memory limit"
        return "ended by itself" if status is None else f"ended ({ending(status)})"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and make it; returns once it is gone."""
        self._line.hang_up()
        if not self._line.wait_for_end(STOP_LIMIT_S):
            self.kill()
            self._line.wait_for_end(STOP_LIMIT_S)
        if self._process is not None:
            self._process.wait(STOP_LIMIT_S)
        self._line.close()
        if self._cgroup is not None:
            limit.remove_group(self._cgroup)
