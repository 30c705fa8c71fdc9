"""What config.json of a Hugging Face folder says about a Llama, checked: one architecture, no scaled positions.

A field that the decoder would have to ignore (a bias, another activation, scaled rotations, quantized weights) is
refused by name, because ignoring it gives fluent nonsense. Needs no torch, so whoever starts a server can ask first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURE = "LlamaForCausalLM"


@dataclass(frozen=True)
class LlamaConfig:
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    rope_theta: float
    norm_eps: float
    tied_embeddings: bool
    eos_tokens: frozenset[int]

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values of one token, all layers; times the bytes of an element this is its share of the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @classmethod
    def read(cls, folder: Path, quantized: bool = False) -> LlamaConfig:
        """From FOLDER/config.json, and the end tokens of generation_config.json where there is one. `quantized`:
        whether the weights may be, by somebody else, for a reader of such.

        ValueError in one line, with the folder, when there is no such file or the model is none the decoder serves.
        """
        found = _json(folder / "config.json")
        if found is None:
            raise ValueError(f"{folder}: no config.json; a Hugging Face folder with config.json and *.safetensors is")
        if quantized:
            found.pop("quantization_config", None)
        try:
            return cls.parse(found, _json(folder / "generation_config.json") or {})
        except KeyError as missing:
            raise ValueError(f"{folder}: config.json has no field {missing}") from None
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None

    @classmethod
    def parse(cls, found: dict[str, Any], generation: dict[str, Any]) -> LlamaConfig:
        architecture = (found.get("architectures") or [found.get("model_type")])[0]
        if architecture != ARCHITECTURE:
            raise ValueError(f"architecture {architecture}; this lab's decoder serves {ARCHITECTURE} only")
        rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        for field, value, allowed in (
            ("rope_type", kind, "default"),
            ("hidden_act", found.get("hidden_act", "silu"), "silu"),
            ("attention_bias", found.get("attention_bias", False), False),
            ("mlp_bias", found.get("mlp_bias", False), False),
            ("quantization_config", found.get("quantization_config"), None),
        ):
            if value != allowed:
                raise ValueError(f"{field} {value!r} is not served; allowed: {allowed!r}")
        heads, hidden = found["num_attention_heads"], found["hidden_size"]
        kv_heads = found.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise ValueError(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
        eos = generation.get("eos_token_id", found.get("eos_token_id"))
        return cls(
            layers=found["num_hidden_layers"],
            hidden=hidden,
            mlp=found["intermediate_size"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=found.get("head_dim") or hidden // heads,
            vocabulary=found["vocab_size"],
            context_tokens=found["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta") or found.get("rope_theta") or 10000.0),
            norm_eps=found["rms_norm_eps"],
            tied_embeddings=found.get("tie_word_embeddings", False),
            eos_tokens=frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        )


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text()) if path.is_file() else None
    except ValueError as error:
        raise ValueError(f"{path}: no JSON ({error})") from None
