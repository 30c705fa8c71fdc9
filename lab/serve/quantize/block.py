"""One block of a Llama in float32, as the quantizers walk through it: before each matrix its inputs are looked at, and
the matrix that goes on is the rounded one. So every matrix is found for the inputs that it will see when served.

Written for many passages of equal length at once; models/decoder.py is the one that serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from lab.serve.models.llama_config import LlamaConfig

from .grid import Quantized

Q, K, V, OUT = (f"self_attn.{name}_proj" for name in "qkvo")
GATE, UP, DOWN = (f"mlp.{name}_proj" for name in ("gate", "up", "down"))
ATTENTION_NORM, MLP_NORM = "input_layernorm", "post_attention_layernorm"


@dataclass(frozen=True)
class Stage:
    """Matrices that see the same inputs, and what makes these: a norm, or a matrix by its rows."""

    matrices: tuple[str, ...]
    maker: str


ATTENTION, ANSWER, INNER, RESULT = STAGES = (
    Stage((Q, K, V), ATTENTION_NORM),
    Stage((OUT,), V),
    Stage((GATE, UP), MLP_NORM),
    Stage((DOWN,), UP),
)
MATRICES = tuple(name for stage in STAGES for name in stage.matrices)
NORMS = (ATTENTION_NORM, MLP_NORM)

Look = Callable[["Block", Stage, Tensor], Tensor | None]
"""Called with a stage and its inputs [passages, tokens, in] before its matrices are used; may `replace` them, and gives
the factors by which the inputs are divided then."""


class Block:
    def __init__(self, config: LlamaConfig, weights: dict[str, Tensor]) -> None:
        """`weights`: float32, by the names of MATRICES and NORMS."""
        self.config = config
        self.weights = dict(weights)
        self.quantized: dict[str, Quantized] = {}
        self.folded: set[str] = set()
        """Norms that have taken up factors."""

    def stacked(self, stage: Stage) -> Tensor:
        """The stage's matrices, one above the other [out, in]."""
        return torch.cat([self.weights[name] for name in stage.matrices])

    def tie(self, stage: Stage, values: Tensor) -> Tensor:
        """`values` of the stage's inputs [in] made equal where these come from one row of their maker: the heads that
        share a value head see the same values of it. Their mean."""
        if stage is not ANSWER:
            return values
        heads = values.view(self.config.kv_heads, -1, self.config.head_dim)
        return heads.mean(1, keepdim=True).expand_as(heads).flatten()

    def replace(self, stage: Stage, quantized: Quantized, factors: Tensor | None = None) -> Tensor | None:
        """Puts `quantized`, all matrices of the stage one above the other, in place of them. `factors` [in]: it is for
        inputs divided by these, which are folded into their maker. Gives `factors`."""
        sizes = [len(self.weights[name]) for name in stage.matrices]
        for name, part in zip(stage.matrices, quantized.rows(sizes), strict=True):
            self._put(name, part)
        if factors is not None and stage.maker in NORMS:
            self.weights[stage.maker] = self.weights[stage.maker] / factors
            self.folded.add(stage.maker)
        elif factors is not None:
            rows = factors.view(self.config.kv_heads, -1, self.config.head_dim)[:, 0] if stage is ANSWER else factors
            self._put(stage.maker, self.quantized[stage.maker].scaled_rows(1 / rows.flatten()))
        return factors

    def _put(self, name: str, quantized: Quantized) -> None:
        self.quantized[name] = quantized
        self.weights[name] = quantized.values

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """What is to be stored of the quantized block: its matrices, and the norms that have taken up factors."""
        found: dict[str, Tensor] = {}
        for name, quantized in self.quantized.items():
            found |= quantized.tensors(f"{prefix}.{name}")
        return found | {f"{prefix}.{name}.weight": self.weights[name] for name in self.folded}

    def restore(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Makes it the block that was stored."""
        for name in MATRICES:
            self.weights[name] = Quantized.of(tensors, f"{prefix}.{name}").values
        for name in NORMS:
            self.weights[name] = tensors[f"{prefix}.{name}.weight"].float()

    def __call__(self, x: Tensor, rotations: tuple[Tensor, Tensor], look: Look | None = None) -> Tensor:
        """x [passages, tokens, hidden] → the same after the block. `rotations`: those of all positions, see below."""
        config, weights = self.config, self.weights
        passages, tokens, _ = x.shape

        def seen(stage: Stage, inputs: Tensor) -> Tensor:
            factors = None if look is None else look(self, stage, inputs)
            return inputs if factors is None else inputs / factors

        def heads(name: str, inputs: Tensor) -> Tensor:
            return linear(inputs, weights[name]).view(passages, tokens, -1, config.head_dim).transpose(1, 2)

        inputs = seen(ATTENTION, norm(x, weights[ATTENTION_NORM], config.norm_eps))
        queries, keys = (rotate(heads(name, inputs), rotations) for name in (Q, K))
        found = scaled_dot_product_attention(queries, keys, heads(V, inputs), is_causal=True, enable_gqa=True)
        inputs = seen(ANSWER, found.transpose(1, 2).flatten(2))
        x = x + linear(inputs, weights[OUT])
        inputs = seen(INNER, norm(x, weights[MLP_NORM], config.norm_eps))
        inputs = seen(RESULT, silu(linear(inputs, weights[GATE])).mul_(linear(inputs, weights[UP])))
        return x + linear(inputs, weights[DOWN])


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotations(config: LlamaConfig, tokens: int) -> tuple[Tensor, Tensor]:
    """cos and sin [tokens, head_dim / 2] of the angles by which pairs (j, j + head_dim / 2) turn."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), config.rope_theta**-pairs)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
    """heads [..., tokens, head_dim], turned to their positions."""
    (first, second), (cos, sin) = heads.chunk(2, dim=-1), rotations
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
