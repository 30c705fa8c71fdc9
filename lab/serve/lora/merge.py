"""A copy of a base with an adapter folded into its weights: W + scale × B A, rounded to the weights' own type.

As fast as the base and as large: what one adapter costs when it is not kept apart.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lab.serve.models.adapter_folder import PROJECTIONS, read
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.quantize.build import KEPT

from .train import Progress

MERGED = "merged.json"
"""Written last: the copy is whole."""


def merge(source: Path, adapter: Path, target: Path, progress: Progress) -> None:
    """Fills `target` from the Hugging Face folder `source`. ValueError when the adapter does not fit it."""
    config = LlamaConfig.read(source)
    changes = {
        f"model.layers.{layer}.{PROJECTIONS[name]}.{name}.weight": change
        for (layer, name), change in read(adapter, config).changes.items()
    }
    files = sorted(source.glob("*.safetensors"))
    for number, path in enumerate(files):
        progress(f"merging {adapter.name}", number, len(files))
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  a file is no dict
        for name in tensors.keys() & changes.keys():
            added = torch.from_numpy(changes[name].merged())
            tensors[name] = (tensors[name].float() + added).to(tensors[name].dtype)
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    for name in (*KEPT, "model.safetensors.index.json"):
        if (source / name).is_file():
            shutil.copy2(source / name, target / name)
    (target / MERGED).write_text(json.dumps({"source": str(source), "adapter": str(adapter)}) + "\n")
    progress(f"merged {adapter.name}", len(files), len(files))
