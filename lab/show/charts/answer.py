"""The token timeline of single answers: reading the prompt until the first token, then a tick a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.measure.words import format_seconds, plural
from lab.show import theme
from lab.show.answer import Answer
from lab.show.charts.figure import Chart, append, floats, nothing_to_draw, pattern

MOST_ROWS = 4


def timeline(answers: Sequence[Answer]) -> Chart:
    """Seconds since the send (x), one row an answer, the newest on top (y). Tokens of one chunk share a tick."""
    title = "Each token as it came"
    shown = [answer for answer in answers if answer.chunks][:MOST_ROWS]
    if not shown:
        return nothing_to_draw(title, "no token has come yet", height=200)
    rows = [f"{n}  {answer.label}" for n, answer in enumerate(shown, start=1)]
    table: dict[str, list[Any]] = {"answer": [], "token": [], "after, ms": [], "gap, ms": [], "text": []}
    ticks: dict[str, list[Any]] = {"x": [], "y": [], "text": []}
    for row, answer in zip(rows, shown, strict=True):
        count, before_s = 0, 0.0
        for piece in answer.chunks:
            at_s = answer.after_s(piece)
            count += piece.tokens
            append(table, row, count, at_s * 1e3, (at_s - before_s) * 1e3, piece.text)
            append(ticks, at_s, row, f"token {count}: {piece.text.strip() or 'space'}")
            before_s = at_s
    first = [answer.after_s(answer.chunks[0]) for answer in shown]
    last = [answer.after_s(answer.chunks[-1]) for answer in shown]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "reading the prompt",
            "y": rows,
            "x": floats(first),
            "width": 0.42,
            "marker": {"color": "@vermillion", "pattern": pattern("/")},
            "hovertemplate": "%{x:.3f} s until the first token<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "a token",
            "x": floats(ticks["x"]),
            "y": ticks["y"],
            "text": ticks["text"],
            "marker": {"symbol": "line-ns", "size": 20, "line": {"color": "@blue", "width": 1.6}, "color": "@blue"},
            "hovertemplate": "%{text}<br>after %{x:.3f} s<extra></extra>",
        },
    ]
    layout = theme.layout(
        height=122 + 48 * len(rows),
        showlegend=True,
        legend=theme.legend(),
        barmode="overlay",
        margin={"l": 64, "r": 130, "t": 36, "b": 52},
        xaxis=theme.axis("seconds since the prompt was sent", range=[0, 1.01 * max(last)]),
        yaxis=theme.axis(
            "",
            type="category",
            range=[len(rows) - 0.5, -0.5],
            rangemode="normal",
            showgrid=False,
            ticks="",
            ticklabelstandoff=8,
        ),
        annotations=[
            {
                "x": end,
                "y": row,
                "text": f"{plural(answer.tokens, 'token')}, {format_seconds(end)}",
                "showarrow": False,
                "xanchor": "left",
                "xshift": 10,
                "font": {"size": 12, "color": "@ink"},
            }
            for row, answer, end in zip(rows, shown, last, strict=True)
        ],
    )
    newest = shown[0]
    alt = f"With {newest.label} the first of {plural(newest.tokens, 'token')} came after {format_seconds(first[0])}"
    alt += f", the last after {format_seconds(last[0])}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table)
