"""How the next token is chosen from the logits, for each request by its own wishes and its own random numbers.

A request draws one number a token from its own generator, so its text does not depend on who shares its batch.
Parameters and their defaults are those of vLLM's SamplingParams, which Triton's vLLM backend takes too.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

LIKELY = 1024
"""Tokens that are sorted for top_p before all are: nearly always enough, and 20× quicker than sorting a vocabulary."""


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the likeliest token always; top_k 0 and top_p 1 restrict nothing; seed None is a new one
    each time; `stop` strings end the text before themselves; `ignore_eos` writes on to max_tokens."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Sampling:
        """From what a client sent. ValueError in one line: field, value, what is allowed."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f'did you mean "{close[0]}"?' if close else f"allowed: {', '.join(known)}"
                raise ValueError(f"unknown sampling parameter {name!r}; {hint}")
        values = dict(given)
        if isinstance(values.get("stop"), str):
            values["stop"] = (values["stop"],)
        for name, value in values.items():
            fits, allowed = ALLOWED[name]
            if not fits(value):
                raise ValueError(f"{name} {value!r}: allowed is {allowed}")
        values["stop"] = tuple(values.get("stop") or ())
        return cls(**values)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda v: _integer(v) and v >= 1, "an integer from 1"),
    "temperature": (lambda v: _number(v) and 0 <= v <= 100, "0 (greedy) to 100"),
    "top_p": (lambda v: _number(v) and 0 < v <= 1, "above 0, to 1"),
    "top_k": (lambda v: _integer(v) and v >= 0, "an integer from 0 (off)"),
    "seed": (lambda v: v is None or (_integer(v) and v >= 0), "an integer from 0, or null"),
    "stop": (
        lambda v: v is None or (isinstance(v, list | tuple) and all(isinstance(s, str) and s for s in v)),
        "a text or a list of texts, none of them empty",
    ),
    "ignore_eos": (lambda v: isinstance(v, bool), "true or false"),
}


def pick(logits: Tensor, wishes: list[Sampling], generators: list[np.random.Generator]) -> list[int]:
    """logits [n, vocabulary] → one token a row."""
    # On a CPU numpy compares in vectors, which torch does not: a tenth of the time.
    quick = logits.is_cpu and logits.dtype == torch.float32
    greedy = (logits.numpy().argmax(-1) if quick else logits.argmax(-1)).tolist()
    return [
        greedy[row] if sampling.temperature == 0 else _draw(logits[row], sampling, generator.random())
        for row, (sampling, generator) in enumerate(zip(wishes, generators, strict=True))
    ]


def _draw(logits: Tensor, sampling: Sampling, u: float) -> int:
    """The token at which the running sum of probabilities passes `u` (in [0, 1)) of the whole.

    Restricted by top_k first and then, on what is left, by top_p: the fewest likeliest tokens that make up that much.
    """
    probabilities = (logits.double() / sampling.temperature).softmax(-1)
    tokens = None
    if sampling.top_k or sampling.top_p < 1:
        probabilities, tokens = _likeliest(probabilities, sampling)
    running = probabilities.cumsum(-1)
    # right=True passes over tokens of probability 0, also when u is 0; rounding must not lead past the last one.
    place = min(int(torch.searchsorted(running, u * running[-1], right=True)), len(running) - 1)
    return place if tokens is None else int(tokens[place])


def _likeliest(probabilities: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """(probabilities, tokens) that top_k and top_p leave, likeliest first."""
    whole = len(probabilities)
    for count in (sampling.top_k,) if sampling.top_k else (LIKELY, whole):
        kept, tokens = probabilities.topk(min(count, whole))
        wanted = sampling.top_p * (kept.sum() if sampling.top_k else 1.0)
        running = kept.cumsum(-1)
        if running[-1] >= wanted:
            break
    enough = min(int((running < wanted).sum()) + 1, len(kept))
    return kept[:enough], tokens[:enough]
