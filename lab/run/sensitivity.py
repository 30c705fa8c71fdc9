"""Which blocks of a language model a format hurts: each alone quantized, all others as they were.

Part of the evaluating process (evaluation.py). Float32 and weights only, by the blocks that the quantizers walk through
(lab/serve/quantize/block.py): what a kernel rounds while serving is not in it, nor are embedding and head. Everything
before the block is the same for all, so its texts start from what the unquantized blocks made of them.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import embedding

from lab import home
from lab.serve.models.decoder import reader
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.quantize import prose
from lab.serve.quantize.block import MATRICES, NORMS, Block, norm, rotations

PASSAGES = 8
"""Of prose.PASSAGE_TOKENS each: differences from the baseline's own logits need few."""


@torch.inference_mode()
def of_blocks(source: Path, quantized: Path, progress: home.Progress) -> list[dict[str, float]]:
    """[{"block", "perplexity_loss", "kl_nats"}]: `source` holds the unquantized weights."""
    config, read = LlamaConfig.read(source), reader(source)
    blocks = [
        Block(config, {name: read(f"model.layers.{i}.{name}.weight").float() for name in (*NORMS, *MATRICES)})
        for i in range(config.layers)
    ]
    head = read("model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight").float()
    last = read("model.norm.weight").float()
    tokens = torch.tensor(_passages(source, config))
    turns = rotations(config, tokens.shape[1])

    def log_probabilities(x: Tensor) -> Tensor:
        return (norm(x[:, :-1], last, config.norm_eps) @ head.T).log_softmax(-1)

    before = [embedding(tokens, read("model.embed_tokens.weight").float())]
    for block in blocks:
        before.append(block(before[-1], turns))
    base = log_probabilities(before.pop())
    following = tokens[:, 1:, None]
    base_nats = -base.gather(-1, following).mean()
    found = []
    for i, x in enumerate(before):
        alone = Block(config, blocks[i].weights)
        alone.restore(load_file(quantized / f"block-{i:03d}.safetensors"), f"model.layers.{i}")
        x = alone(x, turns)
        for block in blocks[i + 1 :]:
            x = block(x, turns)
        ours = log_probabilities(x)
        found.append(
            {
                "block": i,
                "perplexity_loss": math.expm1(float(-ours.gather(-1, following).mean() - base_nats)),
                "kl_nats": float((base.exp() * (base - ours)).sum(-1).mean()),
            }
        )
        progress("quantizing one block at a time", i + 1, config.layers)
    return found


def _passages(source: Path, config: LlamaConfig) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    length = min(prose.PASSAGE_TOKENS, config.context_tokens)
    return [p.tokens for p in prose.passages(prose.judged_texts(), tokenizer, PASSAGES, length, seed=0)]
