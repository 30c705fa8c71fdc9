"""Where a language model's memory goes: what holding tokens costs, and the ledger, predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.measure.position import Held
from lab.measure.reconcile import Row
from lab.measure.words import format_bytes, format_fraction
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, line, nothing_to_draw, pattern

MIB = 2**20
MOST_POINTS = 40
ZERO_POINTS = "zero-points"
"""The row that is drawn though nothing is in it: where they are is asked."""
OTHER_SUM = (
    "In all, libraries are counted in full, as the model would take them alone; peak memory (PSS), as above, divides "
    "each page among the processes that map it:"
)


def held(by_level: Mapping[str, Sequence[Held]], baseline: str, bytes_per_token: int | None) -> Chart:
    """The most tokens that were held since the model was loaded (x) against the memory of its process (y): a page of
    memory once written stays with the process. The thin line is what `bytes_per_token`, from the model's config, makes
    of it, from the least on."""
    title = "Memory against tokens held"
    table: dict[str, list[Any]] = {"level": [], "most tokens held": [], "memory, MiB": []}
    traces: list[dict[str, Any]] = []
    takeaways, drawn, notes = [], [0.0], []
    styles = iter(theme.STYLES)
    for level, readings in by_level.items():
        style = theme.BASELINE if level == baseline else next(styles)
        points = _thinned(readings)
        if not points:
            notes.append(f"{level} is not drawn: its engine told of no tokens that it holds")
            continue
        x, y = zip(*points, strict=True)
        for tokens, mib in points:
            append(table, level, tokens, mib)
        hover = f"{level}<br>%{{x:,.0f}} tokens: %{{y:,.1f}} MiB<extra></extra>"
        traces.append(line(level, x, y, style, mode="markers", hovertemplate=hover))
        first, last = format_bytes(y[0] * MIB), format_bytes(y[-1] * MIB)
        takeaways.append(f"with {level} {first} at {x[0]:,.0f} tokens, {last} at {x[-1]:,.0f}")
        drawn += x
        if bytes_per_token and x[-1] > x[0]:
            slope = bytes_per_token / MIB
            ends = [x[0], x[-1]]
            predicted = line(
                "predicted", ends, [y[0], y[0] + slope * (x[-1] - x[0])], theme.Style("@muted", "dot", "circle")
            )
            traces.append({**predicted, "mode": "lines", "hoverinfo": "skip"})
    if not traces:
        return nothing_to_draw(title, "the engine did not say how many tokens it held", height=380)
    most = max(drawn) or 1.0
    layout = theme.layout(
        height=380,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 52},
        xaxis=theme.axis("most tokens held since the model was loaded", range=[-0.02 * most, 1.05 * most]),
        yaxis=theme.axis("memory of the model's process, MiB", rangemode="normal"),
    )
    each = f"; a token is {format_bytes(bytes_per_token)} by the model's config" if bytes_per_token else ""
    return Chart(
        title, {"data": traces, "layout": layout}, f"Memory {', '.join(takeaways)}{each}.", table, tuple(notes)
    )


def ledger(rows: Sequence[Row], level: str, why_not: str = "", *, peak_bytes: float | None = None) -> Chart:
    """What each part takes (x, MiB), predicted from the model's config and measured in its process, with the error.
    `peak_bytes`: the peak memory (PSS) that is told beside it, which is another sum."""
    title = f"The ledger: predicted and measured, {level}"
    shown = [row for row in rows if row.predicted_bytes or row.measured_bytes or row.name == ZERO_POINTS]
    if not any(row.predicted_bytes or row.measured_bytes for row in shown):
        return nothing_to_draw(title, why_not or "nothing was measured", height=300)
    names = [row.name for row in shown]
    table: dict[str, list[Any]] = {
        "part": names,
        "predicted, MiB": [_mib(row.predicted_bytes) for row in shown],
        "measured, MiB": [_mib(row.measured_bytes) for row in shown],
        "error, %": [None if row.error_fraction is None else 100 * row.error_fraction for row in shown],
        "measured is": [row.how for row in shown],
        "predicted from": [row.formula for row in shown],
    }
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": floats([np.nan if value is None else value for value in table[f"{name}, MiB"]]),
            "marker": {"color": role, "pattern": pattern(hatch)},
            "hovertemplate": f"%{{y}}<br>{name}: %{{x:,.1f}} MiB<extra></extra>",
        }
        for name, role, hatch in (("predicted", "@grey", "/"), ("measured", "@blue", ""))
    ]
    layout = theme.layout(
        height=110 + 48 * len(shown),
        barmode="group",
        bargap=0.3,
        showlegend=True,
        legend=theme.legend(traceorder="normal"),
        margin={"l": 64, "r": 96, "t": 40, "b": 52},
        xaxis=theme.axis("memory, MiB"),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8),
        annotations=[_error(row, name) for row, name in zip(shown, names, strict=True)],
    )
    told = [
        f"{name} {format_bytes(row.measured_bytes)} measured, {_off(row)}"
        for name, row in zip(names, shown, strict=True)
        if row.error_fraction is not None
    ]
    alt = (
        f"{level}: {'; '.join(told)}."
        if told
        else f"{level}: {names[0]} {format_bytes(shown[0].predicted_bytes)} predicted."
    )
    notes = () if peak_bytes is None else (f"{OTHER_SUM} {format_bytes(peak_bytes)}.",)
    return Chart(title, {"data": traces, "layout": layout}, alt, table, notes)


def _thinned(readings: Sequence[Held]) -> list[tuple[float, float]]:
    """(tokens, median MiB) of at most MOST_POINTS stretches of tokens, ascending."""
    if not readings:
        return []
    tokens = np.array([h.tokens for h in readings], dtype=float)
    mib = np.array([h.memory_bytes for h in readings]) / MIB
    edges = np.unique(np.linspace(tokens.min(), tokens.max(), MOST_POINTS + 1))
    of = np.clip(np.digitize(tokens, edges) - 1, 0, MOST_POINTS - 1)
    return [(float(np.median(tokens[of == k])), float(np.median(mib[of == k]))) for k in np.unique(of)]


def _error(row: Row, name: str) -> dict[str, Any]:
    return {
        "x": _mib(max(row.predicted_bytes or 0.0, row.measured_bytes or 0.0)),
        "y": name,
        "text": _off(row),
        "showarrow": False,
        "xanchor": "left",
        "xshift": 6,
        "font": {"size": 12, "color": "@ink"},
    }


def _off(row: Row) -> str:
    """ "4.1 % too low", or which side is missing."""
    error = row.error_fraction
    if row.predicted_bytes == 0 and not row.measured_bytes:
        return row.formula
    if error is None:
        return (
            "not predicted"
            if row.predicted_bytes is None
            else "none seen"
            if row.measured_bytes == 0
            else "measured together, below"
            if row.how.startswith("measured together")
            else "not measured"
        )
    return f"{format_fraction(abs(error))} too {'high' if error > 0 else 'low'}" if error else "exact"


def _mib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB
