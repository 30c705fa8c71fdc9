"""A version's quality is that of its own files, or none."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.errors import InputError
from lab.run import quality
from lab.serve import weights
from lab.spec import ModelSpec
from lab.track import evaluated
from lab.track.sources import bring

DIGITS = ModelSpec(name="digits")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ModelSpec]:
    """What quality was asked of; every answer is an accuracy of 0.97."""
    specs: list[ModelSpec] = []

    def known(spec: ModelSpec) -> object:
        specs.append(spec)
        return SimpleNamespace(measures=[SimpleNamespace(name="accuracy", value=0.97)])

    monkeypatch.setattr(quality, "known", known)
    monkeypatch.setattr(quality, "evaluate", known)
    return specs


def test_of_a_familys_own_weights(asked: list[ModelSpec], tmp_path: Path) -> None:
    weights.prepare(DIGITS)
    own = weights.folder(DIGITS)
    assert own is not None
    shutil.copytree(own, tmp_path / "copy")
    held = bring(str(tmp_path / "copy"))
    assert evaluated.known(DIGITS, held) == evaluated.evaluate(DIGITS, held) == {"accuracy": 0.97}
    (tmp_path / "copy" / "weights.safetensors").write_bytes(b"others")
    others = bring(str(tmp_path / "copy"))
    assert evaluated.known(DIGITS, others) == {}
    with pytest.raises(InputError, match="its own weights only"):
        evaluated.evaluate(DIGITS, others)
    assert asked == [DIGITS, DIGITS]


def test_of_a_language_models_files_whatever_they_are(asked: list[ModelSpec], files: Path) -> None:
    held = bring(str(files))
    assert evaluated.known(ModelSpec(name="llm", precision="int8"), held) == {"accuracy": 0.97}
    assert [(spec.weights, spec.precision) for spec in asked] == [(str(held.path), "int8")]
