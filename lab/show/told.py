"""How a verdict is laid out: its first sentence by itself, and what follows as a list where that is more than a few
sentences. For pages and reports alike."""

from __future__ import annotations

import re

FEW = 2
"""As many sentences are read as a paragraph."""


def sentences(text: str) -> list[str]:
    """The sentences of a verdict, each with its full stop; figures and units hold none that a capital follows."""
    return [one for one in re.split(r"(?<=[.!?]) (?=[A-Z0-9])", text.strip()) if one]


def laid_out(text: str) -> tuple[str, list[str]]:
    """(the headline, the paragraph after it or the entries of a list)."""
    first, *rest = sentences(text) or [""]
    return first, rest if len(rest) > FEW else [" ".join(rest)] if rest else []
