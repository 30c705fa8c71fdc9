"""What the engine keeps of a request, what it gives back of it at each step, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .sampling import Sampling
from .text_stream import TextStream


@dataclass(eq=False)
class Request:
    """One request's state. `tokens` is the prompt and the answer so far; of the first `cached` of them the cache
    holds keys and values."""

    id: str
    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    text: TextStream
    random: np.random.Generator
    number: int = 0  # in order of arrival
    cached: int = 0
    adapter: Any = None  # the decoder's own kind, until the request has ended

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens not computed yet: 1 means the next step writes a token, more means a prompt to be read."""
        return len(self.tokens) - self.cached


@dataclass(frozen=True)
class Output:
    """What a step gave one request. `token` is None when it only ended; `text` is empty while a character or a
    possible stop string is incomplete. Counts are those after this token, the end token included."""

    id: str
    token: int | None
    text: str
    finish_reason: Literal["stop", "length", "cancelled", "error"] | None
    prompt_tokens: int
    output_tokens: int
    error: str | None = None


@dataclass
class Counters:
    """Since the engine was made, except for what is named as now. None: there is no cache."""

    running: int = 0  # now
    waiting: int = 0  # now
    cache_tokens_used: int | None = None  # now
    cache_tokens_total: int | None = None
    steps: int = 0
    step_s: float | None = None  # the last one
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prefill_tokens: int = 0
    prefill_steps: int = 0  # those that read
    output_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    preemptions: int = 0
