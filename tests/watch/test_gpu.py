"""The real pynvml, talking to a library that answers as NVML does: each field is a value or a reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.watch.gpu import FIELDS, read_gpus

pytestmark = pytest.mark.processes

Environment = Callable[..., dict[str, str]]
Readings = dict[tuple[str, str], float | str]

READ = """
import json
from lab.watch.gpu import read_gpus
assert all((r.value is None) != (r.reason is None) for r in read_gpus())
print(json.dumps([[r.subject, r.field, r.reason if r.value is None else r.value] for r in read_gpus()]))
"""


def read(environment: dict[str, str]) -> Readings:
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=True)
    return {(subject, field): value for subject, field, value in json.loads(done.stdout)}


def test_two_gpus_keep_their_own_values(fake_nvml: Environment) -> None:
    found = read(fake_nvml(used="470800000,1592800000", reserved=300_000_000, util=37))
    for subject, used in (("gpu:0", 470_800_000), ("gpu:1", 1_592_800_000)):
        assert {field: value for (name, field), value in found.items() if name == subject} == {
            "memory_used_bytes": used,
            "memory_reserved_bytes": 300_000_000,
            "memory_total_bytes": 8_000_000_000,
            "utilization_fraction": 0.37,
            "power_w": 71.5,
            "temperature_c": 41,
            "clock_hz": 1.98e9,
        }
    assert {field for _, field in found} == set(FIELDS)
    assert 1_031_800_000 not in found.values()  # the mean, which is true of neither
    assert {subject for subject, _ in found} == {"gpu:0", "gpu:1"}


def test_an_old_driver_counts_reserved_memory_as_used_and_is_said_to(fake_nvml: Environment) -> None:
    found = read(fake_nvml(used="470800000", reserved=300_000_000, util=0, old_driver=True))
    assert found["gpu:0", "memory_used_bytes"] == 770_800_000
    assert found["gpu:0", "memory_reserved_bytes"] == "this driver counts reserved memory as in use (NVML memory v1)"
    assert found["gpu:0", "memory_total_bytes"] == 8_000_000_000


def test_utilization_that_is_not_supported_costs_no_other_field(fake_nvml: Environment) -> None:
    found = read(fake_nvml(used="470800000", util="none"))
    assert found["gpu:0", "utilization_fraction"] == "not supported by this GPU as it is set up (as under WSL or MIG)"
    assert found["gpu:0", "memory_used_bytes"] == 470_800_000
    assert found["gpu:0", "power_w"] == 71.5


def test_an_idle_gpu_is_zero_and_not_a_reason(fake_nvml: Environment) -> None:
    found = read(fake_nvml(used="0", util=0))
    assert found["gpu:0", "utilization_fraction"] == 0
    assert found["gpu:0", "memory_used_bytes"] == 0


def test_memory_of_single_processes_where_nvml_tells_it(fake_nvml: Environment) -> None:
    found = read(fake_nvml(used="5,6", util=1, processes="1:77:1500000000,1:78:na,0:79:20000000"))
    processes = {key: value for key, value in found.items() if key[1].startswith("process_memory_bytes")}
    assert processes == {
        ("gpu:0", "process_memory_bytes:79"): 20_000_000,
        ("gpu:1", "process_memory_bytes:77"): 1_500_000_000,
        ("gpu:1", "process_memory_bytes:78"): "NVML does not tell the memory of single processes here",
    }


def test_a_lost_gpu_is_named_and_the_other_still_read(fake_nvml: Environment) -> None:
    found = read(fake_nvml(used="5,6", util=1, lost=0))
    assert found["gpu:0", "memory_used_bytes"] == "the GPU is lost (off the bus); see the kernel log"
    assert found["gpu:1", "memory_used_bytes"] == 6


def test_gpus_have_their_names_and_a_lost_one_none(fake_nvml: Environment) -> None:
    asked = "import json; from lab.watch.gpu import gpu_names; print(json.dumps(gpu_names()))"
    environment = fake_nvml(used="1,2,3", lost="1")
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"gpu:0": "NVIDIA FAKE 0", "gpu:2": "NVIDIA FAKE 2"}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"init": 9}, "the NVIDIA driver is installed but not loaded"),
        ({"init": 4242}, "NVML: an error of the fake"),
        ({"used": ""}, "the NVIDIA driver finds no GPU"),
    ],
)
def test_without_a_gpu_every_field_carries_the_reason(
    fake_nvml: Environment, script: dict[str, object], reason: str
) -> None:
    assert read(fake_nvml(**script)) == {("gpu:none", field): reason for field in FIELDS}


def test_no_library_at_all_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")  # shadows a real one, where there is one
    found = read({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    reason = "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"
    assert found == {("gpu:none", field): reason for field in FIELDS}


@pytest.mark.gpu
def test_the_total_memory_of_a_real_gpu_is_what_nvidia_smi_says() -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU here (nvidia-smi not found)")
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    told = [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]
    found = [reading.value for reading in read_gpus() if reading.field == "memory_total_bytes"]
    assert [value and value / 2**20 for value in found] == pytest.approx(told, abs=1)
