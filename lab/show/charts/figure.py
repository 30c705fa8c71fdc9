"""What a chart function returns, and the few pieces that every figure is built from.

A chart function is pure: numbers in, `Chart` out. The figure is a plain plotly dict (a `go.Figure` costs ten times as
much to build) that holds roles instead of colours (lab/show/theme.py).
"""

from __future__ import annotations

import base64
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.show import theme

MAX_POINTS = 600
"""Points a trace may have on screen; more cost time in the browser and show nothing more."""
MOST_LABEL = 28
"""Characters at the end of a line, which take room from the plot."""
NOTHING_HEIGHT = 130
"""Pixels of a chart that has nothing to draw."""
NOTHING_WIDTH = 52
"""Characters of a line of its reason."""


@dataclass(frozen=True)
class Chart:
    """`title` says what is compared; `alt` is the takeaway with a number and its unit, for who cannot see the figure;
    `table` holds the numbers that are drawn, column header (with unit) to values, None where not measured;
    `notes` say what is not drawn and why."""

    title: str
    figure: dict[str, Any]
    alt: str
    table: dict[str, list[Any]]
    notes: tuple[str, ...] = field(default=())


def floats(values: npt.ArrayLike) -> dict[str, str]:
    """Numbers as plotly's typed array, a quarter of the size of a JSON list. None and NaN become a gap."""
    array = np.asarray(values, dtype=np.float32)
    return {"dtype": "f4", "bdata": base64.b64encode(array.tobytes()).decode("ascii")}


def values_of(encoded: dict[str, str]) -> npt.NDArray[np.float32]:
    """The numbers of `floats`, back."""
    return np.frombuffer(base64.b64decode(encoded["bdata"]), dtype=np.float32)


def line(
    name: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    style: theme.Style,
    *,
    mode: str = "lines+markers",
    **more: Any,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "x": floats(x),
        "y": floats(y),
        "mode": mode,
        "line": {"color": style.role, "dash": style.dash, "width": 2},
        "marker": {"color": style.role, "symbol": style.marker, "size": 8, "line": {"color": style.role, "width": 1.5}},
        "connectgaps": False,
        **more,
    }


@dataclass(frozen=True)
class End:
    """Where a line ends and what to write there."""

    text: str
    x: float
    y: float
    style: theme.Style


def end_labels(ends: Sequence[End], y_range: tuple[float, float], *, log: bool, height: int) -> list[dict[str, Any]]:
    """Annotations that name each line at its end, without what all labels end in. Those that would overlap are pushed
    apart; `height` is the plot area's height in pixels and `y_range` what it spans (in the axis' own unit, log10 on a
    log axis)."""
    gap, texts = 17, told_apart([end.text for end in ends])
    low, high = y_range

    def pixel(y: float) -> float:
        return ((math.log10(y) if log else y) - low) / (high - low) * height if high > low else 0.0

    placed: list[dict[str, Any]] = []
    previous = -math.inf
    for end in sorted(ends, key=lambda e: e.y):
        at = pixel(end.y)
        target = max(at, previous + gap)
        previous = target
        placed.append(
            {
                "x": end.x,
                "y": math.log10(end.y) if log else end.y,
                "text": texts[end.text],
                "showarrow": False,
                "xanchor": "left",
                "xshift": 10,
                "yshift": target - at,
                "bgcolor": "@surface",  # no line strikes through it
                "borderpad": 0,
                "font": {"size": 12, "color": end.style.text},
            }
        )
    # Lines whose labels ran out at the top move down together.
    overflow = max(0.0, previous - height)
    for annotation in placed:
        annotation["yshift"] = round(annotation["yshift"] - overflow, 1)
    return placed


def room(ends: Sequence[End]) -> int:
    """Pixels to the right of the plot that the longest of these labels needs."""
    texts = told_apart([end.text for end in ends]).values()
    return 22 + round(6.6 * max(map(len, texts), default=0))


def told_apart(names: Sequence[str]) -> dict[str, str]:
    """Each name without what all of several end in: "trees" and "digits" of "trees, batching on" and "digits, batching
    on"; at most MOST_LABEL characters."""
    parts = {name: name.split(", ") for name in names}
    while len(parts) > 1 and all(len(of) > 1 for of in parts.values()) and len({of[-1] for of in parts.values()}) == 1:
        parts = {name: of[:-1] for name, of in parts.items()}
    short = {name: ", ".join(of) for name, of in parts.items()}
    return {name: text if len(text) <= MOST_LABEL else f"{text[: MOST_LABEL - 1]}…" for name, text in short.items()}


def log_range(values: npt.ArrayLike, *, least_decades: float = 1.0) -> tuple[float, float]:
    """The log10 range that shows `values` with a little air; (0, 1) when none is positive."""
    array = np.asarray(values, dtype=float)
    array = array[np.isfinite(array) & (array > 0)]
    if array.size == 0:
        return 0.0, 1.0
    low, high = float(np.log10(array.min())), float(np.log10(array.max()))
    air = max(0.08 * (high - low), (least_decades - (high - low)) / 2, 0.05)
    return low - air, high + air


def log_axis(title: str, span: tuple[float, float], *, most_decades: float = 3.5, **more: Any) -> dict[str, Any]:
    """A log axis over `span` (log10), labelled at 1, 2 and 5; beyond `most_decades` at powers of ten only, and in even
    steps where fewer than three of these lie in it."""
    low, high = span
    labels = [10.0**power * step for power in range(math.floor(low), math.ceil(high) + 1) for step in (1, 2, 5)]
    if "tickvals" not in more and sum(low <= math.log10(label) <= high for label in labels) < 3:
        even = _even(10.0**low, 10.0**high)
        more = {**more, "tickvals": even, "ticktext": [f"{value:,g}" for value in even]}
    return theme.axis(title, log=True, range=[low, high], dtick="D2" if high - low <= most_decades else 1, **more)


def reach(values: npt.ArrayLike) -> list[float]:
    """The range of a linear axis from 0 to just beyond the largest of `values`. Without one plotly makes room inside
    the plot for the labels at the ends of lines, and the axis runs on past the data."""
    array = np.asarray(values, dtype=float)
    largest = float(np.nanmax(array)) if np.isfinite(array).any() else 0.0
    return [0.0, 1.05 * largest or 1.0]


def _even(low: float, high: float) -> list[float]:
    """Three to six round numbers between these, evenly apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= (high - low) / 5)
    return [float(f"{n * step:.6g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def upright(x: float, role: str = "@muted", dash: str = "solid") -> dict[str, Any]:
    """An upright line through the whole plot: a limit, a moment, or where two sides are equal."""
    return {
        "type": "line",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "line": {"color": role, "width": 1, "dash": dash},
        "layer": "below",
    }


def level_line(y: float, text: str, *, log: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A horizontal limit (an SLO): its shape and its label."""
    at = math.log10(y) if log else y
    shape = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": "@ink", "width": 1, "dash": "longdash"},
        "layer": "below",
    }
    label = {
        "xref": "paper",
        "x": 0,
        "y": at,
        "text": text,
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": 6,
        "bgcolor": "@surface",
        "borderpad": 1,
        "font": {"size": 12, "color": "@muted"},
    }
    return shape, label


def append(table: dict[str, list[Any]], *values: Any) -> None:
    """Add a row to a chart's table."""
    for column, value in zip(table.values(), values, strict=False):
        column.append(value)


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def pattern(shape: str) -> dict[str, Any]:
    """Hatching over a bar's colour, so that bars differ without colour; "" is plain."""
    return {"shape": shape, "fillmode": "overlay", "fgcolor": "@surface", "fgopacity": 0.8, "size": 7, "solidity": 0.15}


def nothing_to_draw(title: str, why: str, *, height: int = 320) -> Chart:
    """A chart without data says so in its place, with the reason, and takes no more room than that needs."""
    height = min(height, NOTHING_HEIGHT)
    figure = {
        "data": [],
        "layout": theme.layout(
            height=height,
            margin={"l": 8, "r": 8, "t": 8, "b": 8},
            xaxis={"visible": False},
            yaxis={"visible": False},
            annotations=[
                {
                    "xref": "paper",
                    "yref": "paper",
                    "x": 0.5,
                    "y": 0.5,
                    "text": "<br>".join(textwrap.wrap(why, NOTHING_WIDTH)),
                    "showarrow": False,
                    "font": {"size": 13, "color": "@muted"},
                }
            ],
        ),
    }
    return Chart(title, figure, f"{title}: nothing to draw, {why}", {}, (why,))
