"""Who has to go so that a model fits: the policy of lab/serve/residency.py, pure.

Least recently used first, pinned ones never, and none more than needed. Sizes are of sets, not of models: two models
of one framework share its libraries' pages, and what the second adds is less than what it shows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

from lab.errors import LabError

MIB = 2**20

Reason = Literal["unknown", "too_large", "queue_full", "too_late", "failed", "pinned", "closed"]

Size = Callable[[Collection[str]], int]
"""Bytes that these models take together."""


class Refused(LabError):
    """A request, or a change, that is turned away; `reason` says why in one word."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def victims(wanted: str, kept: Sequence[str], pinned: Collection[str], size: Size, budget_bytes: int) -> list[str]:
    """Which of `kept` (loaded now, least recently used first) have to go so that `wanted` fits beside the rest.
    Refused ("too_large"), with the numbers, when it would not fit beside the pinned ones alone."""
    rest = [name for name in kept if name != wanted]
    out: list[str] = []
    for name in [name for name in rest if name not in pinned]:
        if size([*rest, wanted]) <= budget_bytes:
            break
        rest.remove(name)
        out.append(name)
    if size([*rest, wanted]) > budget_bytes:
        raise Refused("too_large", _too_large(wanted, rest, size, budget_bytes))
    for name in reversed(out):  # a large one that went last may have made the room of small ones that went before it
        if size([*rest, name, wanted]) <= budget_bytes:
            rest.append(name)
            out.remove(name)
    return out


def _too_large(wanted: str, pinned: Sequence[str], size: Size, budget_bytes: int) -> str:
    text = f"model {wanted} takes {size([wanted]) / MIB:.0f} MiB"
    if pinned:
        text += (
            f" and the pinned {', '.join(pinned)} {size(pinned) / MIB:.0f} MiB, "
            f"{size([*pinned, wanted]) / MIB:.0f} MiB together"
        )
    return f"{text}; the budget is {budget_bytes / MIB:.0f} MiB"
