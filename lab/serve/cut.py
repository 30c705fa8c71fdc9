"""How much of a text a model does not read.

The embedder reads the first 256 tokens of a text, as its authors set it, and drops the rest without a word. Here the
rest is counted, so that whoever asks can be told. A language model refuses what is too long; nothing of it is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from lab.serve import weights
from lab.spec import ModelSpec

EMBEDDER_TOKENS = 256
"""Of a text, the two that mark its beginning and its end included: MAX_TOKENS of lab/serve/models/embedder.py."""
PIECE = 65_536
"""Characters that are tokenized together: a long text is counted in pieces, which end between two words."""
SPACE = re.compile(r"\s")


class Cut:
    """For a model that has been prepared; None of `of` for one that drops nothing."""

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self._tokenizer, self.limit = tokenizer, limit
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._marks = len(self._tokenizer.encode("").ids)

    @classmethod
    def of(cls, spec: ModelSpec) -> Cut | None:
        place = weights.folder(spec)
        if spec.family != "embedder" or place is None:
            return None
        return cls(Tokenizer.from_file(str(place / "tokenizer.json")), EMBEDDER_TOKENS)

    @classmethod
    def served(cls, family: str | None) -> Cut | None:
        """Of a model that is served as this family; None also for one whose tokenizer is not here."""
        spec = ModelSpec(name="embedder") if family == "embedder" else None
        return cls.of(spec) if spec is not None and weights.is_ready(spec) else None

    def tokens(self, texts: Sequence[str]) -> list[int]:
        """Of each text whole, marks included."""
        pieces = [list(_pieces(text)) for text in texts]
        counted = iter(self._tokenizer.encode_batch([piece for own in pieces for piece in own]))
        return [self._marks + sum(len(next(counted).ids) - self._marks for _ in own) for own in pieces]

    def beyond(self, tokens: int) -> int:
        """Of a text of so many tokens, those that the model does not read."""
        return max(0, tokens - self.limit)


def told(config: Mapping[str, Any], texts: Sequence[str]) -> str:
    """What a model of this configuration (as its server has it) does not read of these texts, in a sentence; "" where
    it reads all, or is none of the lab's whose tokenizer is here."""
    cut = Cut.served(config.get("parameters", {}).get("family", {}).get("string_value"))
    if cut is None:
        return ""
    beyond = [cut.beyond(tokens) for tokens in cut.tokens(texts)]
    if not any(beyond):
        return ""
    which = "the text" if len(texts) == 1 else f"{sum(count > 0 for count in beyond)} of {len(texts)} texts"
    return f"The model reads {cut.limit} tokens of a text: of {which} the last {sum(beyond):,} are in no answer."


def _pieces(text: str) -> Iterator[str]:
    """Words stay whole, so that the tokens of the pieces are those of the text."""
    first = 0
    while len(text) - first > PIECE:
        space = SPACE.search(text, first + PIECE)
        if space is None:
            break
        yield text[first : space.start()]
        first = space.start()
    yield text[first:]
