"""How weights are to be quantized, and whether they can be. Needs no torch, so that anybody may ask."""

from __future__ import annotations

from dataclasses import dataclass

from lab.serve.models.llama_config import LlamaConfig

FORMAT_VERSION = 1
"""Of the folder and of the way to it: a change that gives other weights is another version."""
DOCUMENT = "quantization.json"
CALIBRATED = ("gptq", "awq", "smoothquant")
"""Quantizers that look at texts."""
STEP = 8
"""Columns of 4-bit weights that a kernel takes at a time."""


@dataclass(frozen=True)
class Recipe:
    """`group_size` None: 8 bit. `source`: SHA-256 of the weights that it starts from. `seed` picks the texts."""

    precision: str
    quantizer: str
    group_size: int | None
    source: str
    seed: int = 0

    @property
    def is_calibrated(self) -> bool:
        return self.quantizer in CALIBRATED


class Unquantizable(ValueError):
    """One line: what of the weights cannot be quantized, by name."""


def check_widths(config: LlamaConfig, group_size: int | None) -> None:
    """Unquantizable when groups do not divide every row of 4-bit weights, or are not whole steps of a kernel."""
    if group_size is None:
        return
    widths = {
        "hidden_size": config.hidden,
        "num_attention_heads × head_dim": config.heads * config.head_dim,
        "intermediate_size": config.mlp,
    }
    fitting = [str(size) for size in range(STEP, 1025, STEP) if all(width % size == 0 for width in widths.values())]
    allowed = ", ".join(fitting) or "none fits this model; serve it in int8"
    if group_size % STEP:
        raise Unquantizable(f"group_size {group_size} is no multiple of {STEP}; allowed: {allowed}")
    for name, width in widths.items():
        if width % group_size:
            raise Unquantizable(f"group_size {group_size} does not divide {name} {width}; allowed: {allowed}")
