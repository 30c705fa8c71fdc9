"""Which of several settings is worth having when more than one figure counts.

A setting is dominated when another is at least as good in every figure and better in one; what is left is the
frontier. A setting that failed, or that lacks a figure, is on no frontier and stays in the list, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Direction = Literal["higher", "lower"]
Point = Mapping[str, float | None]


def frontier(points: Sequence[Point], better: Mapping[str, Direction]) -> list[bool]:
    """For each point whether nothing dominates it. Equal points are on the frontier together."""
    rows = np.array(
        [
            [np.nan if point.get(name) is None else _signed(point[name], way) for name, way in better.items()]
            for point in points
        ],
        dtype=float,
    ).reshape(len(points), len(better))
    whole = ~np.isnan(rows).any(axis=1)
    found = []
    for row, known in zip(rows, whole, strict=True):
        others = rows[whole]
        dominated = ((others >= row).all(axis=1) & (others > row).any(axis=1)).any() if known else True
        found.append(bool(known and not dominated))
    return found


def importance(settings: Sequence[Mapping[str, Any]], values: Sequence[float | None]) -> dict[str, float]:
    """Of each knob the share of the variance that its levels explain by themselves (the correlation ratio, η²); empty
    without two measured points that differ. Shares of knobs that were not crossed overlap."""
    known = [(setting, value) for setting, value in zip(settings, values, strict=True) if value is not None]
    if len(known) < 2:
        return {}
    every = np.array([value for _, value in known], dtype=float)
    total = float(((every - every.mean()) ** 2).sum())
    if total == 0:
        return {}
    found = {}
    for knob in known[0][0]:
        groups: dict[str, list[float]] = {}
        for setting, value in known:
            groups.setdefault(repr(setting.get(knob)), []).append(float(value))
        between = sum(len(group) * (float(np.mean(group)) - every.mean()) ** 2 for group in groups.values())
        found[knob] = float(between) / total
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _signed(value: float | None, way: Direction) -> float:
    return float(value or 0.0) if way == "higher" else -float(value or 0.0)
