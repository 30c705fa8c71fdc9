"""Prompts of a set length for a language model: English prose from Python's own manual.

Each prompt begins with a word of its own and goes on as the manual does from there. With a tokenizer that word is one
token, so no two prompts share even their first token and a server's prefix cache has nothing to find; and lengths are
exact. Without one a token is taken for 0.75 words. What the server counts is in the records either way.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDS_PER_TOKEN = 0.75
TRIES = 10
"""How often a prompt is cut anew before its length is given up."""


@lru_cache(maxsize=8)
def prompts(lengths: tuple[int, ...], seed: int, tokenizer: Path | None) -> list[str]:
    """A prompt for each length in tokens; prompt i depends on lengths[i], seed, tokenizer and i alone. The first words
    all differ until there are no more (SmolLM2's tokenizer has 1,134 that are one token). InputError when the
    tokenizer cannot be read, or makes no prompt of that length."""
    words = re.findall(r"\S*\w\S*", " ".join(sentences()))  # no rules and lone signs
    reader = None if tokenizer is None else _read(tokenizer)
    places = _openings(words, reader)
    order = np.random.default_rng([seed, 5]).permutation(len(places))
    parts = np.random.default_rng([seed, 6]).random(len(lengths))
    starts = []
    for i, part in enumerate(parts):
        found = places[order[i % len(order)]]
        starts.append(found[int(part * len(found))])
    if reader is None:
        ones, counts = [1] * len(words), [max(round(WORDS_PER_TOKEN * length), 1) for length in lengths]
        return [_cut(words, ones, start, count) for start, count in zip(starts, counts, strict=True)]
    return _cut_exactly(words, starts, lengths, reader)


def _openings(words: list[str], tokenizer: Tokenizer | None) -> list[list[int]]:
    """The places of each word that a prompt may begin with."""
    places = defaultdict(list)
    for place, word in enumerate(words):
        if word.isalpha():
            places[word].append(place)
    if tokenizer is None:
        return list(places.values())
    tokens = _count(tokenizer, list(places), special=False)
    return [found for found, n in zip(places.values(), tokens, strict=True) if n == 1]


def _cut(words: list[str], sizes: list[int], start: int, size: int, smallest: int = 1) -> str:
    """Prose from place `start` on (it goes round) that amounts to `size`, where an opening is 1 and any other word what
    `sizes` says at its place: a word that would be too much is left out, and full stops fill what no word can."""
    taken, left, place = [words[start]], size - 1, start
    while left >= smallest:
        place = (place + 1) % len(words)
        if sizes[place] <= left:
            taken.append(words[place])
            left -= sizes[place]
    return " ".join(taken) + "." * left


def _cut_exactly(words: list[str], starts: Sequence[int], lengths: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Where a tokenizer splits at spaces first, the tokens of the words add up; where it does not, or adds some of its
    own, the prompt is cut anew by what it is off."""
    vocabulary = sorted(set(words))
    size_of = dict(zip(vocabulary, _count(tokenizer, [f" {word}" for word in vocabulary], special=False), strict=True))
    sizes, smallest = [size_of[word] for word in words], min(size_of.values())
    texts, aims, wrong = [""] * len(lengths), list(lengths), list(range(len(lengths)))
    for _ in range(TRIES):
        for i in wrong:
            texts[i] = _cut(words, sizes, starts[i], aims[i], smallest)
        found = dict(zip(wrong, _count(tokenizer, [texts[i] for i in wrong], special=True), strict=True))
        wrong = [i for i in wrong if found[i] != lengths[i]]
        for i in wrong:
            aims[i] += lengths[i] - found[i]
        if not wrong:
            return texts
    raise InputError(
        f"prompt_tokens {lengths[wrong[0]]}: this tokenizer makes {found[wrong[0]]} of the nearest prompt; "
        "allowed: a length that it can make"
    )


def _count(tokenizer: Tokenizer, texts: list[str], *, special: bool) -> list[int]:
    """Tokens of each text, with or without those that the tokenizer adds to a whole prompt."""
    return [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=special)]


def _read(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # 0.1 s that other models' workers save

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  # the library has no error of its own
        raise InputError(f"tokenizer {path}: cannot be read: {error}; allowed: a tokenizer.json") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@cache
def sentences() -> list[str]:
    """Sentences of Python's own manual, in order, code and tables left out."""
    from pydoc_data.topics import topics

    found = []
    for _, text in sorted(topics.items()):
        for paragraph in re.split(r"\n\s*\n", text):
            # Prose starts at the margin or with three spaces, as the manual is set; deeper is code.
            if re.match(r" {0,3}[A-Z]", paragraph) and "   " not in paragraph.strip() and "***" not in paragraph:
                flowing = " ".join(paragraph.split())
                found += [s for s in re.split(r"(?<=[.?!:])\s+(?=[A-Z])", flowing) if len(s.split()) >= 4]
    return found
