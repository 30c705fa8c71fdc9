"""Random adapters for the tiny Llama, in PEFT's layout by the tests' own hand, and the model that each stands for."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_lora(
    folder: Path,
    base: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8.0,
    targets: tuple[str, ...] = ALL,
    size: float = 0.3,
    dtype: torch.dtype = torch.float32,
    **fields: Any,
) -> Path:
    """`size`: standard deviation of the elements of A and B. `fields` go into adapter_config.json as they are."""
    shape = json.loads((base / "config.json").read_text())
    hidden, mlp = shape["hidden_size"], shape["intermediate_size"]
    heads, kv_heads = (shape[f"num_{name}_heads"] * shape["head_dim"] for name in ("attention", "key_value"))
    sizes = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, (rows, columns) in sizes.items():
            if name.partition(".")[2] in targets:
                prefix = f"base_model.model.model.layers.{layer}.{name}"
                for half, sides in (("A", (rank, columns)), ("B", (rows, rank))):
                    values = size * torch.randn(sides, generator=random)
                    tensors[f"{prefix}.lora_{half}.weight"] = values.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), **fields}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@torch.no_grad()
def merged(model: Any, folder: Path, scale: float) -> Any:
    """transformers' `model` with the adapter in `folder` folded into its weights: W + scale × B A."""
    from safetensors.torch import load_file

    changed, tensors = copy.deepcopy(model), load_file(folder / "adapter_model.safetensors")
    for name in [name for name in tensors if ".lora_A." in name]:
        path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = tensors[name].float(), tensors[name.replace(".lora_A.", ".lora_B.")].float()
        changed.get_submodule(path).weight += scale * b @ a
    return changed
