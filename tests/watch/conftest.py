"""A library that answers as NVML does, and processes that look like Triton's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.gpu_libraries import fake_nvml as fake_nvml

FAKE_SERVER = """
import subprocess, sys
stubs = [subprocess.Popen([sys.executable, "-c", "print(flush=True); import time; time.sleep(60)", *command.split()],
                          stdout=subprocess.PIPE) for command in sys.argv[1:]]
for stub in stubs:
    stub.stdout.readline()
print(*[stub.pid for stub in stubs], flush=True)
sys.stdin.readline()
for stub in stubs:
    stub.kill()
"""


class FakeServer:
    """A process with children whose command lines are those of Triton's stubs. `stubs` are their pids, in order."""

    def __init__(self, *commands: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FAKE_SERVER, *commands], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.stubs = [int(word) for word in self.process.stdout.readline().split()]
        self.pid = self.process.pid

    def stop(self) -> None:
        if self.process.returncode is None:
            self.process.communicate("stop\n", timeout=60)


@pytest.fixture
def fake_server() -> Iterator[Callable[..., FakeServer]]:
    servers: list[FakeServer] = []

    def start(*commands: str) -> FakeServer:
        servers.append(FakeServer(*commands))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
