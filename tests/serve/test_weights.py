import subprocess
import sys

import pytest

from lab.errors import FetchError
from lab.serve import weights
from lab.spec import ModelSpec


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))


@pytest.fixture
def training(tmp_path, monkeypatch):
    """Puts a program in the place of the training."""

    def program(text):
        path = tmp_path / "training.py"
        path.write_text(text)
        monkeypatch.setattr(weights, "TRAINING", path)

    return program


WRITES = """
import pathlib, struct, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
header = '{"__metadata__": {"seed": "%s"}}' % sys.argv[sys.argv.index("--seed") + 1]
(out / "weights.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
with (out / "times").open("a") as times:
    times.write("trained\\n")
"""


def test_digits_are_trained_once_for_each_seed(training):
    training(WRITES)
    for spec in (ModelSpec(name="digits"), ModelSpec(name="other", family="digits", seed=3)):
        assert not weights.is_ready(spec)
        weights.prepare(spec)
        weights.prepare(spec)
        assert weights.is_ready(spec)
        place = weights.folder(spec)
        assert f'"seed": "{spec.seed}"'.encode() in (place / "weights.safetensors").read_bytes()
        assert (place / "times").read_text() == "trained\n"


def test_a_training_that_fails_says_its_last_line(training):
    training("raise MemoryError('too small a machine')")
    with pytest.raises(FetchError, match=r"training digits \(seed 0\) failed: MemoryError: too small a machine"):
        weights.prepare(ModelSpec(name="digits"))
    assert not weights.is_ready(ModelSpec(name="digits"))


@pytest.mark.parametrize("family", ["sleeper", "null"])
def test_a_family_without_weights_needs_nothing(family):
    spec = ModelSpec(name=family)
    assert weights.folder(spec) is None
    assert weights.is_ready(spec)
    weights.prepare(spec)


@pytest.mark.parametrize("family", ["sleeper", "null"])
def test_models_that_compute_nothing_load_without_torch(family):
    """A toggle is as fast as its imports."""
    path = str(weights.TRAINING.parent / f"{family}.py")
    code = "import importlib.util, sys, types; sys.modules['triton_python_backend_utils'] = types.ModuleType('pb')\n"
    code += f"spec = importlib.util.spec_from_file_location('model', {path!r})\n"
    code += "spec.loader.exec_module(importlib.util.module_from_spec(spec)); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
