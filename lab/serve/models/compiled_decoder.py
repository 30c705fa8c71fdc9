"""The decoder for processors: the arithmetic of decoder.py in bfloat16, compiled (forward.py), by threads of its own.

Decoder, which says how a Llama works and needs no compiler, is the reference that this one is tested against, and it
serves the other precisions and devices. The two have the same methods.

Weights lie in memory once, packed in the order that the kernels read them; a tied embedding is read from the head's.
Every token goes through the same sums in the same order, whether it is read in a prompt or written, alone or in a
batch, with a cache or without: same tokens, same logits, to the last bit.
"""

from __future__ import annotations

import mmap
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .decoder import Span, reader
from .forward import (
    DOWN,
    EMBEDDING,
    GATE_UP,
    HEAD,
    OUT,
    QKV,
    Batch,
    Cache,
    Shape,
    Space,
    Weights,
    forward,
    phases,
)
from .llama_config import LlamaConfig
from .pieces import EPOCH, FIRST
from .vector_code import BLOCK, LANES, TILE, pack, padded


class PackedCache:
    """Keys and values of `slots` sequences of up to `tokens` tokens, laid out as forward.Cache says."""

    def __init__(self, config: LlamaConfig, slots: int, tokens: int, layers: int) -> None:
        self.slots, self.tokens = slots, tokens
        room, dim = padded(tokens), padded(config.head_dim)
        heads = _small_pages(layers * slots * 2 * config.kv_heads * room * dim)
        heads = heads.reshape(layers, slots, 2, config.kv_heads, room * dim)
        self.view = Cache(heads.reshape(-1), heads.reshape(-1).view(np.uint32), layers, slots, room)
        self._keys = heads[:, :, 0].reshape(layers, slots, config.kv_heads, room * dim)
        self._values = heads[:, :, 1].reshape(layers, slots, config.kv_heads, dim // BLOCK, room // 2, 2 * BLOCK)
        self._head_dim = config.head_dim

    @property
    def bytes(self) -> int:
        return int(self.view.elements.nbytes)

    def move(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` tokens of slot `source` into slot `target`."""
        keys, pairs = padded(tokens) * self._head_dim, padded(tokens) // 2
        self._keys[:, target, :, :keys] = self._keys[:, source, :, :keys]
        self._values[:, target, :, :, :pairs] = self._values[:, source, :, :, :pairs]


def _small_pages(elements: int) -> np.ndarray:
    """Zeros, uint16 (see KVCache why), on pages of 4 KB: only what holds tokens takes memory then. numpy would ask for
    pages of 2 MB, and the first token of each head would touch all of them."""
    memory = mmap.mmap(-1, 2 * elements)
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint16)


class CompiledDecoder:
    """Weights and arithmetic. One call at a time, from any thread; `threads` share the work of one."""

    dtype, device = torch.bfloat16, "cpu"

    def __init__(self, config: LlamaConfig, read: Callable[[str], Tensor], threads: int = 1) -> None:
        """`read` gives the tensor of a Hugging Face name, such as "model.norm.weight"."""
        if config.hidden % 2 or config.head_dim % 2:
            raise ValueError(f"hidden_size {config.hidden}, head_dim {config.head_dim}; allowed: even numbers")
        self.config = config
        self._shape = Shape(
            layers=config.layers,
            hidden=config.hidden,
            mlp=padded(config.mlp, LANES),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
        )
        self._weights = _weights(config, read)
        self._threads = threads
        self._helpers = [_Helper(i) for i in range(1, threads)]
        for helper in self._helpers:
            weakref.finalize(self, helper.jobs.put, None)
        self._space = self._make_space(rows=1, tokens=BLOCK)
        self.prefill([Span([0])], None)  # compiles, or loads what was compiled before

    @classmethod
    def load(cls, folder: Path, threads: int = 1) -> CompiledDecoder:
        """From a Hugging Face folder. ValueError when its architecture is another one or a tensor is missing."""
        return cls(LlamaConfig.read(folder), reader(folder), threads)

    def cache(self, slots: int, tokens: int) -> PackedCache:
        return PackedCache(self.config, slots, tokens, self.config.layers)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decode step reads: all of them but an embedding of its own."""
        at = self._weights.at
        used = int(self._weights.arena.nbytes + self._weights.norms.nbytes)
        return used if self.config.tied_embeddings else used - 4 * int(at[0, QKV] - at[-1, EMBEDDING])

    def prefill(self, spans: Sequence[Span], cache: PackedCache | None, every_token: bool = False) -> Tensor:
        """Reads all tokens of all spans; logits [spans, vocabulary] after the last token of each, or after
        `every_token` [tokens, vocabulary].

        With a cache a span may start anywhere after what its slot holds already, so that a long prompt can come in
        pieces; its keys and values are stored. Without one it must start at 0, and nothing is kept.
        """
        tokens = [token for span in spans for token in span.tokens]
        positions = [position for span in spans for position in range(span.start, span.end)]
        if cache is None:  # room for one layer at a time
            cache = PackedCache(self.config, len(spans), max(positions) + 1, layers=1)
            slots = [slot for slot, span in enumerate(spans) for _ in span.tokens]
        else:
            slots = [span.slot for span in spans for _ in span.tokens]
        last = range(len(tokens)) if every_token else np.cumsum([len(span.tokens) for span in spans]) - 1
        return self._forward(_batch(tokens, positions, slots, last, distinct=len(tokens) == len(spans)), cache)

    def decode(self, tokens: Sequence[int], positions: Sequence[int], cache: PackedCache) -> Tensor:
        """One token of each sequence; row r is slot r. Token r stands at positions[r], the number of tokens that its
        slot holds; its keys and values are stored there. Logits [n, vocabulary]."""
        rows = range(len(tokens))
        return self._forward(_batch(tokens, positions, rows, rows, distinct=True), cache)

    def _forward(self, batch: Batch, cache: PackedCache) -> Tensor:
        rows = len(batch.tokens)
        if rows > len(self._space.x) or cache.view.tokens > self._space.scores.shape[-1]:
            self._space = self._make_space(rows, cache.view.tokens)
        logits = np.empty((len(batch.last), padded(self.config.vocabulary)), np.float32)
        meeting = self._space.meeting
        meeting[FIRST:] = 0
        epoch = int(meeting[EPOCH])
        job = (epoch, *(tuple(part) for part in (self._shape, self._weights, batch, cache.view, self._space)), logits)
        for helper in self._helpers:
            helper.jobs.put(job)
        forward(0, *job)
        return torch.from_numpy(logits)[:, : self.config.vocabulary]

    def _make_space(self, rows: int, tokens: int) -> Space:
        shape, threads = self._shape, self._threads
        group = shape.heads // shape.kv_heads
        old = getattr(self, "_space", None)
        if old is not None:
            rows, tokens = max(rows, len(old.x)), max(tokens, old.scores.shape[-1])

        def floats(*sizes: int) -> np.ndarray:
            return np.zeros(sizes, np.float32)

        def pairs(*sizes: int) -> np.ndarray:
            return np.zeros((*sizes[:-1], sizes[-1] // 2), np.uint32)

        return Space(
            x=floats(rows, padded(shape.hidden)),
            qkv=floats(rows, padded((shape.heads + 2 * shape.kv_heads) * shape.head_dim)),
            answer=pairs(rows, shape.heads * shape.head_dim),
            inner=pairs(rows, shape.mlp),
            meeting=np.zeros(FIRST + 2 * phases(shape.layers), np.int64),
            normed=pairs(threads, rows, shape.hidden),
            queries=pairs(threads, group, shape.head_dim),
            scores=floats(threads, group, tokens),
            shares=pairs(threads, group, tokens),
            sums=floats(threads, TILE, BLOCK),
        )


class _Helper:
    """A thread that takes part in every step, until the job None."""

    def __init__(self, number: int) -> None:
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(number, self.jobs), name=f"decoder-{number}", daemon=True).start()

    @staticmethod
    def _run(number: int, jobs: queue.SimpleQueue[Any]) -> None:
        while True:
            job = jobs.get()
            if job is None:
                return
            forward(number, *job)
            del job


def _batch(tokens: Any, positions: Any, slots: Any, last: Any, distinct: bool) -> Batch:
    tokens, positions, slots, last = (np.array(values, np.int64) for values in (tokens, positions, slots, last))
    return Batch(tokens, positions, slots, last, distinct)


def _weights(config: LlamaConfig, read: Callable[[str], Tensor]) -> Weights:
    def matrix(name: str) -> np.ndarray:
        """As the bits of bfloat16."""
        bits: np.ndarray = read(f"{name}.weight").to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return bits

    def alternating(*names: str) -> np.ndarray:
        parts = []
        for name in names:
            rows = matrix(name)
            whole = np.zeros((padded(len(rows), LANES), rows.shape[1]), np.uint16)
            whole[: len(rows)] = rows
            parts.append(whole.reshape(-1, LANES, rows.shape[1]))
        return np.stack(parts, axis=1).reshape(-1, parts[0].shape[-1])

    def fused(*names: str) -> np.ndarray:
        return np.concatenate([matrix(name) for name in names])

    def wide(name: str) -> np.ndarray:
        rows = matrix(name)
        return np.pad(rows, ((0, 0), (0, padded(config.mlp, LANES) - rows.shape[1])))

    makers: list[tuple[tuple[int, int], Callable[[], np.ndarray]]] = []
    if not config.tied_embeddings:
        makers.append(((config.layers, EMBEDDING), lambda: matrix("model.embed_tokens")))
    for i in range(config.layers):
        layer = f"model.layers.{i}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        makers += [
            ((i, QKV), partial(fused, f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")),
            ((i, OUT), partial(matrix, f"{attention}.o_proj")),
            ((i, GATE_UP), partial(alternating, f"{mlp}.gate_proj", f"{mlp}.up_proj")),
            ((i, DOWN), partial(wide, f"{mlp}.down_proj")),
        ]
    head = "model.embed_tokens" if config.tied_embeddings else "lm_head"
    makers.append(((config.layers, HEAD), partial(matrix, head)))

    arena = np.empty(_arena_pairs(config), np.uint32)  # numpy asks for huge pages: half the time of a step
    at, end = np.zeros((config.layers + 1, 4), np.int64), 0
    for place, make in makers:
        packed = pack(make()).reshape(-1)
        at[place] = end
        arena[end : end + len(packed)] = packed
        end += len(packed)
    if config.tied_embeddings:
        at[config.layers, EMBEDDING] = at[config.layers, HEAD]
    names = [f"model.layers.{i}.{kind}_layernorm" for i in range(config.layers) for kind in ("input", "post_attention")]
    norms = np.stack([read(f"{name}.weight").float().numpy() for name in [*names, "model.norm"]])
    turns = config.rope_theta ** -(np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim))
    angles = np.outer(np.arange(config.context_tokens, dtype=np.float32), turns.astype(np.float32))
    return Weights(arena, at, norms, np.cos(angles), np.sin(angles))


def _arena_pairs(config: LlamaConfig) -> int:
    heads, mlp = config.heads * config.head_dim, padded(config.mlp, LANES)
    qkv = padded(heads + 2 * config.kv_heads * config.head_dim) * config.hidden
    layer = qkv + padded(config.hidden) * (heads + mlp) + 2 * mlp * config.hidden
    vocabulary = padded(config.vocabulary) * config.hidden * (1 if config.tied_embeddings else 2)
    return (config.layers * layer + vocabulary) // 2
