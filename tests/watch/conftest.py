"""A library that answers as NVML does, built once a session, and processes that look like Triton's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_nvml.c"


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """A function that gives the environment in which a subprocess meets the fake: its keywords become FAKE_NVML_…;
    old_driver=True takes the build without newer functions."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        reason = "no C compiler here to build the fake NVML with (package gcc)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folders = {}
    for old in (False, True):
        folders[old] = tmp_path_factory.mktemp("nvml")
        defines = ["-DOLD_DRIVER"] if old else []
        library = folders[old] / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", *defines, "-o", library, SOURCE], check=True)

    def environment(old_driver: bool = False, **script: object) -> dict[str, str]:
        scripted = {f"FAKE_NVML_{name.upper()}": str(value) for name, value in script.items()}
        return {**os.environ, "LD_LIBRARY_PATH": str(folders[old_driver]), **scripted}

    return environment


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
            self.process.communicate("stop\n", timeout=10)


@pytest.fixture
def fake_server() -> Iterator[Callable[..., FakeServer]]:
    servers: list[FakeServer] = []

    def start(*commands: str) -> FakeServer:
        servers.append(FakeServer(*commands))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
