"""Quantized folders: what is in them, where they lie, and what becomes of a builder that is killed, slow or lied to."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.errors import InputError
from lab.home import Progress
from lab.serve import quantized, weights
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.quantize import build as building
from lab.serve.quantize import prose
from lab.serve.quantize.grid import Quantized, nearest
from lab.serve.quantize.recipe import Recipe, Unquantizable, check_widths
from lab.spec import ModelSpec
from tests.serve.conftest import save_llama

DOWN = "model.layers.1.mlp.down_proj"


def quiet(label: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A LAB_HOME of the test's own, whose quantized folders are made in this process."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(quantized.job, "do", build_here)
    return tmp_path / "home" / "models" / "quantized"


def build_here(module: str, wanted: dict[str, Any], progress: Progress) -> None:
    assert module == "lab.serve.quantize"
    try:
        with torch.inference_mode():
            building.build(Path(wanted["source"]), Path(wanted["folder"]), Recipe(**wanted["recipe"]), progress)
    except ValueError as error:
        raise quantized.job.Failed(str(error), refused=True) from None


@pytest.fixture
def source(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama, to be changed."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "source"))


def spec(source: Path, precision: str = "int4", **fields: Any) -> ModelSpec:
    sized = {"group_size": 16} if precision == "int4" else {}
    return ModelSpec(name="llm", weights=str(source), precision=precision, **{**sized, **fields})


def tensors(folder: Path | None) -> dict[str, torch.Tensor]:
    assert folder is not None
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def change(source: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    found = load_file(source / "model.safetensors")
    edit(found)
    save_file(found, source / "model.safetensors", metadata={"format": "pt"})


# --- what is in a folder -----------------------------------------------------------------------------------------


def test_a_folder_holds_every_matrix_and_says_how_it_was_made(source: Path, models: Path) -> None:
    wanted = spec(source)
    assert not weights.is_ready(wanted)
    weights.prepare(wanted, quiet)
    assert weights.is_ready(wanted)
    place = weights.folder(wanted)
    assert place is not None and place.parent == models
    plain, found = load_file(source / "model.safetensors"), tensors(place)
    assert found[f"{DOWN}.qweight"].shape == (64, 48)
    assert Quantized.of(found, DOWN).values.equal(nearest(plain[f"{DOWN}.weight"].float(), 16).values)
    head = Quantized.of(found, "model.embed_tokens")
    assert head.grid.bits == 8
    assert head.values.equal(nearest(plain["model.embed_tokens.weight"].float(), None).values)
    assert found["model.norm.weight"].equal(plain["model.norm.weight"])
    document = quantized.document(wanted)
    assert document is not None
    assert (document["precision"], document["quantizer"], document["group_size"]) == ("int4", "rtn", 16)
    assert document["source"] == building.sha256(source / "model.safetensors")
    assert document["matrices"][DOWN] == {"bits": 4}
    assert document["matrices"]["model.embed_tokens"] == {"bits": 8}
    assert len(document["matrices"]) == 2 * 7 + 1
    assert set(document["files"]) == {path.name for path in place.iterdir()} - {"quantization.json"}
    assert LlamaConfig.read(place) == LlamaConfig.read(source)


@pytest.mark.parametrize(
    ("precision", "quantizer"), [("int4", "gptq"), ("int4", "awq"), ("int8", "smoothquant"), ("int8_weight", "rtn")]
)
def test_every_quantizer_stays_near_the_weights(precision: str, quantizer: str, source: Path, models: Path) -> None:
    """Folded factors cancel out in the product of a norm's weight and the columns that it feeds."""
    wanted = spec(source, precision, quantizer=quantizer)
    weights.prepare(wanted, quiet)
    plain, found = load_file(source / "model.safetensors"), tensors(weights.folder(wanted))
    gate, norm = "model.layers.0.mlp.gate_proj", "model.layers.0.post_attention_layernorm.weight"
    ours = Quantized.of(found, gate).values * found[norm].float()
    theirs = plain[f"{gate}.weight"].float() * plain[norm].float()
    assert float((ours - theirs).norm() / theirs.norm()) < (0.15 if precision == "int4" else 0.02)
    folds = quantizer in ("awq", "smoothquant")
    assert found[norm].equal(plain[norm]) != folds
    document = quantized.document(wanted)
    assert document is not None
    calibration = document["calibration"]
    if quantizer == "rtn":
        assert calibration is None
    else:
        assert calibration["passages"] == 128
        assert not set(calibration["topics"]) & set(prose.JUDGED_ON)
        assert document["warning"] is None


def test_an_untied_head_is_8_bit_too(tmp_path: Path, models: Path, tiny_folder: Path) -> None:
    folder = tmp_path / "untied"
    save_llama(folder, tie_word_embeddings=False)
    shutil.copy(tiny_folder / "tokenizer.json", folder)
    wanted = spec(folder)
    weights.prepare(wanted, quiet)
    found = tensors(weights.folder(wanted))
    assert found["lm_head.qweight"].dtype == found["model.embed_tokens.qweight"].dtype == torch.int8


# --- by content --------------------------------------------------------------------------------------------------


def test_the_folder_is_named_after_all_that_decides_it(source: Path, models: Path) -> None:
    base = spec(source)
    same = spec(source, scheduler="one", seed=3)
    others = [
        spec(source, group_size=32),
        spec(source, "int8"),
        spec(source, "int8_weight"),
        spec(source, quantizer="gptq"),
        spec(source, quantizer="gptq", seed=1),
    ]
    assert quantized.folder(same) == quantized.folder(base)
    names = {quantized.folder(other) for other in [base, *others]}
    assert len(names) == 6
    change(source, lambda found: found[f"{DOWN}.weight"].mul_(2))
    assert quantized.folder(base) not in names
    config = json.loads((source / "config.json").read_text())
    before = quantized.folder(base)
    (source / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert quantized.folder(base) != before


def test_without_the_source_there_is_no_name_yet(models: Path) -> None:
    wanted = ModelSpec(name="llm", precision="int8")  # SmolLM2, which this LAB_HOME lacks
    assert weights.folder(wanted) is None
    assert not weights.is_ready(wanted)


# --- killed, twice at once, damaged ------------------------------------------------------------------------------


def kill_after_the_first_block(wanted: ModelSpec) -> None:
    class Killed(BaseException):
        pass

    def kill(label: str, done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        weights.prepare(wanted, kill)


@pytest.mark.parametrize("quantizer", ["rtn", "gptq", "awq"])
def test_a_killed_builder_goes_on_where_it_was(quantizer: str, source: Path, models: Path) -> None:
    wanted = spec(source, quantizer=quantizer)
    place = quantized.folder(wanted)
    assert place is not None
    partial = place.with_name(f"{place.name}.partial")
    kill_after_the_first_block(wanted)
    assert not weights.is_ready(wanted)
    first = partial / "block-000.safetensors"
    (partial / "block-001.partial").write_bytes(b"half a file")
    kept = first.stat().st_ino
    weights.prepare(wanted, quiet)
    assert (place / "block-000.safetensors").stat().st_ino == kept
    resumed = tensors(place)
    shutil.rmtree(place)
    weights.prepare(wanted, quiet)
    whole = tensors(place)
    assert resumed.keys() == whole.keys()
    for name, tensor in whole.items():
        if quantizer == "awq":  # a folded factor divides a weight now, where it divided inputs before
            assert resumed[name].float().allclose(tensor.float(), rtol=1e-3, atol=1e-5), name
        else:
            assert resumed[name].equal(tensor), name


def test_what_an_earlier_try_finished_is_made_anew_where_it_was_damaged(source: Path, models: Path) -> None:
    """A bit of a weight, which no reader of safetensors notices: what is built on it would carry a hash of its own."""
    wanted = spec(source, quantizer="gptq")
    place = quantized.folder(wanted)
    assert place is not None
    kill_after_the_first_block(wanted)
    first = place.with_name(f"{place.name}.partial") / "block-000.safetensors"
    good = first.read_bytes()
    first.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    weights.prepare(wanted, quiet)
    assert (place / "block-000.safetensors").read_bytes() == good
    assert not list(place.glob("*.sha256"))


def test_of_two_builders_one_builds_and_the_other_waits(
    source: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, said, second_waits = [], [], threading.Event()

    def counted(module: str, wanted: dict[str, Any], progress: Progress) -> None:
        built.append(module)
        other.start()
        assert second_waits.wait(60)
        build_here(module, wanted, progress)

    def say(line: str) -> None:
        said.append(line)
        second_waits.set()

    other = threading.Thread(target=lambda: weights.prepare(spec(source), quiet))
    monkeypatch.setattr(quantized.job, "do", counted)
    monkeypatch.setattr(quantized, "_say", say)
    weights.prepare(spec(source), quiet)
    other.join(60)
    assert len(built) == 1
    assert said == ["int4 by rtn is being made already; waiting for it"]
    assert weights.is_ready(spec(source))


def test_a_damaged_folder_is_made_anew(source: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights.prepare(spec(source), quiet)
    place = quantized.folder(spec(source))
    assert place is not None
    whole = (place / "block-001.safetensors").read_bytes()
    (place / "block-001.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    weights.prepare(spec(source), quiet)
    assert (place / "block-001.safetensors").read_bytes() == whole
    assert "block-001.safetensors is not as it was written" in capsys.readouterr().err


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(value: float, source: Path, models: Path) -> None:
    change(source, lambda found: found[f"{DOWN}.weight"].__setitem__((3, 5), value))
    with pytest.raises(InputError, match=rf"{DOWN}.weight holds NaN or infinity"):
        weights.prepare(spec(source), quiet)
    assert not weights.is_ready(spec(source))


@pytest.mark.parametrize(
    ("group_size", "words"),
    [
        (64, "group_size 64 does not divide intermediate_size 96; allowed: 8, 16, 32"),
        (12, "group_size 12 is no multiple of 8; allowed: 8, 16, 32"),
    ],
)
def test_groups_that_do_not_fit_are_refused_before_anything_is_computed(
    group_size: int, words: str, source: Path, models: Path
) -> None:
    with pytest.raises(InputError, match=words):
        weights.check(spec(source, group_size=group_size))
    weights.check(spec(source, "int8"))


def test_a_width_that_no_group_divides(tiny_folder: Path) -> None:
    odd = LlamaConfig(**{**vars(LlamaConfig.read(tiny_folder)), "mlp": 97})
    with pytest.raises(Unquantizable, match="does not divide intermediate_size 97; allowed: none fits this model"):
        check_widths(odd, 32)
    check_widths(odd, None)


def test_too_few_passages_warn(source: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(prose, "calibration_texts", lambda: {"one": "A short text of some words. " * 40})
    weights.prepare(spec(source, quantizer="gptq"), quiet)
    document = quantized.document(spec(source, quantizer="gptq"))
    assert document is not None
    assert document["warning"] == "calibrated on 8 passages; 128 or more are needed to trust the result"
    assert "calibrated on 8 passages" in capsys.readouterr().err


def test_more_inputs_than_tokens_warn() -> None:
    assert building.too_few(128, 128, 16_384) is None
    assert "16384 tokens, and a matrix has 16385 inputs" in str(building.too_few(128, 128, 16_385))


@pytest.mark.processes
def test_the_builder_is_a_process_of_its_own(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    told: list[str] = []
    weights.prepare(spec(source, "int8"), lambda label, done, total: told.append(f"{label}: {done * 100 // total}"))
    assert told == [
        "quantizing to int8 by rtn, block 1 of 2: 33",
        "quantizing to int8 by rtn, block 2 of 2: 66",
        "quantized to int8 by rtn: 100",
    ]
    assert weights.is_ready(spec(source, "int8"))
