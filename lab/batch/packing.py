"""Which rows run together. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def packed(lengths: Sequence[int], budget: int, most: int) -> list[list[int]]:
    """The positions of `lengths` in batches of at most `most`, each as long as its longest: rows × that length stay
    within `budget`, except that a longer row stands alone. Long ones come first, so that a job ends with short ones
    and no worker waits for one that began late; equal lengths stay in their order."""
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        last = batches[-1] if batches else []
        if last and len(last) < most and lengths[last[0]] * (len(last) + 1) <= budget:
            last.append(position)
        else:
            batches.append([position])
    return batches
