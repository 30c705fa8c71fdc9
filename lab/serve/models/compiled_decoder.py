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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .adapter_folder import Adapter
from .decoder import Span
from .formats import BF16, BLOCK, COLUMNS, INT8_WEIGHT, LANES, NAMES, padded
from .forward import EMBEDDING, QKV, Batch, Cache, Shape, Space, Weights, forward, head_words, phases
from .llama_config import LlamaConfig
from .low_rank import PackedAdapter
from .packed_weights import read as read_weights
from .packed_weights import scale_bytes
from .pieces import EPOCH, LINE, places
from .quantized_reader import WeightsFolder
from .tiles import NEEDED, TILE


class PackedCache:
    """Keys and values of `slots` sequences of up to `tokens` tokens, laid out as forward.Cache says."""

    def __init__(self, config: LlamaConfig, slots: int, tokens: int, layers: int, format: int = BF16) -> None:
        self.slots, self.tokens = slots, tokens
        room, dim, width = padded(tokens), padded(config.head_dim), COLUMNS[format]
        size = head_words(format, config.head_dim, room)
        heads = _small_pages(layers * slots * 2 * config.kv_heads * size)
        self.view = Cache(heads, format, layers, slots, room)
        heads = heads.reshape(layers, slots, 2, config.kv_heads, size)
        scales = 0 if format == BF16 else 1  # words a token
        self._keys, self._key_words = heads[:, :, 0], scales + padded(config.head_dim, width) // width
        values = heads[:, :, 1]
        self._scales = values[..., : scales * room]
        shape = (layers, slots, config.kv_heads, dim // BLOCK, room // width, BLOCK)
        self._values, self._width = values[..., scales * room :].reshape(shape), width

    @property
    def bytes(self) -> int:
        """Of keys, values and, in 8 bits, their scales."""
        return int(self.view.words.nbytes)

    def move(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` tokens of slot `source` into slot `target`."""
        room = padded(tokens)
        for part, words in ((self._keys, room * self._key_words), (self._scales, room)):
            part[:, target, :, :words] = part[:, source, :, :words]
        steps = room // self._width
        self._values[:, target, :, :, :steps] = self._values[:, source, :, :, :steps]


def _small_pages(words: int) -> np.ndarray:
    """Zeros, uint32 (see KVCache why), on pages of 4 KB: only what holds tokens takes memory then. numpy would ask for
    pages of 2 MB, and the first token of each head would touch all of them."""
    memory = mmap.mmap(-1, 4 * words)
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint32)


class CompiledDecoder:
    """Weights and arithmetic. One call at a time, from any thread; `threads` share the work of one."""

    dtype, device = torch.bfloat16, "cpu"

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        threads: int = 1,
        kv_cache_precision: str | None = None,
        precision: str = "bf16",
    ) -> None:
        """`kv_cache_precision` "bf16" (None as well) or "int8"; `precision` is that of the weights."""
        self.config, self.precision = config, precision
        self._shape = Shape(
            layers=config.layers,
            hidden=config.hidden,
            mlp=padded(config.mlp, LANES),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
        )
        self._weights = weights
        self._cache_format = {None: BF16, "bf16": BF16, "int8": INT8_WEIGHT}[kv_cache_precision]
        self._threads = threads
        self._helpers = [_Helper(i) for i in range(1, threads)]
        for helper in self._helpers:
            weakref.finalize(self, helper.jobs.put, None)
        self._space = self._make_space(rows=1, tokens=BLOCK)
        self.prefill([Span([0])], None)  # compiles, or loads what was compiled before

    @classmethod
    def load(cls, folder: Path, threads: int = 1, kv_cache_precision: str | None = None) -> CompiledDecoder:
        """From a Hugging Face folder, quantized or not (quantized_reader.py). ValueError when its architecture is
        another one, or a tensor is missing or refused."""
        config = LlamaConfig.read(folder)
        if config.hidden % 2 or config.head_dim % 2:
            raise ValueError(f"hidden_size {config.hidden}, head_dim {config.head_dim}; allowed: even numbers")
        weights = WeightsFolder(folder)
        packed = read_weights(weights, config)
        return cls(config, packed, threads, kv_cache_precision, weights.precision or "bf16")

    def cache(self, slots: int, tokens: int) -> PackedCache:
        return PackedCache(self.config, slots, tokens, self.config.layers, self._cache_format)

    def adapter(self, adapter: Adapter) -> PackedAdapter:
        """As `prefill` and `decode` take it."""
        return PackedAdapter(adapter, self.config)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decode step reads: all of them but an embedding of its own."""
        matrices = self._weights.matrices
        used = int(self._weights.arena.nbytes + self._weights.norms.nbytes)
        embedding = 0 if self.config.tied_embeddings else int(matrices[0, QKV, 0] - matrices[-1, EMBEDDING, 0])
        return used - 4 * embedding

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of its speed: formats that this processor has no fast products for."""
        used = {int(format) for _, format, steps, _ in self._weights.matrices.reshape(-1, 4) if steps}
        return tuple(
            f"{NAMES[format]} without {NEEDED[format][1]}, which this processor lacks: the products are right and slow"
            for format in sorted(used | {self._cache_format})
            if not NEEDED[format][0]
        )

    @property
    def scale_bytes(self) -> int:
        """Of weight_bytes, those of scales and the zero points in them."""
        return scale_bytes(self._weights)

    def prefill(self, spans: Sequence[Span], cache: PackedCache | None, every_token: bool = False) -> Tensor:
        """Reads all tokens of all spans; logits [spans, vocabulary] after the last token of each, or after
        `every_token` [tokens, vocabulary].

        With a cache a span may start anywhere after what its slot holds already, so that a long prompt can come in
        pieces; its keys and values are stored. Without one it must start at 0, and nothing is kept.
        """
        tokens = [token for span in spans for token in span.tokens]
        positions = [position for span in spans for position in range(span.start, span.end)]
        if cache is None:  # room for one layer at a time
            cache = PackedCache(self.config, len(spans), max(positions) + 1, 1, self._cache_format)
            slots = [slot for slot, span in enumerate(spans) for _ in span.tokens]
        else:
            slots = [span.slot for span in spans for _ in span.tokens]
        last = range(len(tokens)) if every_token else np.cumsum([len(span.tokens) for span in spans]) - 1
        adapters = [span.adapter for span in spans for _ in span.tokens]
        return self._forward(tokens, positions, slots, last, len(tokens) == len(spans), adapters, cache)

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        cache: PackedCache,
        adapters: Sequence[PackedAdapter | None] = (),
    ) -> Tensor:
        """One token of each sequence; row r is slot r. Token r stands at positions[r], the number of tokens that its
        slot holds; its keys and values are stored there. `adapters`: of each row, none where it is left out. Logits
        [n, vocabulary]."""
        rows = range(len(tokens))
        return self._forward(tokens, positions, rows, rows, True, adapters, cache)

    def _forward(
        self,
        tokens: Any,
        positions: Any,
        slots: Any,
        last: Any,
        distinct: bool,
        adapters: Sequence[PackedAdapter | None],
        cache: PackedCache,
    ) -> Tensor:
        batch, low = _batch(tokens, positions, slots, last, distinct, adapters)
        rows, space = len(batch.tokens), self._space
        if rows > len(space.x) or cache.view.tokens > space.scores.shape[-1] or low > space.low.shape[-1]:
            self._space = self._make_space(rows, cache.view.tokens, low)
        logits = np.empty((len(batch.last), padded(self.config.vocabulary)), np.float32)
        meeting = self._space.meeting
        meeting[LINE:] = 0
        epoch = int(meeting[EPOCH])
        job = (epoch, *(tuple(part) for part in (self._shape, self._weights, batch, cache.view, self._space)), logits)
        for helper in self._helpers:
            helper.jobs.put(job)
        forward(0, *job)
        return torch.from_numpy(logits)[:, : self.config.vocabulary]

    def _make_space(self, rows: int, tokens: int, low: int = 1) -> Space:
        shape, threads = self._shape, self._threads
        group = shape.heads // shape.kv_heads
        old = getattr(self, "_space", None)
        if old is not None:
            rows, tokens = max(rows, len(old.x)), max(tokens, old.scores.shape[-1])
            low = max(low, old.low.shape[-1])

        def floats(*sizes: int) -> np.ndarray:
            return np.zeros(sizes, np.float32)

        def pairs(*sizes: int) -> np.ndarray:
            return np.zeros((*sizes[:-1], padded(sizes[-1], 4) // 2), np.uint32)

        heads, longest = shape.heads * shape.head_dim, max(shape.hidden, shape.heads * shape.head_dim, shape.mlp)

        return Space(
            x=floats(rows, padded(shape.hidden)),
            qkv=floats(rows, padded((shape.heads + 2 * shape.kv_heads) * shape.head_dim)),
            answer=pairs(rows, heads),
            inner=pairs(rows, shape.mlp),
            meeting=np.zeros(places(phases(shape.layers), threads), np.int64),
            entered=pairs(threads, rows, longest + longest // 4),  # INT4: a sum for 8 columns or more
            low=floats(threads, rows, low),
            row=floats(threads, longest),
            queries=pairs(threads, group, shape.head_dim),
            scores=floats(threads, group, tokens),
            totals=floats(threads, group),
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


def _batch(
    tokens: Any, positions: Any, slots: Any, last: Any, distinct: bool, adapters: Sequence[PackedAdapter | None]
) -> tuple[Batch, int]:
    """And the numbers that adapters make of a row at most. Whoever calls keeps the adapters: their addresses go in."""
    tokens, positions, slots, last = (np.array(values, np.int64) for values in (tokens, positions, slots, last))
    addresses = np.zeros(len(tokens), np.int64)
    for row, adapter in enumerate(adapters):
        if adapter is not None:
            addresses[row] = adapter.address
    low = max((adapter.low for adapter in set(adapters) if adapter is not None), default=1)
    return Batch(tokens, positions, slots, last, distinct, addresses, bool(addresses.any())), low
