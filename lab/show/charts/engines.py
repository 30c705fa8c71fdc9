"""Engines beside each other: how fast each writes, how soon it begins, and how far its words are the first one's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.measure.words import format_metric, metric_label
from lab.show import theme
from lab.show.charts.figure import Chart, floats, nothing_to_draw, pattern

Row = Mapping[str, Any]


def speed(rows: Sequence[Row]) -> Chart:
    """Tokens a second of each engine; answers a second where some engine does not count its tokens."""
    measured = [row for row in rows if row["figures"]["throughput_rps"]]
    counted = all(row["figures"]["output_tokens_per_s"] is not None for row in measured)
    metric, unit = ("output_tokens_per_s", "tokens/s") if counted else ("throughput_rps", "answers/s")
    notes = () if counted else ("Not every engine counts its tokens, so answers are drawn: all were asked for alike.",)
    return _bars("How fast each engine writes", rows, metric, unit, 1.0, notes)


def begins(rows: Sequence[Row]) -> Chart:
    """Median time to the first token of each engine."""
    return _bars("How soon its first token comes", rows, "ttft_p50_s", "TTFT p50, ms", 1e3, ())


def _bars(title: str, rows: Sequence[Row], metric: str, unit: str, scale: float, notes: tuple[str, ...]) -> Chart:
    figures = {row["name"]: row["figures"][metric] for row in rows}
    table: dict[str, list[Any]] = {"engine": list(figures)}
    table[unit] = [None if value is None else value * scale for value in figures.values()]
    missing = tuple(f"{row['name']} is not drawn: {_why(row, metric)}" for row in rows if figures[row["name"]] is None)
    known = {name: value for name, value in figures.items() if value is not None}
    height = 92 + 44 * max(2, len(known))
    if not known:
        return nothing_to_draw(title, missing[0].partition(": ")[2] if missing else "nothing measured", height=height)
    names = list(reversed(known))
    first = rows[0]["name"]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": floats([known[name] * scale for name in names]),
        "marker": {
            "color": ["@grey" if name == first else "@blue" for name in names],
            "pattern": {**pattern(""), "shape": ["/" if name == first else "" for name in names]},
        },
        "hovertemplate": f"%{{y}}<br>%{{x:,.4~g}} {unit}<extra></extra>",
    }
    layout = theme.layout(
        height=height,
        bargap=0.4,
        margin={"l": 90, "r": 84, "t": 12, "b": 52},
        xaxis=theme.axis(unit),
        yaxis=theme.axis("", type="category", showline=False, ticks="", ticklabelstandoff=8),
        annotations=[
            {
                "x": value * scale,
                "y": name,
                "text": format_metric(metric, value),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 6,
                "font": {"size": 12, "color": "@ink"},
            }
            for name, value in known.items()
        ],
    )
    alt = "; ".join(f"{name}: {metric_label(metric)} {format_metric(metric, value)}" for name, value in known.items())
    return Chart(title, {"data": [trace], "layout": layout}, f"{alt}.", table, (*notes, *missing))


def _why(row: Row, metric: str) -> str:
    if row["error"]:
        return str(row["error"])
    if not row["blocks"]:
        return "it was not measured"
    return "its server does not say" if row["figures"]["throughput_rps"] else f"no {metric_label(metric)} came of it"
