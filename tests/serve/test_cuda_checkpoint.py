"""GPU memory to the host and back: the driver's calls in their turn against a library that answers as it does, and the
driver itself where there is a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.serve import cuda_checkpoint
from lab.watch.gpu import read_gpus
from tests.gpu_libraries import fake_nvml as fake_nvml

pytestmark = pytest.mark.processes

Environment = Callable[..., dict[str, str]]

STORY = """
import json, sys
from lab.errors import ModelError
from lab.serve import cuda_checkpoint
print(json.dumps(cuda_checkpoint.unavailable()))
for call, pids in json.loads(sys.argv[1]):
    try:
        getattr(cuda_checkpoint, call)(pids)
        print(json.dumps("ok"))
    except ModelError as error:
        print(json.dumps(str(error)))
    print(json.dumps({p.name: p.read_text() for p in __import__("pathlib").Path(sys.argv[2]).iterdir()}))
"""


def told(environment: dict[str, str], folder: Path, *calls: tuple[str, list[int]]) -> list[object]:
    command = [sys.executable, "-c", STORY, json.dumps(calls), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def states(tmp_path: Path) -> Path:
    """Two processes with memory on a GPU, both running."""
    for pid in (71, 72):
        (tmp_path / str(pid)).write_text("0")
    return tmp_path


def test_there_and_back(fake_nvml: Environment, states: Path) -> None:
    calls = [("to_host", [71, 72]), ("to_device", [72]), ("to_device", [71, 72])]
    assert told(fake_nvml(cuda=states), states, *calls) == [
        None,
        "ok",
        {"71": "2", "72": "2"},
        "ok",
        {"71": "2", "72": "0"},
        "ok",
        {"71": "0", "72": "0"},
    ]


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
def test_what_the_driver_refuses_is_named_and_nothing_has_moved(
    fake_nvml: Environment, states: Path, call: str
) -> None:
    environment = {**fake_nvml(cuda=states), "FAKE_CUDA_REFUSES": f"{call}:72"}
    _, said, after = told(environment, states, ("to_host", [71, 72]))
    assert said == f"GPU memory of process 72, {call.lower()}: CUDA_ERROR_NOT_SUPPORTED"
    assert after == {"71": "0", "72": "0"}


def test_a_process_without_gpu_memory_is_named(fake_nvml: Environment, states: Path) -> None:
    _, said, _ = told(fake_nvml(cuda=states), states, ("to_host", [99]))
    assert said == "GPU memory of process 99, lock: CUDA_ERROR_INVALID_VALUE"


def test_an_old_driver_and_none_at_all_are_reasons(fake_nvml: Environment, states: Path, tmp_path: Path) -> None:
    old, said, after = told(fake_nvml(old_driver=True, cuda=states), states, ("to_host", [71]))
    assert old == "the NVIDIA driver is too old; allowed: 570 or newer"
    assert said == f"GPU memory cannot be moved to the host: {old}"
    assert after["71"] == "0"  # type: ignore[index]
    (tmp_path / "libcuda.so.1").write_text("not a library")  # shadows a real one, where there is one
    (none,) = told({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, states)
    assert none == "no NVIDIA driver on this machine (libcuda.so.1 not found)"


HOLDS = """
import sys, torch
held = torch.arange(2**26, device="cuda")  # 512 MiB
torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.readline()
print(int(held[12345]), flush=True)
"""


@pytest.mark.gpu
def test_a_real_gpu_lets_the_memory_go_and_gets_it_back() -> None:
    if (why := cuda_checkpoint.unavailable()) is not None:
        pytest.skip(why)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "holds\n":
            pytest.skip("torch has no CUDA here")
        field = f"process_memory_bytes:{process.pid}"
        cuda_checkpoint.to_host([process.pid])
        assert field not in {reading.field for reading in read_gpus()}
        cuda_checkpoint.to_device([process.pid])
        assert field in {reading.field for reading in read_gpus()}
        answer, _ = process.communicate("go on\n", timeout=60)
    assert answer == "12345\n"
