"""The cache of keys and values of a decoder in torch, in the precision of the activations, in bfloat16 or in 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from .int8 import in_levels
from .llama_config import LlamaConfig

PRECISIONS = {"bf16": torch.bfloat16, "int8": torch.int8}


class KVCache:
    """Keys and values of `slots` sequences of up to `tokens` tokens; all memory is taken here, none while serving.

    The tokens of one head lie one after the other, which is how attention reads them. In 8 bits each token of each
    head has a scale for its key and one for its value.

    Zeros and not just empty memory: a masked-out place still takes part in the arithmetic, with weight 0, and 0 × NaN
    is NaN. On Linux untouched pages of zeros cost no memory.
    """

    def __init__(
        self,
        config: LlamaConfig,
        slots: int,
        tokens: int,
        dtype: torch.dtype,
        device: str = "cpu",
        precision: str | None = None,
    ) -> None:
        """`dtype` of the activations; `precision` of what is kept: None for theirs, or one of PRECISIONS."""
        self.slots, self.tokens, self._dtype = slots, tokens, dtype
        # Key heads, then value heads, as the fused projection delivers them: one write stores both.
        shape = (config.layers, slots, 2 * config.kv_heads, tokens)
        kept = PRECISIONS[precision] if precision else dtype
        self.kv = torch.zeros((*shape, config.head_dim), dtype=kept, device=device)
        self.scales = torch.zeros((*shape, 1), device=device) if kept == torch.int8 else None
        # A layer as one long list of heads' tokens.
        self._lists = [kept.flatten(1, 3).unbind() for kept in self._kept()]

    @property
    def bytes(self) -> int:
        """Of keys, values and, in 8 bits, their scales."""
        return sum(kept.numel() * kept.element_size() for kept in self._kept())

    def store(self, layer: int, slot: int, start: int, values: Tensor) -> None:
        """values [2 kv_heads, n, head_dim]: n tokens of a slot, from position `start` on."""
        for kept, part in zip(self._kept(), self._parts(values), strict=True):
            kept[layer, slot, :, start : start + values.shape[1]] = part

    def store_each(self, layer: int, places: Tensor, values: Tensor) -> None:
        """values [n, head_dim] at `places` [n], each slot × 2 kv_heads × tokens + head × tokens + position."""
        for lists, part in zip(self._lists, self._parts(values), strict=True):
            lists[layer].index_copy_(0, places, part)

    def read(self, layer: int, slots: slice, tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, kv_heads, tokens, head_dim] of the first `tokens` tokens, as activations."""
        kv = self.kv[layer, slots, :, :tokens]
        if self.scales is not None:
            kv = kv * self.scales[layer, slots, :, :tokens]
        keys, values = kv.to(self._dtype).chunk(2, dim=1)
        return keys, values

    def move(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` tokens of slot `source` into slot `target`."""
        for kept in self._kept():
            kept[:, target, :, :tokens] = kept[:, source, :, :tokens]

    def _kept(self) -> list[Tensor]:
        return [self.kv] if self.scales is None else [self.kv, self.scales]

    def _parts(self, values: Tensor) -> tuple[Tensor, ...]:
        return (values.to(self.kv.dtype),) if self.scales is None else in_levels(values)
