"""A Llama, written to be read: token ids in, logits out, keys and values kept in a preallocated cache.

One layer is attention and an MLP, each on a normed copy of the stream x and added back to it. What differs between
reading a prompt (prefill: many tokens of a sequence at once, limited by arithmetic) and writing an answer (decode:
one token of every sequence, limited by reading the weights) is only how attention looks back, so both share `_run`.

Sequences of unlike length need no padding: all tokens lie in one flat row, and each knows its position and its slot.
The cache belongs to the caller; without one a prefill over the whole prefix computes the same (kv_cache off).

This is the decoder to read, the truth for compiled_decoder.py and what serves on a GPU and in fp32; on a CPU in bf16
that one is three times as fast, see `load`.

Knows nothing of requests, sampling or text: see engine.py. Imports nothing else of lab, because it runs in Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from .adapter_folder import Adapter
from .adapters import Company, PlainAdapter
from .kv_cache import KVCache
from .layers import Parts
from .llama_config import LlamaConfig
from .quantized_reader import WeightsFolder
from .torchao_linear import TOLD

if TYPE_CHECKING:
    from .compiled_decoder import CompiledDecoder

QKV, OUT, GATE_UP, DOWN = range(4)  # adapter_folder.PARTS
ACTIVATIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""By precision; with quantized weights they are bfloat16 between the matrices."""
NAMES = {dtype: name for name, dtype in ACTIVATIONS.items()}

Attend = Callable[[int, Tensor], Tensor]
"""(layer, qkv [n, heads + 2 kv_heads, head_dim], rotated) → attention's answer [n, heads × head_dim]."""


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one sequence: `tokens` stand at positions start, start + 1, … of slot `slot`."""

    tokens: Sequence[int]
    slot: int = 0
    start: int = 0
    adapter: Any = None  # what the decoder's own `adapter` made; None: the base alone

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Decoder:
    """Weights and arithmetic, no state: calls for different caches may alternate."""

    def __init__(
        self,
        config: LlamaConfig,
        folder: WeightsFolder,
        dtype: torch.dtype,
        device: str = "cpu",
        kv_cache_precision: str | None = None,
        by_torchao: bool | None = None,
    ) -> None:
        """`kv_cache_precision`: None for `dtype`, or one of kv_cache.PRECISIONS. `by_torchao`: products of quantized
        matrices as torchao_linear.py has them; None: on a GPU."""
        if by_torchao is None:
            by_torchao = torch.device(device).type == "cuda"
        parts = Parts(folder, dtype, config.norm_eps, by_torchao)
        self.config, self.dtype, self.device = config, dtype, device
        self.precision = folder.precision or NAMES[dtype]
        self.embedding = parts.matrix("model.embed_tokens")  # [vocabulary, hidden]
        self.head = self.embedding if config.tied_embeddings else parts.matrix("lm_head")  # hidden → vocabulary
        self.norm = parts.norm("model.norm")
        self.layers = [parts.layer(f"model.layers.{i}") for i in range(config.layers)]
        self.cos, self.sin = _rotations(config, dtype, device)
        self._kv_cache_precision = kv_cache_precision
        self.notes = _notes(folder.precision, NAMES[dtype], device, by_torchao, parts.refused)
        """What to know of its speed, and of what it rounds."""
        if kv_cache_precision == "int8":
            kept = f"KV cache in int8 on {device} by torch: keys and values become {NAMES[dtype]} anew in every step"
            self.notes += (f"{kept}, which saves memory and costs time",)
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()  # what it took to make and try the matrices

    @classmethod
    def load(
        cls, folder: Path, dtype: torch.dtype, device: str = "cpu", kv_cache_precision: str | None = None
    ) -> Decoder:
        """From a Hugging Face folder, quantized or not (quantized_reader.py): then `dtype` is that of the activations.
        ValueError when its architecture is another one, or a tensor is missing or refused."""
        config = LlamaConfig.read(folder)
        return cls(config, WeightsFolder(folder, device), dtype, device, kv_cache_precision)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decode step reads: all but an embedding of its own, of which it reads a row a
        token."""
        parts = [self.head, self.norm, *(part for layer in self.layers for part in vars(layer).values())]
        return sum(part.bytes for part in parts)

    @property
    def scale_bytes(self) -> int:
        """Of weight_bytes, those of scales and zero points."""
        products = [self.head]
        for layer in self.layers:
            products += layer.qkv, layer.out, layer.gate_up, layer.down
        return sum(product.scale_bytes for product in products)

    def cache(self, slots: int, tokens: int) -> KVCache:
        return KVCache(self.config, slots, tokens, self.dtype, self.device, self._kv_cache_precision)

    def adapter(self, adapter: Adapter) -> PlainAdapter:
        """As `prefill` and `decode` take it."""
        return PlainAdapter(adapter, self.config, self.dtype, self.device)

    @torch.inference_mode()
    def prefill(self, spans: Sequence[Span], cache: KVCache | None, every_token: bool = False) -> Tensor:
        """Reads all tokens of all spans; logits [spans, vocabulary] after the last token of each, or after
        `every_token` [tokens, vocabulary].

        With a cache a span may start anywhere after what its slot holds already, so that a long prompt can come in
        pieces; its keys and values are stored. Without one it must start at 0, and nothing is kept.
        """
        config, group = self.config, self.config.heads // self.config.kv_heads
        tokens = self._indices([token for span in spans for token in span.tokens])
        positions = self._indices([position for span in spans for position in range(span.start, span.end)])
        ends = torch.tensor([len(span.tokens) for span in spans]).cumsum(0).tolist()
        pieces = [(span, slice(end - len(span.tokens), end)) for span, end in zip(spans, ends, strict=True)]
        masks = [self._causal_mask(span, group) for span in spans]

        def attend(layer: int, qkv: Tensor) -> Tensor:
            answer = torch.empty_like(qkv[:, : config.heads])
            for (span, rows), mask in zip(pieces, masks, strict=True):
                kv = qkv[rows, config.heads :].transpose(0, 1)  # [2 kv_heads, n, head_dim]
                if cache is None:
                    keys, values = kv[None].chunk(2, dim=1)  # [1, kv_heads, span.end, head_dim]
                else:
                    cache.store(layer, span.slot, span.start, kv)
                    keys, values = cache.read(layer, slice(span.slot, span.slot + 1), span.end)
                # The query heads that share a key head stand one after the other, as if they were more queries.
                queries = qkv[rows, : config.heads].view(-1, config.kv_heads, group, config.head_dim)
                queries = queries.permute(1, 2, 0, 3).reshape(1, config.kv_heads, -1, config.head_dim)
                found = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
                found = found.view(config.kv_heads, group, -1, config.head_dim).permute(2, 0, 1, 3)
                answer[rows] = found.flatten(1, 2)
            return answer.flatten(1)

        company = Company([span.adapter for span in spans for _ in span.tokens], self.device)
        x = self._run(tokens, positions, attend, company)
        return self._logits(x if every_token else x[self._indices(ends) - 1])

    @torch.inference_mode()
    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        adapters: Sequence[PlainAdapter | None] = (),
    ) -> Tensor:
        """One token of each sequence; row r is slot r. Token r stands at positions[r], the number of tokens that its
        slot holds; its keys and values are stored there. `adapters`: of each row, none where it is left out. Logits
        [n, vocabulary]."""
        config, rows = self.config, len(tokens)
        at = self._indices(positions)
        length = max(positions) + 1
        # Where this step's keys and values go, see KVCache.store_each: [rows × 2 kv_heads].
        places = (torch.arange(rows * 2 * config.kv_heads, device=self.device) * cache.tokens).view(rows, -1)
        places = (places + at[:, None]).flatten()
        later = torch.arange(length, device=self.device) > at[:, None]
        mask = torch.zeros(later.shape, dtype=self.dtype, device=self.device).masked_fill_(later, -torch.inf)
        mask = mask[:, None, None, :]  # 0 where the row may look

        # The query heads that share a key head are taken for several queries of that head: no copy of the keys.
        group = (rows, config.kv_heads, config.heads // config.kv_heads, config.head_dim)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            cache.store_each(layer, places, qkv[:, config.heads :].reshape(-1, config.head_dim))
            keys, values = cache.read(layer, slice(rows), length)
            queries = qkv[:, : config.heads].view(group)
            return scaled_dot_product_attention(queries, keys, values, attn_mask=mask).reshape(rows, -1)

        return self._logits(self._run(self._indices(tokens), at, attend, Company(adapters, self.device)))

    def _run(self, tokens: Tensor, positions: Tensor, attend: Attend, company: Company) -> Tensor:
        """tokens [n], positions [n] → x [n, hidden] after the last layer."""
        config = self.config
        x = self.embedding.rows(tokens)
        cos, sin = self.cos[positions], self.sin[positions]  # [n, 1, head_dim]
        for i, layer in enumerate(self.layers):
            normed = layer.attention_norm(x)
            qkv = company.change(i, QKV, normed, layer.qkv(normed)).view(len(tokens), -1, config.head_dim)
            _rotate(qkv[:, : config.heads + config.kv_heads], cos, sin)
            answer = attend(i, qkv)
            x = x + company.change(i, OUT, answer, layer.out(answer))
            normed = layer.mlp_norm(x)
            gate, up = company.change(i, GATE_UP, normed, layer.gate_up(normed)).chunk(2, dim=-1)
            inner = silu(gate) * up
            x = x + company.change(i, DOWN, inner, layer.down(inner))
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))

    def _indices(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _causal_mask(self, span: Span, group: int) -> Tensor:
        """[group × n, span.end]: True where the token may look, itself and everything before it."""
        seen = (
            torch.arange(span.end, device=self.device)
            <= torch.arange(span.start, span.end, device=self.device)[:, None]
        )
        return seen.repeat(group, 1)


def load(
    folder: Path, dtype: torch.dtype, device: str = "cpu", threads: int = 1, kv_cache_precision: str | None = None
) -> Decoder | CompiledDecoder:
    """The decoder that is fastest in this precision on this device; `threads` of its own on a CPU. `dtype` is that of
    the activations; whether the weights are quantized is the folder's matter.

    ValueError when the folder's architecture is another one, or a tensor is missing or refused."""
    missing = None
    if device == "cpu" and dtype == torch.bfloat16:
        torch.set_num_threads(1)  # it only picks tokens then, and would wait for a second thread that has no core
        try:
            from .compiled_decoder import CompiledDecoder  # brings a compiler, which a GPU needs none of
        except ImportError as error:
            missing = error
        else:
            return CompiledDecoder.load(folder, threads, kv_cache_precision)
    if device == "cpu":
        torch.set_num_threads(threads)
    decoder = Decoder.load(folder, dtype, device, kv_cache_precision)
    if missing is not None:
        decoder.notes += (f"without the compiled decoder, three times as slow: {missing}",)
    return decoder


def decoder_of(
    folder: Path, precision: str, device: str = "cpu", threads: int = 1, kv_cache_precision: str | None = None
) -> Decoder | CompiledDecoder:
    """The decoder that serves `folder` in this precision: what Triton's model loads, and whoever judges it must.

    ValueError as `load`, or when the weights are of another precision."""
    decoder = load(folder, ACTIVATIONS.get(precision, torch.bfloat16), device, threads, kv_cache_precision)
    if decoder.precision != precision:
        raise ValueError(f"{folder}: its weights are {decoder.precision}; allowed: {precision}")
    return decoder


def reader(folder: Path, device: str = "cpu") -> Callable[[str], Tensor]:
    """Gives a tensor of the folder's *.safetensors by name; ValueError as WeightsFolder.tensor."""
    return WeightsFolder(folder, device).tensor


def _notes(
    precision: str | None, dtype: str, device: str, by_torchao: bool, refused: dict[str, list[str]]
) -> tuple[str, ...]:
    """Of a decoder with quantized weights."""
    anew = f"by torch: weights become {dtype} anew for every product, which saves memory and costs time"
    if precision is None:
        return ()
    if not by_torchao:
        return (f"{precision} on {device} {anew}",)
    found = [f"{precision} on {device} by torchao: {TOLD[precision]}"]
    for reason, names in refused.items():
        which = names[0] if len(names) == 1 else f"{len(names)} matrices from {names[0]} on"
        found.append(f"{which} {anew}, as {reason}")
    return tuple(found)


def _rotations(config: LlamaConfig, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """cos and sin [context, 1, head_dim] of RoPE (https://arxiv.org/abs/2104.09864): pair j of a head turns by
    position × theta^(-2j / head_dim). A pair is (j, j + head_dim / 2); the sine carries the first half's minus."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.context_tokens, dtype=torch.float32), config.rope_theta**-pairs)[:, None]
    cos, sin = torch.cat([angles.cos()] * 2, dim=-1), torch.cat([-angles.sin(), angles.sin()], dim=-1)
    return cos.to(device, dtype), sin.to(device, dtype)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turns the query and key heads [n, heads, head_dim] in place to their positions."""
    swapped = heads.view(*heads.shape[:-1], 2, -1).flip(-2).flatten(-2)  # (second half, first half)
    torch.addcmul(heads * cos, swapped, sin, out=heads)
