"""Weights rounded to the nearest, and a folder of them: plain numpy, to test those who read such a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def rounded_8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [out, in], float32 [out, 1])."""
    scale = np.abs(weight).max(axis=1, keepdims=True).astype(np.float32) / np.float32(127)
    return np.rint(weight / np.where(scale == 0, 1, scale)).astype(np.int8), scale


def rounded_4(weight: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(uint8 0 to 15 [out, in], float32 and uint8 [out, in / group])."""
    groups = weight.reshape(len(weight), -1, group)
    low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
    scale = ((high - low) / 15).astype(np.float32)
    divisor = np.where(scale == 0, 1, scale)
    zero = np.rint(-low / divisor)
    q = np.clip(np.rint(groups / divisor[:, :, None]) + zero[:, :, None], 0, 15)
    return q.reshape(weight.shape).astype(np.uint8), scale, zero.astype(np.uint8)


def save_rounded(
    source: Path,
    target: Path,
    precision: str,
    group_size: int = 32,
    chosen: Callable[[str], bool] = lambda name: True,
) -> Path:
    """The Hugging Face folder `source` with its chosen matrices rounded, as lab/serve/models/quantized_reader.py reads
    it."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.json"):
        shutil.copy(path, target)
    tensors, matrices = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        matrix = name.removesuffix(".weight")
        if tensor.dim() != 2 or not chosen(matrix):
            tensors[name] = tensor
            continue
        weight = tensor.float().numpy()
        bits = 4 if precision == "int4" and "embed" not in name and "lm_head" not in name else 8
        matrices[matrix] = {"bits": bits}
        if bits == 8:
            parts = dict(zip(("qweight", "scale"), rounded_8(weight), strict=True))
        else:
            q, scale, zero = rounded_4(weight, group_size)
            parts = {"qweight": q[:, ::2] | q[:, 1::2] << 4, "scale": scale, "zero": zero}
        tensors |= {f"{matrix}.{part}": torch.from_numpy(value) for part, value in parts.items()}
    save_file(tensors, target / "model.safetensors")
    description = {
        "format_version": 1,
        "precision": precision,
        "quantizer": "rtn",
        "group_size": group_size,
        "source": "",
        "calibration": None,
        "matrices": matrices,
    }
    (target / "quantization.json").write_text(json.dumps(description))
    return target
