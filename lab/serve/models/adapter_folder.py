"""A LoRA adapter (https://arxiv.org/abs/2106.09685) in PEFT's folder, read and written.

    adapter_config.json          rank, alpha, and which projections change
    adapter_model.safetensors    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight  [rank, in]
                                 base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight  [out, rank] …

A projection y = W x becomes y = W x + scale × B (A x) with scale = alpha / rank, or alpha / √rank for rsLoRA
(https://arxiv.org/abs/2312.03732). What would have to be ignored (DoRA, biases, whole modules) is refused by name: to
ignore it gives other answers than were trained, fluently. Pickles are never read. A base of the same shape cannot be
told from the right one by the tensors, only by the name that the config has for it. Needs no torch, so whoever starts
a server can check first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from .llama_config import LlamaConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "pytorch_model.bin")
PARTS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
"""Projections that read the same input, in the order in which a decoder puts them below each other."""
PROJECTIONS = {name: "mlp" if part > 1 else "self_attn" for part, names in enumerate(PARTS) for name in names}
"""Each with the module that it belongs to."""
PREFIX = "base_model.model.model.layers."
ALLOWED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("peft_type", ("LORA",)),
    ("bias", (None, "none")),
    ("use_dora", (None, False)),
    ("lora_bias", (None, False)),
    ("fan_in_fan_out", (None, False)),
    ("modules_to_save", (None, [])),
    ("exclude_modules", (None, [])),
    ("target_parameters", (None, [])),
    ("layer_replication", (None, [])),
    ("trainable_token_indices", (None, [])),
    ("alora_invocation_tokens", (None, [])),
)
"""Fields of adapter_config.json that change what is computed, and the values under which they do not."""

unpack: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize
"""With a type, which its own lacks."""


@dataclass(frozen=True)
class LowRank:
    """The change of one projection, scale × B A; float32."""

    a: np.ndarray  # [rank, in]
    b: np.ndarray  # [out, rank]
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)

    def merged(self) -> np.ndarray:
        """What is added to the weight [out, in]."""
        found: np.ndarray = np.float32(self.scale) * (self.b @ self.a)
        return found


@dataclass(frozen=True)
class Adapter:
    """By (layer, projection) what changes; `base` is the name that its author gave to the base model."""

    changes: Mapping[tuple[int, str], LowRank]
    base: str = ""

    @property
    def elements(self) -> int:
        return sum(change.a.size + change.b.size for change in self.changes.values())

    @property
    def targets(self) -> list[str]:
        return [name for name in PROJECTIONS if any(changed == name for _, changed in self.changes)]


def shapes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of each projection."""
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, mlp = config.hidden, config.mlp
    return {
        "q_proj": (heads, hidden),
        "k_proj": (kv_heads, hidden),
        "v_proj": (kv_heads, hidden),
        "o_proj": (hidden, heads),
        "gate_proj": (mlp, hidden),
        "up_proj": (mlp, hidden),
        "down_proj": (hidden, mlp),
    }


def read(folder: Path, config: LlamaConfig) -> Adapter:
    """The adapter in `folder`, whole and fit for a base of this `config`. ValueError in one line, with the folder and
    the name of what is wrong or missing."""
    try:
        given = _config(folder)
        wanted = _wanted(given, config)
        found = _tensors(folder)
        changes = {place: _change(given, config, found, *place) for place in (wanted or _pairs(found))}
        if found:
            _check_layer(_pairs(found)[-1][0], config)
            raise ValueError(f"tensor {min(found)} belongs to no projection in target_modules")
    except ValueError as error:
        raise ValueError(f"adapter {folder}: {error}") from None
    return Adapter(changes, str(given.get("base_model_name_or_path") or ""))


def base_of(folder: Path) -> str:
    """The name or path that its author gave to the base model; "" where there is none. ValueError as `read`."""
    return str(_config(folder).get("base_model_name_or_path") or "")


def write(folder: Path, adapter: Adapter, *, alpha: float, rslora: bool = False) -> None:
    """As PEFT writes and opens it. All changes have one rank, and the scale that `alpha` gives with it."""
    ranks = {change.rank for change in adapter.changes.values()}
    (rank,) = ranks
    if any(change.scale != _scale(alpha, rank, rslora) for change in adapter.changes.values()):
        raise ValueError(f"a scale is not that of alpha {alpha:g} and rank {rank}")
    layers = sorted({layer for layer, _ in adapter.changes})
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": rslora,
        "lora_dropout": 0.0,
        "target_modules": adapter.targets,
        "layers_to_transform": layers,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    tensors = {
        f"{module(layer, name)}.lora_{half}.weight": np.ascontiguousarray(values, np.float32)
        for (layer, name), change in adapter.changes.items()
        for half, values in (("A", change.a), ("B", change.b))
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(document, indent=2) + "\n")


def module(layer: int, projection: str) -> str:
    """How PEFT calls it in its files."""
    return f"{PREFIX}{layer}.{PROJECTIONS[projection]}.{projection}"


# --- adapter_config.json ------------------------------------------------------------------------------------------


def _config(folder: Path) -> dict[str, Any]:
    place = folder / CONFIG
    if not place.is_file():
        raise ValueError(f"no {CONFIG}; allowed: a folder that PEFT's save_pretrained wrote")
    try:
        given = json.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{CONFIG} is no JSON ({error})") from None
    if not isinstance(given, dict):
        raise ValueError(f"{CONFIG} is no JSON object")
    for field, allowed in ALLOWED:
        if given.get(field) not in allowed:
            raise ValueError(f"{field} {given.get(field)!r} is not served; allowed: {allowed[-1]!r}")
    for field in ("r", "lora_alpha"):
        _check_number(field, given.get(field), whole=field == "r")
    for field in ("rank_pattern", "alpha_pattern"):
        pattern = given.get(field) or {}
        if not isinstance(pattern, dict):
            raise ValueError(f"{field} {pattern!r}; allowed: an object of numbers by module")
        for name, value in pattern.items():
            _check_number(f"{field} of {name}", value, whole=field == "rank_pattern")
    return given


def _check_number(field: str, value: Any, *, whole: bool) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        raise ValueError(f"{field} {value!r}; allowed: {'a whole number from 1' if whole else 'a number above 0'}")


def _wanted(given: Mapping[str, Any], config: LlamaConfig) -> list[tuple[int, str]]:
    """Every (layer, projection) that the config promises; [] where target_modules is a pattern, which promises none."""
    targets = given.get("target_modules")
    if isinstance(targets, str) and targets:
        return []
    if not isinstance(targets, list) or not targets:
        raise ValueError(f"target_modules {targets!r}; allowed: some of {', '.join(PROJECTIONS)}")
    names = [str(target).rpartition(".")[2] for target in targets]
    for target, name in zip(targets, names, strict=True):
        if name not in PROJECTIONS:
            raise ValueError(f"target module {target!r} is none that is served; allowed: {', '.join(PROJECTIONS)}")
    layers = given.get("layers_to_transform")
    numbers = range(config.layers) if layers is None else layers if isinstance(layers, list) else [layers]
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number < config.layers:
            raise ValueError(f"layer {number!r} of layers_to_transform; the base has 0 to {config.layers - 1}")
    return [(number, name) for number in numbers for name in PROJECTIONS if name in names]


def _of_module(given: Mapping[str, Any], field: str, layer: int, projection: str) -> Any:
    """A pattern's value for this projection, by the end of its name as in PEFT; None where it names it not."""
    name = f"model.layers.{layer}.{PROJECTIONS[projection]}.{projection}"
    patterns = given.get(field) or {}
    return next((value for key, value in patterns.items() if name == key or name.endswith(f".{key}")), None)


def _scale(alpha: float, rank: int, rslora: bool) -> float:
    return alpha / (math.sqrt(rank) if rslora else rank)


# --- adapter_model.safetensors ------------------------------------------------------------------------------------


def _tensors(folder: Path) -> dict[str, np.ndarray]:
    """float32, by name."""
    place = folder / WEIGHTS
    if not place.is_file():
        pickle = next((name for name in PICKLES if (folder / name).exists()), None)
        if pickle:
            raise ValueError(f"{pickle} is a pickle, which is never read; allowed: {WEIGHTS}")
        raise ValueError(f"no {WEIGHTS} beside {CONFIG}")
    try:
        stored = unpack(place.read_bytes())
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{WEIGHTS} cannot be read: {error}") from None
    return {name: _floats(name, tensor) for name, tensor in stored}


def _floats(name: str, tensor: Mapping[str, Any]) -> np.ndarray:
    kind, data = tensor["dtype"], tensor["data"]
    if kind == "BF16":  # the upper half of a float32
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif kind in ("F32", "F16"):
        values = np.frombuffer(data, np.float32 if kind == "F32" else np.float16).astype(np.float32)
    else:
        raise ValueError(f"tensor {name} is {kind}; allowed: F32, F16, BF16")
    if not np.isfinite(values).all():
        raise ValueError(f"tensor {name} holds NaN or infinity; allowed: finite numbers")
    return values.reshape(tensor["shape"])


def _pairs(found: Iterable[str]) -> list[tuple[int, str]]:
    """The places that the tensors' names tell of. ValueError for a name that is none of PEFT's for a Llama."""
    places = set()
    for name in found:
        words = name.removeprefix(PREFIX).split(".")
        known = len(words) == 5 and words[0].isdecimal() and PROJECTIONS.get(words[2]) == words[1]
        if not name.startswith(PREFIX) or not known or words[3] not in ("lora_A", "lora_B"):
            raise ValueError(f"tensor {name} is no low-rank matrix of {', '.join(PROJECTIONS)}")
        places.add((int(words[0]), words[2]))
    if not places:
        raise ValueError(f"{WEIGHTS} holds no tensor")
    return sorted(places)


def _check_layer(layer: int, config: LlamaConfig) -> None:
    if layer >= config.layers:
        raise ValueError(f"it changes layer {layer}; the base has 0 to {config.layers - 1}")


def _change(
    given: Mapping[str, Any], config: LlamaConfig, found: dict[str, np.ndarray], layer: int, projection: str
) -> LowRank:
    """Takes the two tensors of a projection out of `found`."""
    _check_layer(layer, config)
    out, columns = shapes(config)[projection]
    rank = _of_module(given, "rank_pattern", layer, projection) or given["r"]
    alpha = _of_module(given, "alpha_pattern", layer, projection) or given["lora_alpha"]
    halves = []
    for half, shape in (("A", (rank, columns)), ("B", (out, rank))):
        name = f"{module(layer, projection)}.lora_{half}.weight"
        if name not in found:
            raise ValueError(f"tensor {name} is missing in {WEIGHTS}")
        tensor = found.pop(name)
        if tensor.shape != shape:
            raise ValueError(
                f"tensor {name} has the shape {list(tensor.shape)}; allowed: {list(shape)}, "
                f"by rank {rank} and this base's {projection} of {out} × {columns}"
            )
        halves.append(tensor)
    return LowRank(halves[0], halves[1], _scale(alpha, rank, bool(given.get("use_rslora"))))
