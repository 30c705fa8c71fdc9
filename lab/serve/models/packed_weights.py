"""A model's weights as the compiled decoder reads them: every matrix packed (formats.py), all in one piece of memory.

The format follows from the folder: bfloat16 where a matrix is not quantized, INT4 in 4 bits and INT8 in 8 (both with
activations rounded to 8 bits), or INT8_WEIGHT where the precision asks for weights only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from .formats import (
    BF16,
    BLOCK,
    INT4,
    INT8,
    INT8_WEIGHT,
    LANES,
    Matrix,
    alternating,
    block_words,
    pack,
    packed_words,
    padded,
    stacked,
)
from .forward import DOWN, EMBEDDING, GATE_UP, HEAD, OUT, QKV, Weights
from .llama_config import LlamaConfig
from .quantized_reader import QuantizedMatrix, WeightsFolder

LINE_BYTES = 64


@dataclass(frozen=True)
class _Part:
    """A matrix of the decoder: of the folder's matrices `names`, put together by `join`."""

    place: tuple[int, int]  # in Weights.matrices
    names: tuple[str, ...]
    rows: int
    columns: int
    join: Callable[[list[Matrix]], Matrix] = stacked


def read(folder: WeightsFolder, config: LlamaConfig) -> Weights:
    """ValueError, with a name, when a tensor is missing or refused, or when matrices that are multiplied together
    differ in format."""
    parts = list(_parts(config))
    words = [packed_words(_format(folder, part), part.rows, part.columns, folder.group_size or 0) for part in parts]
    arena = _lines(sum(words))
    matrices, end = np.zeros((config.layers + 1, 4, 4), np.int64), 0
    for part in parts:
        packed = pack(part.join([_matrix(folder, name) for name in part.names]))
        matrices[part.place] = end, packed.format, packed.steps, packed.group
        arena[end : end + packed.words.size] = packed.words.reshape(-1)
        end += packed.words.size
    if config.tied_embeddings:
        matrices[config.layers, EMBEDDING] = matrices[config.layers, HEAD]
    if matrices[config.layers, EMBEDDING, 1] == INT4:
        raise ValueError(f"{folder.folder}: an embedding in 4 bits; allowed: 8")
    names = [f"model.layers.{i}.{kind}_layernorm" for i in range(config.layers) for kind in ("input", "post_attention")]
    norms = np.stack([folder.tensor(f"{name}.weight").float().numpy() for name in [*names, "model.norm"]])
    turns = config.rope_theta ** -(np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim))
    angles = np.outer(np.arange(config.context_tokens, dtype=np.float32), turns.astype(np.float32))
    return Weights(arena, matrices, norms, np.cos(angles), np.sin(angles))


def _lines(words: int) -> np.ndarray:
    """uint32 [words] from the beginning of a line of the processor's caches on, so that none of a tile's registers lies
    in two. numpy asks for huge pages: half the time of a step."""
    room = np.empty(words + LINE_BYTES // 4, np.uint32)
    first = -int(room.__array_interface__["data"][0]) % LINE_BYTES // 4
    return room[first : first + words]


def scale_bytes(weights: Weights) -> int:
    """Bytes of scales, and of the zero points in them, that a step reads: what blocks hold besides their steps."""
    head, embedding = weights.matrices[-1, HEAD].tolist(), weights.matrices[-1, EMBEDDING].tolist()
    placed = {
        start: (kind, steps, group) for start, kind, steps, group in weights.matrices.reshape(-1, 4).tolist() if steps
    }
    starts, total = sorted(placed), 0
    for start, end in zip(starts, [*starts[1:], weights.arena.size], strict=True):
        if start != embedding[0] or embedding == head:  # of an embedding of its own a step reads a row a token
            words = block_words(*placed[start])
            total += (end - start) // words * (words - placed[start][1] * BLOCK)
    return 4 * total


def _parts(config: LlamaConfig) -> Iterator[_Part]:
    layers, hidden, mlp = config.layers, config.hidden, padded(config.mlp, LANES)
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if not config.tied_embeddings:
        yield _Part((layers, EMBEDDING), ("model.embed_tokens",), config.vocabulary, hidden)
    for i in range(layers):
        attention, gated = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        projections = tuple(f"{attention}.{name}_proj" for name in "qkv")
        yield _Part((i, QKV), projections, heads + 2 * kv_heads, hidden)
        yield _Part((i, OUT), (f"{attention}.o_proj",), hidden, heads)
        yield _Part((i, GATE_UP), (f"{gated}.gate_proj", f"{gated}.up_proj"), 2 * mlp, hidden, alternating)
        yield _Part((i, DOWN), (f"{gated}.down_proj",), hidden, config.mlp)
    head = "model.embed_tokens" if config.tied_embeddings else "lm_head"
    yield _Part((layers, HEAD), (head,), config.vocabulary, hidden)


def _format(folder: WeightsFolder, part: _Part) -> int:
    folder.check_alike(part.names)
    return _format_of(folder, folder.bits(part.names[0]))


def _format_of(folder: WeightsFolder, bits: int | None) -> int:
    if bits is None:
        return BF16
    return INT4 if bits == 4 else INT8_WEIGHT if folder.precision == "int8_weight" else INT8


def _matrix(folder: WeightsFolder, name: str) -> Matrix:
    found = folder.matrix(name)
    if not isinstance(found, QuantizedMatrix):
        return Matrix(BF16, found.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16))
    zero = None if found.zero is None else found.zero.numpy()
    return Matrix(_format_of(folder, found.bits), found.levels().numpy(), found.scale.numpy(), zero)
