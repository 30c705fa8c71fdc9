"""Checkpoints in other people's layouts, packed here number by number as their documentation says, and read back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.errors import InputError
from lab.serve import quantized, weights
from lab.serve.quantize import build as building
from lab.serve.quantize.block import MATRICES
from lab.serve.quantize.grid import Quantized
from lab.serve.quantize.recipe import Recipe, Unquantizable
from lab.serve.quantize.scheme import Scheme
from lab.spec import ModelSpec

GROUP = 16
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Column i of eight lies in this nibble."""


def as_int32(numbers: list[list[int]]) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.uint32).view(np.int32))


def packed(values: np.ndarray, bits: int, axis: int, places: tuple[int, ...] | None = None) -> torch.Tensor:
    """Unsigned `values` [r, c], 32 / bits of them in a number along `axis`; value i at place i unless told."""
    per = 32 // bits
    whole = values if axis == 1 else values.T
    rows = []
    for row in whole:
        numbers = []
        for start in range(0, len(row), per):
            number = 0
            for i, value in enumerate(row[start : start + per]):
                number |= int(value) << bits * (places[i] if places else i)
            numbers.append(number)
        rows.append(numbers)
    found = as_int32(rows)
    return found if axis == 1 else found.T.contiguous()


class Drawn:
    """A random quantized matrix and what its weights are, by the rule (q - zero) × scale."""

    def __init__(self, rows: int, columns: int, bits: int, symmetric: bool, seed: int) -> None:
        drawing = np.random.default_rng(seed)
        groups = columns // GROUP if bits == 4 else 1
        half = 2 ** (bits - 1)
        self.codes = drawing.integers(0 if bits == 4 else 1, 2**bits, (rows, columns))
        self.zero = np.full((rows, groups), half) if symmetric else drawing.integers(0, 16, (rows, groups))
        self.scale = drawing.uniform(0.01, 0.1, (rows, groups)).astype(np.float16)
        spread = columns // groups
        self.weights = (self.codes - self.zero.repeat(spread, 1)) * self.scale.astype(np.float32).repeat(spread, 1)


def gptq(drawn: Drawn, bits: int, less: int) -> dict[str, torch.Tensor]:
    zero = (drawn.zero - less) % 2**bits
    columns = drawn.codes.shape[1]
    group = GROUP if bits == 4 else columns
    return {
        "qweight": packed(drawn.codes.T, bits, axis=0),
        "qzeros": packed(zero.T, bits, axis=1),
        "scales": torch.from_numpy(drawn.scale.T.copy()),
        "g_idx": torch.arange(columns, dtype=torch.int32) // group,
    }


def awq(drawn: Drawn) -> dict[str, torch.Tensor]:
    return {
        "qweight": packed(drawn.codes.T, 4, axis=1, places=AWQ_PLACES),
        "qzeros": packed(drawn.zero.T, 4, axis=1, places=AWQ_PLACES),
        "scales": torch.from_numpy(drawn.scale.T.copy()),
    }


def compressed(drawn: Drawn, bits: int, symmetric: bool) -> dict[str, torch.Tensor]:
    found = {
        "weight_packed": packed(drawn.codes, bits, axis=1),
        "weight_scale": torch.from_numpy(drawn.scale),
        "weight_shape": torch.tensor(drawn.codes.shape),
    }
    return found if symmetric else found | {"weight_zero_point": packed(drawn.zero, 4, axis=0)}


def whole_numbers(drawn: Drawn) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.from_numpy((drawn.codes - 128).astype(np.int8)),
        "weight_scale": torch.from_numpy(drawn.scale),
    }


def compressed_config(bits: int, symmetric: bool, **changes: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": GROUP} if bits == 4 else {"strategy": "channel", "group_size": None}
    arguments = {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments}},
        "ignore": ["lm_head"],
        **changes,
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
CASES: dict[str, tuple[dict[str, Any], int, bool, Any]] = {
    # quantization_config, bits, symmetric, packer
    "gptq": (GPTQ, 4, False, lambda drawn: gptq(drawn, 4, 1)),
    "gptq_v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, 4, False, lambda drawn: gptq(drawn, 4, 0)),
    "gptq 8 bit": (GPTQ | {"bits": 8, "group_size": -1, "sym": True}, 8, True, lambda drawn: gptq(drawn, 8, 1)),
    "awq": (AWQ, 4, False, awq),
    "compressed, zeros": (compressed_config(4, False), 4, False, lambda drawn: compressed(drawn, 4, False)),
    "compressed": (compressed_config(4, True), 4, True, lambda drawn: compressed(drawn, 4, True)),
    "compressed 8 bit": (compressed_config(8, True), 8, True, lambda drawn: compressed(drawn, 8, True)),
    "whole numbers": (compressed_config(8, True, format="int-quantized"), 8, True, whole_numbers),
}


@pytest.fixture
def checkpoint(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(case) → (the folder of a checkpoint made by the case's packer, its matrices)."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))

    def do(module: str, wanted: dict[str, Any], progress: Any) -> None:
        try:
            building.build(Path(wanted["source"]), Path(wanted["folder"]), Recipe(**wanted["recipe"]), progress)
        except ValueError as error:
            raise quantized.job.Failed(str(error), refused=True) from None

    monkeypatch.setattr(quantized.job, "do", do)

    def make(case: str) -> tuple[Path, dict[str, Drawn]]:
        config, bits, symmetric, pack = CASES[case]
        folder = Path(shutil.copytree(tiny_folder, tmp_path / "checkpoint"))
        found, matrices = load_file(folder / "model.safetensors"), {}
        for name in [f"model.layers.{i}.{part}" for i in range(2) for part in MATRICES]:
            rows, columns = found.pop(f"{name}.weight").shape
            matrices[name] = Drawn(rows, columns, bits, symmetric, seed=len(matrices))
            found |= {f"{name}.{key}": tensor for key, tensor in pack(matrices[name]).items()}
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / "model.safetensors")
        plain = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(plain | {"quantization_config": config}))
        return folder, matrices

    return make


def spec_of(folder: Path, case: str, **fields: Any) -> ModelSpec:
    config, bits, _, _ = CASES[case]
    method = config["quant_method"]
    wanted: dict[str, Any] = {"precision": "int8_weight"}
    if bits == 4:
        wanted = {"precision": "int4", "group_size": GROUP, "quantizer": method if method in ("gptq", "awq") else "rtn"}
    return ModelSpec(name="llm", weights=str(folder), **wanted | fields)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_read_as_it_was_packed(case: str, checkpoint: Any) -> None:
    folder, matrices = checkpoint(case)
    spec = spec_of(folder, case)
    weights.prepare(spec, lambda *told: None)
    place = weights.folder(spec)
    assert place is not None
    found: dict[str, torch.Tensor] = {}
    for path in place.glob("*.safetensors"):
        found |= load_file(path)
    for name, drawn in matrices.items():
        assert np.allclose(Quantized.of(found, name).values.numpy(), drawn.weights, atol=1e-6), name
    document = quantized.document(spec)
    assert document is not None
    assert document["checkpoint"] == str(Scheme.parse(CASES[case][0]))
    assert "quantization_config" not in json.loads((place / "config.json").read_text())


def test_a_checkpoint_is_served_as_it_is_or_not_at_all(checkpoint: Any) -> None:
    folder, _ = checkpoint("gptq")
    allowed = "allowed: precision int4, group_size 16, quantizer gptq"
    for fields in ({"quantizer": "rtn"}, {"group_size": 32}):
        with pytest.raises(InputError, match=rf"are 4 bit by gptq in groups of 16, with .*; {allowed}"):
            weights.check(spec_of(folder, "gptq", **fields))
    with pytest.raises(InputError, match=rf"with precision bf16.*; {allowed}"):
        weights.prepare(ModelSpec(name="llm", weights=str(folder)))


def test_columns_in_another_order_are_refused(checkpoint: Any) -> None:
    folder, _ = checkpoint("gptq")
    found = load_file(folder / "model.safetensors")
    found["model.layers.1.mlp.up_proj.g_idx"] = found["model.layers.1.mlp.up_proj.g_idx"].flip(0)
    save_file(found, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"layers.1.mlp.up_proj.g_idx puts the columns of a group apart \(desc_act\)"):
        weights.prepare(spec_of(folder, "gptq"), lambda *told: None)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not read"),
        (GPTQ | {"bits": 3}, "gptq with 3 bits is not served"),
        (GPTQ | {"bits": 8}, "gptq in 8 bit with groups or zeros is not served"),
        (GPTQ | {"group_size": -1}, "gptq with one scale a row in 4 bit is not served"),
        ({"quant_method": "gptq", "bits": 4}, "quantization_config of gptq is not complete"),
        (AWQ | {"version": "gemv"}, "awq version 'gemv' is not read"),
        (compressed_config(4, True, format="float-quantized"), "format 'float-quantized' is not read"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(config: dict[str, Any], words: str) -> None:
    with pytest.raises(Unquantizable, match=words):
        Scheme.parse(config)
