"""Eviction to host memory, from the residency down to the driver's calls, against libraries that answer as NVIDIA's do:
what is on the GPU is what NVML then tells, and Triton is asked to load each model once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.__main__ import main
from lab.errors import InputError
from lab.run.parked import ParkingShelf
from lab.spec import ModelSpec, set_path
from tests.gpu_libraries import fake_nvml as fake_nvml
from tests.run.test_fleet_run import SMALL

STORY = """
import asyncio, json, sys
from pathlib import Path
from lab.run.parked import ParkingShelf
from lab.serve.residency import Residency
from lab.spec import ModelSpec
from lab.watch import host

states = Path(sys.argv[1])
PIDS = {"digits_1": 71, "digits_2": 72, "digits_3": 73}
spare = [10e9]


class Server:
    pid, managed, calls, living = 1, None, [], {}

    def load(self, spec):
        self.calls.append(["load", spec.name])
        self.living[spec.name] = [PIDS[spec.name]]
        (states / str(PIDS[spec.name])).write_text("0")

    def unload(self, name):
        self.calls.append(["unload", name])
        del self.living[name]
        (states / str(PIDS[name])).unlink()


server, events = Server(), []
host.model_processes = lambda pid: dict(server.living)
models = [ModelSpec(name=name, family="digits", device="gpu") for name in PIDS]
shelf = ParkingShelf(server, models, spare_bytes=lambda: spare[0])


async def story():
    def noted(kind, model, fields):
        events.append([kind, model, fields.get("source", fields.get("to"))])

    residency = Residency(shelf, 6_500_000_000, PIDS, on_event=noted)
    for name in ("digits_1", "digits_2", "digits_3", "digits_1"):
        await residency.acquire(name)
        residency.release(name)
    on_gpu = shelf.size_bytes(residency.resident())
    spare[0] = 2e9  # less than a model takes
    await residency.acquire("digits_2")
    residency.release("digits_2")
    return on_gpu, residency.resident()


on_gpu, resident = asyncio.run(story())
before = {p.name: p.read_text() for p in states.iterdir()}
shelf.clear()
print(json.dumps({"events": events, "calls": server.calls, "on_gpu": on_gpu, "resident": resident, "states": before,
                  "refused": shelf.refused}))
"""


def told(environment: dict[str, str], states: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", STORY, str(states)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def gpu(fake_nvml: Callable[..., dict[str, str]], tmp_path: Path) -> dict[str, str]:
    """Three processes that hold 3 GB each of one GPU, as long as they are there."""
    processes = ",".join(f"0:{pid}:3000000000" for pid in (71, 72, 73))
    environment = fake_nvml(cuda=tmp_path / "states", used="0", util=0, processes=processes)
    (tmp_path / "states").mkdir()
    return {**environment, "LAB_HOME": str(tmp_path)}


@pytest.mark.processes
def test_two_of_three_are_on_the_gpu_and_the_third_waits_in_host_memory(gpu: dict[str, str], tmp_path: Path) -> None:
    found = told(gpu, tmp_path / "states")
    assert found["events"] == [
        ["loaded", "digits_1", "disk"],
        ["loaded", "digits_2", "disk"],
        ["unloaded", "digits_1", "host"],
        ["loaded", "digits_3", "disk"],
        ["unloaded", "digits_2", "host"],
        ["loaded", "digits_1", "host"],
        ["unloaded", "digits_3", "disk"],  # host memory is short
        ["loaded", "digits_2", "host"],
    ]
    assert found["on_gpu"] == 6_000_000_000
    assert found["resident"] == ["digits_1", "digits_2"]
    assert found["states"] == {"71": "0", "72": "0"}
    assert found["refused"] == {}
    assert found["calls"] == [["load", name] for name in ("digits_1", "digits_2", "digits_3")] + [
        ["unload", "digits_3"]
    ]


@pytest.mark.processes
def test_what_the_driver_refuses_to_move_is_unloaded(gpu: dict[str, str], tmp_path: Path) -> None:
    found = told({**gpu, "FAKE_CUDA_REFUSES": "Checkpoint:71"}, tmp_path / "states")
    assert found["events"][2] == ["unloaded", "digits_1", "disk"]
    assert found["events"][5] == ["loaded", "digits_1", "disk"]
    assert found["refused"] == {"digits_1": "GPU memory of process 71, checkpoint: CUDA_ERROR_NOT_SUPPORTED"}
    assert ["unload", "digits_1"] in found["calls"]


def test_without_a_gpu_it_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match=r"fleet.evict_to 'host' with null on the CPU; allowed: disk, or device gpu"):
        set_path(SMALL, "fleet.evict_to", "host")
    with pytest.raises(InputError, match=r'fleet.evict_to "tape": allowed: disk or host'):
        set_path(SMALL, "fleet.evict_to", "tape")


def test_a_machine_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.serve.cuda_checkpoint.unavailable", lambda: "no NVIDIA driver on this machine")
    with pytest.raises(
        InputError, match="eviction to host memory: no NVIDIA driver on this machine; allowed here: disk"
    ):
        ParkingShelf(object(), [ModelSpec(name="digits", device="gpu")])  # type: ignore[arg-type]
    monkeypatch.setattr("lab.serve.cuda_checkpoint.unavailable", lambda: None)
    with pytest.raises(InputError, match="eviction to host memory: digits is on the CPU, whose memory it is"):
        ParkingShelf(object(), [ModelSpec(name="digits")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--evict-to", "host"], "--evict-to host without --budget: nothing is ever evicted; allowed: both or none"),
        (["--budget", "1GiB", "--evict-to", "host"], "--evict-to host with --device cpu, whose memory is the host's"),
    ],
)
def test_a_server_without_what_it_takes_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model", "digits", *words]) == 2
    assert said in capsys.readouterr().err
