"""The axes of a plotly figure dict as scales from data to pixels, with their ticks: for drawings without a browser.

Knows linear, logarithmic and category axes, as lab.show.theme and the chart functions make them; no dates, no second
axis, no zoom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.show.charts.figure import values_of

FEW_DECADES = 3.5


@dataclass(frozen=True)
class Axis:
    """`low` and `high` are in the axis' own unit (log10 on a log axis, places on a category axis) and lie at the pixels
    `start` and `end`. `ticks`: (position in that unit, text)."""

    kind: str
    low: float
    high: float
    start: float
    end: float
    title: str
    ticks: tuple[tuple[float, str], ...]
    places: Mapping[str, int] = field(default_factory=dict)

    def at(self, value: Any) -> float | None:
        """The pixel of a data value; None for one that has none there (missing, or not positive on a log axis)."""
        own = self.own(value)
        return None if own is None else self.pixel(own)

    def own(self, value: Any) -> float | None:
        """A data value in the axis' own unit."""
        if self.kind == "category":
            return None if str(value) not in self.places else float(self.places[str(value)])
        number = float(value) if isinstance(value, int | float | np.number) else math.nan
        if not math.isfinite(number) or (self.kind == "log" and number <= 0):
            return None
        return math.log10(number) if self.kind == "log" else number

    def pixel(self, own: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (own - self.low) / span * (self.end - self.start)

    def inside(self, pixel: float) -> bool:
        return min(self.start, self.end) - 0.5 <= pixel <= max(self.start, self.end) + 0.5


def values(data: Any) -> list[Any]:
    """A trace's x or y as plain values, whatever it is written as."""
    if data is None:
        return []
    if isinstance(data, Mapping):
        return [None if math.isnan(value) else float(value) for value in values_of(dict(data))]
    return list(data)


def axis(declared: Mapping[str, Any], data: Sequence[Any], start: float, end: float) -> Axis:
    """The scale of a layout's axis; `data` are all values that are drawn along it."""
    title = str((declared.get("title") or {}).get("text", ""))
    if declared.get("type") == "category":
        return _category(declared, data, start, end, title)
    log = declared.get("type") == "log"
    numbers = [float(v) for v in data if isinstance(v, int | float | np.number) and math.isfinite(v)]
    if log:
        numbers = [math.log10(v) for v in numbers if v > 0]
    if declared.get("range"):
        low, high = (float(v) for v in declared["range"])
    else:
        low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
        if not log and declared.get("rangemode") == "tozero":
            low, high = min(low, 0.0), max(high, 0.0)
        air = 0.05 * (high - low) or 0.5
        low, high = (low if low == 0 else low - air), high + air
    shown = declared.get("tickvals")
    if shown is not None:
        texts = declared.get("ticktext") or [_text(v) for v in shown]
        ticks = [
            (math.log10(v) if log else float(v), str(t)) for v, t in zip(shown, texts, strict=False) if v > 0 or not log
        ]
    else:
        ticks = _log_ticks(low, high) if log else _linear_ticks(low, high)
    prefix = str(declared.get("tickprefix", ""))
    kept = tuple((at, f"{prefix}{text}") for at, text in ticks if min(low, high) - 1e-9 <= at <= max(low, high) + 1e-9)
    return Axis("log" if log else "linear", low, high, start, end, title, kept)


def _category(declared: Mapping[str, Any], data: Sequence[Any], start: float, end: float, title: str) -> Axis:
    names = list(dict.fromkeys([*map(str, declared.get("categoryarray") or ()), *(str(v) for v in data)]))
    low, high = -0.5, max(len(names), 1) - 0.5
    if declared.get("range"):
        low, high = (float(v) for v in declared["range"])
    elif declared.get("autorange") == "reversed":
        low, high = high, low
    ticks = tuple((float(place), name) for place, name in enumerate(names))
    return Axis("category", low, high, start, end, title, ticks, {name: place for place, name in enumerate(names)})


def _linear_ticks(low: float, high: float) -> list[tuple[float, str]]:
    span = abs(high - low) or 1.0
    step = 10 ** math.floor(math.log10(span / 5))
    step = next(step * m for m in (1, 2, 5, 10) if span / (step * m) <= 6)
    first = math.ceil(min(low, high) / step - 1e-9)
    count = math.floor(max(low, high) / step + 1e-9) - first + 1
    return [((first + n) * step, _text((first + n) * step)) for n in range(count)]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    steps = (1, 2, 5) if high - low <= FEW_DECADES else (1,)
    return [
        (decade + math.log10(step), _text(step * 10.0**decade))
        for decade in range(math.floor(low), math.ceil(high) + 1)
        for step in steps
    ]


def _text(value: float) -> str:
    value = float(f"{value:.10g}")
    return f"{value:,.0f}" if value == int(value) else np.format_float_positional(value, trim="-")
