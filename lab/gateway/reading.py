"""What an embedder reads of the texts that it is given. The model does not say; its tokenizer does, where it is here.

OpenAI's refuses a text that is too long; ours reads its beginning, and `tokens_cut` says of how many tokens the answers
know nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.serve.cut import Cut


class Reading:
    def __init__(self) -> None:
        self._cuts: dict[str, Cut | None] = {}

    def usage(self, config: Any, texts: Sequence[str]) -> dict[str, int] | None:
        """OpenAI's `usage` of these texts, and `tokens_cut`; None for a model whose tokenizer is not known here.
        `config` is the model's, from its server. Takes a second for megabytes: call it in a thread."""
        family = config.parameters["family"].string_value if "family" in config.parameters else ""
        if family not in self._cuts:
            self._cuts[family] = Cut.served(family)
        cut = self._cuts[family]
        if cut is None:
            return None
        tokens = cut.tokens(texts)
        beyond = sum(map(cut.beyond, tokens))
        read = sum(tokens) - beyond
        return {"prompt_tokens": read, "total_tokens": read, "tokens_cut": beyond}
