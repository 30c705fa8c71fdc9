"""The probe on this machine, and what is kept of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.watch import probe as module
from lab.watch.probe import Probe, cpu_name, measure, multiplies_bytes, probe

FOUND = {
    "read_bandwidth_bytes_s": 2e10,
    "matmul_bf16_flop_s": 3e11,
    "matmul_fp32_flop_s": 1e11,
    "matmul_int8_op_s": 6e11,
    "reason": None,
}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


class Process:
    """Stands in for the probe's process and counts its runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: Any = FOUND) -> None:
        self.runs, self.said = 0, said
        monkeypatch.setattr(module.subprocess, "run", self.run)

    def run(self, command: list[str], **rest: Any) -> Any:
        self.runs += 1
        if isinstance(self.said, Exception):
            raise self.said
        text = self.said if isinstance(self.said, str) else f"a warning\n{json.dumps(self.said)}\n"
        return subprocess.CompletedProcess(command, 0, text, "")


def test_figures_are_of_a_machines_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a thousandth and ten thousand times what a usual machine does, so that a wrong unit shows."""
    monkeypatch.setattr(module, "SECONDS", 0.0)
    monkeypatch.setattr(module, "MATRIX", 256)
    monkeypatch.setattr(module, "BUFFER_BYTES", 64 * 2**20)
    found = measure()
    assert found["reason"] is None
    for name in FOUND.keys() - {"reason"}:
        assert 1e7 < found[name] < 1e14


@pytest.mark.parametrize(
    ("cpuinfo", "found"),
    [
        ("model name\t: A\nflags\t\t: fpu avx512_vnni\n", True),
        ("model name\t: A\nflags\t\t: fpu avx2 avx512_vnnix\n", False),
        ("CPU implementer\t: 0x41\nFeatures\t: asimd\n", None),
    ],
)
def test_products_of_bytes_by_the_flags_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, found: bool | None
) -> None:
    monkeypatch.setattr(module.Path, "read_text", lambda self: cpuinfo)
    assert multiplies_bytes() is found


def test_it_is_measured_once_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    first = probe()
    assert (first.cpu, first.read_bandwidth_bytes_s, first.reason) == (cpu_name(), 2e10, None)
    assert probe() == first
    assert process.runs == 1
    monkeypatch.setattr(module, "cpu_name", lambda: "another processor")
    assert probe().cpu == "another processor"
    assert process.runs == 2
    monkeypatch.undo()


def test_again_measures_anew_and_keeps_that(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    probe()
    process.said = {**FOUND, "read_bandwidth_bytes_s": 3e10}
    assert probe(again=True).read_bandwidth_bytes_s == 3e10
    assert probe().read_bandwidth_bytes_s == 3e10


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (subprocess.TimeoutExpired("probe", 60), "took longer than 60 s"),
        (subprocess.CalledProcessError(1, "probe", stderr="Traceback\nImportError: no torch"), "ImportError: no torch"),
        (subprocess.CalledProcessError(-9, "probe", stderr=""), "exit status -9"),
        ("", "no figures"),
        ("no JSON", "no figures"),
        ('{"other": 1}', "no figures"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_none_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, own_home: Path, said: Any, words: str
) -> None:
    process = Process(monkeypatch, said)
    found = probe()
    assert {getattr(found, name) for name in FOUND.keys() - {"reason"}} == {None}
    assert found.reason is not None and words in found.reason
    process.said = FOUND
    assert probe().reason is None


def test_too_little_memory_leaves_the_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)
    monkeypatch.setattr(module, "MATRIX", 64)
    monkeypatch.setattr(module, "BUFFER_BYTES", 2**60)
    found = measure()
    assert found["read_bandwidth_bytes_s"] is None
    assert "memory" in str(found["reason"])
    assert found["matmul_fp32_flop_s"] is not None


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"cpu": "x"}}'])
def test_a_damaged_file_is_measured_anew(monkeypatch: pytest.MonkeyPatch, own_home: Path, text: str) -> None:
    (own_home / "probe.json").write_text(text)
    Process(monkeypatch)
    assert probe() == Probe(cpu_name(), probe().threads, 2e10, 3e11, 1e11, 6e11)


def test_torch_stays_out_of_the_callers_process(own_home: Path) -> None:
    code = "import sys, lab.watch.probe; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(module.__file__).parents[2]).returncode == 0


def test_a_figure_that_an_older_file_lacks_is_measured(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    process = Process(monkeypatch)
    probe()
    kept = json.loads((own_home / "probe.json").read_text())
    for figures in kept.values():
        del figures["matmul_int8_op_s"]
    (own_home / "probe.json").write_text(json.dumps(kept))
    assert probe().matmul_int8_op_s == 6e11
    assert process.runs == 2
