"""Where a language model's memory goes: predicted from its config, measured from its process, side by side.

    weights      elements × bytes of the served precision
    scales       of quantized weights; nothing is quantized yet, so none
    kv_cache     2 × layers × key heads × head size × bytes × tokens there is room for
    activations  what the largest step holds at a time besides
    workspace    tables of rotations, and logits
    runtime      Python, its libraries and the allocator's slack: never predicted, only measured as what is left

Key heads, not query heads: with grouped-query attention these are fewer (a third in SmolLM2). And the served precision,
not the file's. Memory is host memory, the PSS of the model's own process, unless the model is on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.measure.summary import Summary
from lab.measure.words import format_count
from lab.spec import ModelSpec, Precision

BYTES: Mapping[Precision, int] = {"fp32": 4, "bf16": 2}
PREFILL_TOKENS = 512
"""Tokens of a prompt that the engine reads in one step (lab/serve/models/engine.py: Options.prefill_tokens)."""


@dataclass(frozen=True)
class Predicted:
    """One row: `size_bytes`, and the arithmetic in words."""

    name: str
    size_bytes: float
    formula: str


@dataclass(frozen=True)
class Ledger:
    """`kv_bytes_per_token`: keys and values of one token, whether or not a cache keeps them."""

    rows: tuple[Predicted, ...]
    kv_bytes_per_token: int

    @property
    def size_bytes(self) -> float:
        return sum(row.size_bytes for row in self.rows)


@dataclass(frozen=True)
class Row:
    """`predicted_bytes` or `measured_bytes` is None where there is none, and `how` says where the measured figure comes
    from, or why it is missing. `error_fraction`: predicted ÷ measured - 1."""

    name: str
    predicted_bytes: float | None
    measured_bytes: float | None
    how: str
    formula: str = ""

    @property
    def error_fraction(self) -> float | None:
        if self.predicted_bytes is None or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes - 1


def kv_bytes_per_token(config: Mapping[str, Any], precision: Precision) -> int:
    """`config`: the contents of a Llama's config.json."""
    return 2 * int(config["num_hidden_layers"]) * _kv_heads(config) * _head_dim(config) * BYTES[precision]


def predict(config: Mapping[str, Any], spec: ModelSpec) -> Ledger:
    """What serving `spec` with the weights of a Llama's `config` (config.json as a dict) takes, without the runtime."""
    size = BYTES[spec.precision]
    elements = _weights(config)
    slots = 1 if spec.scheduler == "one" else spec.max_batch_size
    length = min(spec.max_request_tokens, config["max_position_embeddings"], spec.max_tokens_in_cache or 10**9)
    per_token = kv_bytes_per_token(config, spec.precision)
    tokens = slots * length if spec.kv_cache else 0
    step = min(PREFILL_TOKENS, length) if spec.kv_cache else slots * length
    hidden, mlp, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    # At its widest a layer holds x, its normed copy, gate and up, and their product.
    wide = 2 * hidden + 3 * mlp
    tables = 2 * config["max_position_embeddings"] * _head_dim(config) * size
    logits = slots * config["vocab_size"] * size
    return Ledger(
        (
            Predicted("weights", elements * size, f"{format_count(elements)} elements × {size} bytes"),
            Predicted("scales", 0, "nothing is quantized"),
            Predicted(
                "kv_cache",
                tokens * per_token,
                f"{format_count(tokens)} tokens × {format_count(per_token)} bytes: 2 × {config['num_hidden_layers']} "
                f"layers × {_kv_heads(config)} key heads (of {heads} heads) × {_head_dim(config)} × {size} bytes"
                if tokens
                else "no cache",
            ),
            Predicted(
                "activations", step * wide * size, f"{format_count(step)} tokens × {format_count(wide)} × {size} bytes"
            ),
            Predicted("workspace", tables + logits, f"rotations and logits of {slots}"),
        ),
        per_token,
    )


def compare(predicted: Ledger, measured: Summary) -> list[Row]:
    """Predicted against measured, row by row, the whole last. Weights and cache are what the engine allocated; the
    process says the rest: idle it holds weights and runtime, at its peak also the activations and as much of the cache
    as was ever written, since untouched pages of zeros cost nothing. `measured` is the first block after the model was
    loaded: before a later one the idle process holds what the earlier wrote."""
    base, peak = measured.memory_base_bytes, measured.memory_peak_bytes
    weights, cache = measured.engine_weight_bytes, measured.engine_cache_bytes
    rows = {row.name: row for row in predicted.rows}

    def row(name: str, measured_bytes: float | None, how: str) -> Row:
        return Row(name, rows[name].size_bytes, measured_bytes, how, rows[name].formula)

    runtime = base - weights if base is not None and weights is not None else None
    used = measured.cache_tokens_used_peak if rows["kv_cache"].size_bytes else 0
    written = None if used is None else used * predicted.kv_bytes_per_token
    grown = peak - base - written if peak is not None and base is not None and written is not None else None
    steps = rows["activations"].size_bytes + rows["workspace"].size_bytes
    missing = "not measured"
    whole = None
    if runtime is not None and written is not None:
        whole = rows["weights"].size_bytes + rows["scales"].size_bytes + runtime + written + steps
    return [
        row("weights", weights, missing if weights is None else "what the engine allocated"),
        row("scales", None, "nothing is quantized"),
        row("kv_cache", cache, missing if cache is None else "what the engine allocated"),
        Row(
            "activations and workspace",
            steps,
            None if grown is None else max(grown, 0.0),
            missing if grown is None else "growth of the process from idle to its peak, without the cache's share",
        ),
        Row("runtime", None, runtime, missing if runtime is None else "the idle process without its weights"),
        Row(
            "whole process",
            whole,
            peak,
            missing if peak is None else "peak of the process; predicted with the runtime as measured",
        ),
    ]


def _weights(config: Mapping[str, Any]) -> int:
    hidden, mlp, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * _head_dim(config)
    keys = _kv_heads(config) * _head_dim(config)
    layer = hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * mlp + 2 * hidden
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings", False) else 2)
    return int(embeddings + config["num_hidden_layers"] * layer + hidden)


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
