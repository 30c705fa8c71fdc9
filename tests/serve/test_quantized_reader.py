"""A quantized folder, read back; and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.serve.models.quantized_reader import QuantizedMatrix, WeightsFolder
from tests.serve.rounded_weights import rounded_4, rounded_8

WEIGHT = np.array([[0.5, -1.27, 0.0, 0.01] * 4, [0.0] * 16], np.float32)


def write(folder: Path, bits: int, **changes: Any) -> Path:
    """A folder with the matrix "m" in 8 or 4 bits, groups of 8, and the plain matrix "p"."""
    folder.mkdir(exist_ok=True)
    if bits == 8:
        parts = dict(zip(("qweight", "scale"), rounded_8(WEIGHT), strict=True))
    else:
        q, scale, zero = rounded_4(WEIGHT, 8)
        parts = {"qweight": q[:, ::2] | q[:, 1::2] << 4, "scale": scale, "zero": zero}
    tensors = {f"m.{part}": torch.from_numpy(value.copy()) for part, value in parts.items()}
    save_file({**tensors, "p.weight": torch.eye(2)}, folder / "model.safetensors")
    description = {
        "format_version": 1,
        "precision": "int8" if bits == 8 else "int4",
        "quantizer": "rtn",
        "group_size": 8,
        "matrices": {"m": {"bits": bits}},
        **changes,
    }
    (folder / "quantization.json").write_text(json.dumps(description))
    return folder


def test_8_bits(tmp_path: Path) -> None:
    folder = WeightsFolder(write(tmp_path, 8))
    assert (folder.precision, folder.bits("m"), folder.bits("p")) == ("int8", 8, None)
    expected = np.array([[50, -127, 0, 1] * 4, [0] * 16]) * np.array([[1.27 / 127], [0.0]])
    assert folder.dequantized("m").numpy() == pytest.approx(expected, abs=1e-7)
    assert torch.equal(folder.dequantized("p"), torch.eye(2))


def test_4_bits(tmp_path: Path) -> None:
    """Between -1.27 and 0.5 lie 15 steps of 0.118, and 0 is 10.76 of them above: zero point 11."""
    folder = WeightsFolder(write(tmp_path, 4))
    matrix = folder.matrix("m")
    assert isinstance(matrix, QuantizedMatrix) and matrix.zero is not None
    assert matrix.zero.tolist() == [[11, 11], [0, 0]]
    # 11 + 0.5 / 0.118 = 15.2, 11 - 10.76 = 0.24, 11, 11.08
    assert matrix.levels()[0].tolist() == [15, 0, 11, 11] * 4
    assert folder.dequantized("m")[0, :4].tolist() == pytest.approx([0.472, -1.298, 0, 0], abs=1e-6)
    assert not folder.dequantized("m")[1].any()
    assert matrix.bytes == 2 * 8 + 2 * 2 * 4 + 2 * 2


def spoil(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Path], None]:
    def spoiled(folder: Path) -> None:
        tensors = {key: value.clone() for key, value in load_file(folder / "model.safetensors").items()}
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed.contiguous()
        save_file(tensors, folder / "model.safetensors")

    return spoiled


@pytest.mark.parametrize(
    ("bits", "name", "change", "words"),
    [
        (8, "m.scale", lambda t: t.fill_(float("nan")), "tensor m.scale holds NaN or infinity"),
        (4, "m.scale", lambda t: t.fill_(float("inf")), "tensor m.scale holds NaN or infinity"),
        (8, "m.scale", lambda t: None, "no tensor m.scale"),
        (4, "m.zero", lambda t: None, "no tensor m.zero"),
        (4, "m.zero", lambda t: t + 16, "m.zero holds 27; allowed: 0 to 15"),
        (8, "m.qweight", lambda t: None, "no tensor m.qweight"),
        (8, "m.qweight", lambda t: t.int(), r"m.qweight is torch.int32; allowed: torch.int8"),
        (4, "m.qweight", lambda t: t.char(), r"m.qweight is torch.int8; allowed: torch.uint8"),
        (8, "m.qweight", lambda t: t.fill_(-128), "m.qweight holds -128; allowed: -127 to 127"),
        (8, "m.scale", lambda t: t.double(), "m.scale is torch.float64; allowed: torch.float32"),
        (8, "m.scale", lambda t: t.expand(2, 2), r"m.scale has the shape \[2, 2\]; allowed: \[2, 1\]"),
        (4, "m.scale", lambda t: t[:, :1], r"m.scale has the shape \[2, 1\]; allowed: \[2, 2\]"),
        (4, "m.zero", lambda t: t[:1], r"m.zero has the shape \[1, 2\]; allowed: \[2, 2\]"),
        (8, "m.qweight", lambda t: t[0], r"m.qweight has the shape \[16\]; allowed: \[out, in\]"),
    ],
)
def test_a_damaged_matrix_is_refused_by_name(tmp_path: Path, bits: int, name: str, change: Any, words: str) -> None:
    spoil(name, change)(write(tmp_path, bits))
    with pytest.raises(ValueError, match=words):
        WeightsFolder(tmp_path).matrix("m")


def test_a_weight_that_is_no_number_is_refused_by_name(tmp_path: Path) -> None:
    spoil("p.weight", lambda t: t * float("nan"))(write(tmp_path, 8))
    with pytest.raises(ValueError, match=r"tensor p\.weight holds NaN or infinity; allowed: finite numbers"):
        WeightsFolder(tmp_path).matrix("p")


@pytest.mark.parametrize("size", [3, 0, None, 32])
def test_groups_that_do_not_divide_a_row_are_refused_by_name(tmp_path: Path, size: int | None) -> None:
    with pytest.raises(ValueError, match=f"matrix m has 16 columns with group_size {size}; allowed: a divisor of 16"):
        WeightsFolder(write(tmp_path, 4, group_size=size)).matrix("m")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format_version": 2}, "format_version 2; allowed: 1"),
        ({"precision": "int3"}, "precision 'int3'; allowed: int8, int8_weight, int4"),
        ({"matrices": {"m": {"bits": 3}}}, "bits of m 3; allowed: 8, 4"),
        ({"matrices": [1]}, "not read"),
    ],
)
def test_another_kind_of_folder_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WeightsFolder(write(tmp_path, 8, **changes))


def test_matrices_of_one_product_must_be_alike(tmp_path: Path) -> None:
    folder = WeightsFolder(write(tmp_path, 8))
    folder.check_alike(["m"])
    with pytest.raises(ValueError, match=r"differ in bits \(m 8, p unquantized\); allowed: alike"):
        folder.check_alike(["m", "p"])
