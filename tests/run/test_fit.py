"""What models take together before they are loaded, and a kind that nobody had loaded yet."""

import json

import pytest

from lab.__main__ import main
from lab.measure.footprint import Footprint
from lab.run import fit, footprints
from lab.spec import ModelSpec

MIB = 2**20
TORCH = {"/lib/torch.so": 100 * MIB}


@pytest.fixture
def two_kinds(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    footprints.keep(ModelSpec(name="digits"), Footprint(30 * MIB, TORCH))
    footprints.keep(ModelSpec(name="embedder"), Footprint(50 * MIB, TORCH))


def test_copies_in_turn_share_what_is_of_files(two_kinds):
    kinds = [ModelSpec(name="digits"), ModelSpec(name="embedder")]
    assert fit.unknown(kinds) == []
    found = fit.lines(fit.copies_of(kinds, 2), 220 * MIB)
    assert [(line.model, line.adds_bytes // MIB, line.together_bytes // MIB, line.fits) for line in found] == [
        ("digits_1", 130, 130, True),
        ("embedder_2", 50, 180, True),
        ("digits_3", 30, 210, True),
        ("embedder_4", 50, 260, False),
    ]
    assert all(line.fits is None for line in fit.lines(fit.copies_of(kinds, 2), None))


def test_the_command_says_how_many_fit(two_kinds, capsys):
    assert main(["fit", "digits", "embedder", "--copies", "2", "--budget", "220MiB"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("\n3 of 4 fit into 220 MiB.\n")
    assert "loaded and asked: digits 130 MiB and embedder 150 MiB alone." in said and "Estimated from that" in said
    assert "A further copy adds 30.0 MiB of digits and 50.0 MiB of embedder" in said
    assert main(["fit", "digits", "--copies", "3", "--json"]) == 0
    assert [line["together_bytes"] for line in json.loads(capsys.readouterr().out)["models"]] == [
        n * MIB for n in (130, 160, 190)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits", "--copies", "0"], "--copies 0; allowed: 1 to 64 of 1 models"),
        (["digits", "null", "--copies", "33"], "--copies 33; allowed: 1 to 32 of 2 models"),
        (["digits", "--budget", "much"], "size 'much'"),
        (["digit"], "is no family of models"),
        (["digits", "--device", "gpu"], "this machine has no NVIDIA GPU"),
    ],
)
def test_what_makes_no_list_is_refused(two_kinds, monkeypatch, capsys, words, said):
    monkeypatch.setattr("lab.serve.installation.gpus", lambda: 0)
    assert main(["fit", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.triton
def test_a_kind_that_nobody_loaded_is_loaded_once_and_measured(triton_installed, tmp_path, monkeypatch):
    monkeypatch.setattr(footprints, "_place", lambda: tmp_path / "footprints.json")
    spec = ModelSpec(name="null")
    assert fit.lines([spec], None) == []
    said = []
    fit.look([spec], said.append)
    (line,) = fit.lines([spec], None)
    assert 10 * MIB < line.together_bytes < 300 * MIB
    assert said == [f"null: {line.together_bytes / MIB:.0f} MiB alone"]
    fit.look([spec], said.append)
    assert len(said) == 1
