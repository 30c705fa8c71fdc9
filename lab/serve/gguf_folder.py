"""A llama.cpp file (GGUF) written out as a standard Hugging Face folder: bf16 weights, configuration, tokenizer.

    config.json  generation_config.json  tokenizer.json  tokenizer_config.json  model.safetensors

Such a folder opens unchanged in transformers, in vLLM and here. Quantized tensors are expanded and rounded to bf16, so
the folder is as exact as the file was: 4-bit weights stay 4-bit weights in a wider coat. Two things of GGUF are undone:
query and key rows are interleaved for its way of rotating (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute), and
the tokenizer is a word list with the *name* of a rule for cutting text into words.

Reads Llama architecture with a byte-level BPE tokenizer of the "smollm" kind, nothing else. Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from lab.errors import FetchError

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3
"""gguf.TokenType.CONTROL: a token such as <|im_end|> that stands for no text."""


def convert(source: Path, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Writes `source` (a .gguf file) into the existing folder `folder`; `progress` gets (bytes done, bytes in all).

    FetchError when the file holds another architecture or tokenizer than this module reads.
    """
    reader = gguf.GGUFReader(source)

    def read(name: str, default: Any = None) -> Any:
        field = reader.fields.get(name)
        return default if field is None else field.contents()

    for name, wanted in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        if read(name) != wanted:
            raise FetchError(f"{source.name}: {name} is {read(name)!r}; this lab converts {wanted!r}")
    config = _config(read, tied="output.weight" not in {tensor.name for tensor in reader.tensors})
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    tokens = read("tokenizer.ggml.tokens")
    special = [i for i, kind in enumerate(read("tokenizer.ggml.token_type")) if kind == CONTROL]
    documents = {
        "config.json": config,
        "generation_config.json": ids,
        "tokenizer.json": _tokenizer(tokens, read("tokenizer.ggml.merges"), special),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[ids["bos_token_id"]],
            "eos_token": tokens[ids["eos_token_id"]],
            "pad_token": tokens[ids["pad_token_id"]],
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": read("tokenizer.chat_template"),
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    _write_safetensors(folder / "model.safetensors", _tensors(reader, heads), progress)


def _config(read: Callable[..., Any], tied: bool) -> dict[str, Any]:
    heads, hidden = read("llama.attention.head_count"), read("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": read("llama.block_count"),
        "hidden_size": hidden,
        "intermediate_size": read("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": read("llama.attention.head_count_kv", heads),
        "head_dim": read("llama.rope.dimension_count", hidden // heads),
        "vocab_size": read("llama.vocab_size"),
        "max_position_embeddings": read("llama.context_length"),
        "rope_theta": read("llama.rope.freq_base", 10000.0),
        # Stored as float32: 9.999999747378752e-06 is 1e-5.
        "rms_norm_eps": float(f"{read('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": read("tokenizer.ggml.bos_token_id"),
        "eos_token_id": read("tokenizer.ggml.eos_token_id"),
        "pad_token_id": read("tokenizer.ggml.padding_token_id"),
    }


def _tokenizer(tokens: list[str], merges: list[str], special: list[int]) -> dict[str, Any]:
    """tokenizer.json. The rule "smollm" cuts every digit off by itself, then words as GPT-2 does, on bytes."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _tensors(reader: gguf.GGUFReader, heads: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, values as float32) of every tensor, in the file's order."""
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        stem = tensor.name.removesuffix(".weight")
        if stem in TOP_NAMES:
            yield f"{TOP_NAMES[stem]}.weight", values
            continue
        _, layer, part = stem.split(".")
        if part in heads:
            values = _uninterleave(values, heads[part])
        yield f"model.layers.{layer}.{LAYER_NAMES[part]}.weight", values


def _uninterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (x0 y0 x1 y1 …), as llama.cpp rotates pairs, to (x0 x1 … y0 y1 …)."""
    out, inside = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, inside).swapaxes(1, 2).reshape(out, inside)


def _bf16(values: np.ndarray) -> bytes:
    """The upper halves of float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _write_safetensors(
    path: Path, tensors: Iterator[tuple[str, np.ndarray]], progress: Callable[[int, int], None]
) -> None:
    """A safetensors file: length of the header, header (JSON: name → type, shape, place), then the values."""
    stored = [(name, values.shape, _bf16(values)) for name, values in tensors]
    total, done = sum(len(data) for _, _, data in stored), 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, shape, data in stored:
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [done, done + len(data)]}
        done += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        done = 0
        for _, _, data in stored:
            file.write(data)
            done += len(data)
            progress(done, total)
