"""Several settings at once: how large each effect is, and the interaction plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.measure.words import format_metric, format_ratio, level_label, metric_label
from lab.show import theme
from lab.show.charts.figure import (
    Chart,
    End,
    append,
    end_labels,
    floats,
    line,
    log_axis,
    log_range,
    nothing_to_draw,
    room,
    upright,
)

Figure = Mapping[str, Any]
UNITS = {"_bytes": ("MiB", 1 / 2**20), "_rps": ("requests/s", 1.0), "_per_s": ("tokens/s", 1.0), "_s": ("ms", 1e3)}


def effects(figure: Figure | None) -> Chart:
    """Every main effect and interaction as a ratio (x, log) with its 95 % interval; 1 is nothing."""
    title = "What each setting does, and each pair"
    if figure is None:
        return nothing_to_draw(title, "not every combination is measured")
    name = metric_label(figure["metric"])
    rows = [c for c in figure["contrasts"] if len(c["factors"]) <= 2]
    labels = [_label(figure, c["factors"]) for c in rows]
    real = [c["finding"] in ("higher", "lower") for c in rows]
    low, middle, high = ([c[key] for c in rows] for key in ("ci_low", "ratio", "ci_high"))
    marks = {
        "type": "scatter",
        "mode": "markers",
        "y": labels,
        "x": floats(middle),
        "marker": {
            "color": ["@blue" if told else "@grey" for told in real],
            "symbol": [
                ("circle" if len(c["factors"]) == 1 else "diamond") + ("" if told else "-open")
                for c, told in zip(rows, real, strict=True)
            ],
            "size": 10,
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": floats([h - m for h, m in zip(high, middle, strict=True)]),
            "arrayminus": floats([m - x for m, x in zip(middle, low, strict=True)]),
            "color": "@muted",
            "thickness": 1.5,
            "width": 4,
        },
        "text": [c["finding"] for c in rows],
        "hovertemplate": "%{y}<br>%{x:.3~g}×, %{text}<extra></extra>",
    }
    layout = theme.layout(
        height=110 + 36 * max(2, len(rows)),
        margin={"l": 64, "r": 24, "t": 12, "b": 52},
        xaxis=log_axis(f"ratio of {name}, ×", log_range([*low, *high, 1.0], least_decades=0.3), most_decades=2.5),
        yaxis=theme.axis(
            "", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8, rangemode="normal"
        ),
        shapes=[upright(1)],
    )
    table: dict[str, list[Any]] = {"effect": [], "ratio": [], "low": [], "high": [], "finding": []}
    for label, c in zip(labels, figure["contrasts"], strict=False):
        append(table, label, c["ratio"], c["ci_low"], c["ci_high"], c["finding"])
    said = [f"{label} {format_ratio(c['ratio'])}" for label, c in zip(labels, rows, strict=True) if c["finding"] != ""]
    notes = ("a diamond is an interaction: by what the one ratio changes with the other setting",)
    return Chart(title, {"data": [marks], "layout": layout}, f"{name}: {'; '.join(said)}.", table, notes)


def interaction(figure: Figure | None, pair: tuple[str, str] | None = None) -> Chart:
    """The metric (y, log) at the two levels of one setting (x), one line a level of another: parallel lines are
    settings that do not care for each other. `pair` is the one with the largest interaction unless given."""
    if figure is None:
        return nothing_to_draw("Interaction", "not every combination is measured")
    a, b = pair or pairs(figure)[0]
    name = metric_label(figure["metric"])
    title = f"{name[0].upper()}{name[1:]} by {_short(a)} and {_short(b)}"
    unit, scale = next(found for ending, found in UNITS.items() if figure["metric"].endswith(ending))
    at = _means(figure, a, b) * scale
    x_labels, b_labels = ([level_label(path, level) for level in figure["factors"][path]] for path in (a, b))
    traces, ends = [], []
    table: dict[str, list[Any]] = {_short(b): [], _short(a): [], f"{name}, {unit}": []}
    for j, (label, style) in enumerate(zip(b_labels, (theme.BASELINE, theme.TREATMENT), strict=True)):
        y = [float(at[i, j]) for i in range(2)]
        hover = f"{label}, %{{text}}<br>%{{y:,.4~g}} {unit}<extra></extra>"
        traces.append(line(label, [0, 1], y, style, text=x_labels, hovertemplate=hover))
        ends.append(End(label, 1, y[1], style))
        for x_label, value in zip(x_labels, y, strict=True):
            append(table, label, x_label, value)
    height = 320
    margin = {"l": 64, "r": room(ends), "t": 20, "b": 52}
    y_range = log_range(at.ravel(), least_decades=0.5)
    ticks = [float(f"{tick:.3g}") for tick in np.geomspace(at.min(), at.max(), 4)]
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis("", tickvals=[0, 1], ticktext=x_labels, range=[-0.15, 1.15], rangemode="normal"),
        yaxis=log_axis(f"{name}, {unit}", y_range, tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks]),
        annotations=end_labels(ends, y_range, log=True, height=height - margin["t"] - margin["b"]),
    )
    said = [
        f"{b_label}: {format_metric(figure['metric'], at[0, j] / scale)} with {x_labels[0]}, "
        f"{format_metric(figure['metric'], at[1, j] / scale)} with {x_labels[1]}"
        for j, b_label in enumerate(b_labels)
    ]
    return Chart(title, {"data": traces, "layout": layout}, "; ".join(said) + ".", table)


def pairs(figure: Figure) -> list[tuple[str, str]]:
    """Every two settings, those that change each other most first."""
    twos = [c for c in figure["contrasts"] if len(c["factors"]) == 2]
    return [(a, b) for a, b in (c["factors"] for c in sorted(twos, key=lambda c: -abs(np.log(c["ratio"]))))]


def _means(figure: Figure, a: str, b: str) -> np.ndarray:
    """Geometric means [level of a, level of b] over the other settings."""
    names = list(figure["factors"])
    whole = np.log(np.array(figure["means"])).reshape((2,) * len(names))
    others = tuple(i for i, name in enumerate(names) if name not in (a, b))
    found: np.ndarray = np.exp(whole.mean(axis=others))
    return found if names.index(a) < names.index(b) else found.T


def _label(figure: Figure, factors: list[str]) -> str:
    if len(factors) == 1:
        low, high = (level_label(factors[0], level) for level in figure["factors"][factors[0]])
        return f"{high} against {low}"
    return " × ".join(_short(path) for path in factors)


def _short(path: str) -> str:
    return path.rsplit(".", 1)[-1].replace("_", " ")
