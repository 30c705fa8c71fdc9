"""The leak hunt on a real Triton: two planted leaks are found and named; a clean model is cleared (P12, S15)."""

import sys
from pathlib import Path

import psutil
import pytest

from lab.errors import InputError
from lab.run import leak
from lab.serve import leftovers
from lab.watch import host

MIB = 2**20
MODEL = """
import os, subprocess, sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        with open("{shm}/planted_leak_%d" % os.getpid(), "wb") as file:
            file.write(os.urandom(2**20) * 20)
        stays = "x = b'1' * (5 * 2**20); import time; time.sleep(120)"
        subprocess.Popen(["{python}", "-c", stays], start_new_session=True)

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", value)]) for value in values]
"""
CONFIG = """\
name: "planted"
backend: "python"
max_batch_size: 1
input { name: "INPUT" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""


@pytest.fixture
def planted(tmp_path):
    folder = tmp_path / "planted"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    code = MODEL.replace("{shm}", str(leftovers.SHM)).replace("{python}", sys.executable)
    (folder / "1" / "model.py").write_text(code)
    yield folder
    for left in leftovers.SHM.glob("planted_leak_*"):
        left.unlink()


@pytest.mark.triton
def test_what_a_model_leaves_behind_is_found_and_named(triton_server, planted):
    found = leak.hunt(triton_server, leak.Folder(planted), 3, report=lambda line: None)
    stayed = set(host.born_of(triton_server.managed.prefix)) - {triton_server.pid}
    for pid in stayed - {p for pids in host.model_processes(triton_server.pid).values() for p in pids}:
        psutil.Process(pid).kill()
    assert found.verdict == "leak"
    assert found.parts["shared_memory"].bytes == pytest.approx(20 * MIB, rel=0.02)
    assert found.parts["processes"].bytes > 5 * MIB
    assert "shared memory (/dev/shm) and processes that stayed" in found.text


@pytest.mark.triton
def test_a_clean_model_is_cleared(triton_server):
    found = leak.hunt(triton_server, leak.subject("null"), 3, report=lambda line: None)
    assert found.parts["shared_memory"].bytes == found.parts["processes"].bytes == 0
    assert found.verdict != "leak"
    assert found.residue_bytes < 2 * MIB  # what a server's own heap may grow by while others' tests use it too


@pytest.mark.parametrize(
    ("model", "settings", "text"),
    [
        ("nul", [], "model 'nul': no folder with a config.pbtxt, and no model of the lab's; did you mean"),
        ("/nowhere/at/all", [], "no model folder of Triton's"),
        ("/nowhere/at/all", [("precision", "fp32")], "its config.pbtxt says what it is"),
        ("null", [("precision", "int4")], "precision 'int4' with family null"),
    ],
)
def test_what_is_no_model_is_refused(model, settings, text):
    with pytest.raises(InputError, match=text):
        leak.subject(model, settings)


@pytest.mark.parametrize("cycles", [-1, 0, 1, 1001])
def test_a_number_of_cycles_that_makes_no_line_is_refused(cycles):
    with pytest.raises(InputError, match="allowed: 2 to 1000"):
        leak.leak(leak.subject("null"), cycles, report=lambda line: None)


def test_a_folder_that_is_no_model_folder_is_named(tmp_path: Path):
    (tmp_path / "config.pbtxt").write_text("name: 3 {")
    with pytest.raises(InputError, match=r"config\.pbtxt"):
        leak.Folder(tmp_path)
