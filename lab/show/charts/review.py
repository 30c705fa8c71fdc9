"""How much of each limit is used: one mark a requirement, and the line where it is used up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lab.measure.review import Row
from lab.measure.words import format_fraction
from lab.show import theme
from lab.show.charts.figure import Chart, floats, log_axis, log_range, nothing_to_draw, upright

LEAST = 0.01
ROLES = {"met": "@blue", "not met": "@vermillion", "cannot be told": "@grey"}
SYMBOLS = {"met": "circle", "not met": "x", "cannot be told": "circle-open"}


def used(rows: Sequence[Row]) -> Chart:
    """Share of its limit that each requirement uses (x, log), the most at the top."""
    title = "How much of each limit is used"
    drawn = sorted((row for row in rows if row.used is not None), key=lambda row: row.used or 0.0)
    table: dict[str, list[Any]] = {
        "requirement": [row.name for row in rows],
        "asked": [row.asked for row in rows],
        "measured": [row.evidence for row in rows],
        "status": [row.status for row in rows],
        "share of the limit": [row.used for row in rows],
    }
    table = table if rows else {}
    height = 110 + 34 * max(2, len(drawn))
    if not drawn:
        return replace(nothing_to_draw(title, "nothing that is asked was measured", height=height), table=table)
    shares = [max(LEAST, row.used or 0.0) for row in drawn]
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": floats(shares),
        "y": [row.name for row in drawn],
        "text": [format_fraction(row.used) for row in drawn],
        "textposition": "top center",
        "textfont": {"size": 12, "color": "@ink"},
        "cliponaxis": False,
        "marker": {
            "color": [ROLES.get(row.status, "@grey") for row in drawn],
            "symbol": [SYMBOLS.get(row.status, "circle-open") for row in drawn],
            "size": 12,
            "line": {"width": 2, "color": [ROLES.get(row.status, "@grey") for row in drawn]},
        },
        "hovertemplate": "%{y}: %{text} of the limit<extra></extra>",
    }
    layout = theme.layout(
        height=height,
        margin={"l": 110, "r": 40, "t": 26, "b": 52},
        xaxis=log_axis("share of the limit, × (above 1: not met)", log_range([*shares, 1.0])),
        yaxis=theme.axis("", type="category", showline=False, ticks="", ticklabelstandoff=8),
        shapes=[upright(1)],
    )
    most = drawn[-1]
    alt = f"{most.name} uses most of its limit: {format_fraction(most.used)}, {most.status}."
    notes = tuple(f"{row.name} is not drawn: {row.evidence}" for row in rows if row.used is None)
    return Chart(title, {"data": [trace], "layout": layout}, alt, table, notes)
