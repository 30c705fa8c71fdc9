"""Prose from Python's own manual: passages for calibration, and others, of other topics, that quality is judged on.

A passage is a fixed number of tokens of one topic's flowing text. Topics of the manual overlap (the chapter `compound`
holds what stands under `if`), so going by topic is not enough: a paragraph that shares a run of ten words with any
that is judged on is left out of calibration.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

JUDGED_ON = ("compound", "debugger", "formatstrings", "import")
"""Chapters that quality is judged on, and with them every topic that is a part of one."""
LEAST_PASSAGES = 128
PASSAGE_TOKENS = 128
SHORTEST_WORDS = 12
"""A paragraph of fewer words is a heading or a line of a table."""
SHARED_WORDS = 10


@dataclass(frozen=True)
class Passage:
    topic: str
    tokens: tuple[int, ...]


@cache
def paragraphs() -> dict[str, tuple[str, ...]]:
    """The flowing paragraphs of each topic, in order; each stands under one topic only."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    found = {}
    # Topics that are judged on come first, so that what they share with others is theirs.
    for topic in sorted(topics, key=lambda name: (name not in JUDGED_ON, name)):
        kept = []
        for paragraph in re.split(r"\n\s*\n", topics[topic]):
            text = " ".join(paragraph.split())
            # Prose starts at the margin or with three spaces, as the manual is set; deeper is code.
            is_prose = re.match(r" {0,3}[A-Z]", paragraph) and "   " not in paragraph.strip() and "***" not in paragraph
            if is_prose and len(text.split()) >= SHORTEST_WORDS and text not in seen:
                seen.add(text)
                kept.append(text)
        if kept:
            found[topic] = tuple(kept)
    return found


def runs(text: str) -> set[tuple[str, ...]]:
    """All runs of so many words that two texts do not share by chance."""
    words = text.split()
    return {tuple(words[i : i + SHARED_WORDS]) for i in range(len(words) - SHARED_WORDS + 1)}


@cache
def calibration_texts() -> dict[str, str]:
    """topic → its text, without the paragraphs that share wording with any that is judged on."""
    judged = {run for topic in JUDGED_ON for text in paragraphs().get(topic, ()) for run in runs(text)}
    found = {}
    for topic, texts in paragraphs().items():
        kept = [text for text in texts if topic not in JUDGED_ON and not runs(text) & judged]
        if kept:
            found[topic] = "\n\n".join(kept)
    return found


@cache
def calibration_digest() -> str:
    """SHA-256 of the calibration texts, which another Python may word differently."""
    return hashlib.sha256(repr(calibration_texts()).encode()).hexdigest()


@cache
def judged_digest() -> str:
    return hashlib.sha256(repr(judged_texts()).encode()).hexdigest()


def judged_texts() -> dict[str, str]:
    return {topic: "\n\n".join(texts) for topic, texts in paragraphs().items() if topic in JUDGED_ON}


def passages(texts: dict[str, str], tokenizer: Tokenizer, count: int, tokens: int, seed: int) -> list[Passage]:
    """Up to `count` passages of exactly `tokens` tokens, spread over the texts; fewer when these hold no more."""
    found = []
    for topic, text in sorted(texts.items()):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found += [
            Passage(topic, tuple(ids[start : start + tokens])) for start in range(0, len(ids) - tokens + 1, tokens)
        ]
    chosen = np.random.default_rng([seed, 7]).permutation(len(found))[:count]
    return [found[i] for i in sorted(chosen)]
