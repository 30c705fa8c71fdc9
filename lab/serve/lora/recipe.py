"""How an adapter is trained. Needs no torch, so that anybody may ask."""

from __future__ import annotations

from dataclasses import dataclass

FORMAT_VERSION = 1
"""Of the folder and of the way to it: a change that gives other weights is another version."""
DOCUMENT = "training.json"


@dataclass(frozen=True)
class Recipe:
    """`lesson` and `digest` say what is taught, `source` is the SHA-256 of the base's weights. Only the last `layers`
    learn: what enters them is computed once. Adam (https://arxiv.org/abs/1412.6980) with a `rate` that falls to 0."""

    lesson: str
    digest: str
    source: str
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    layers: int = 8
    epochs: int = 6
    batch: int = 8
    rate: float = 5e-3
    seed: int = 0
