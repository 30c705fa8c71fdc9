"""The levels of the judged factor against each other: one figure by load, and every ratio with its interval.

Both read the document of a run laid out as a Grid (levels of the judged factor × loads).
"""

from __future__ import annotations

from typing import Any

from lab.measure.words import format_metric, format_range, format_ratio, metric_label
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, log_axis, log_range, nothing_to_draw
from lab.show.grid import Grid, middle, why_missing

UNITS = {"_tokens_per_s": ("tokens/s", 1.0), "_rps": ("req/s", 1.0), "_bytes": ("MiB", 2.0**-20), "_s": ("ms", 1e3)}
"""How an axis counts a summary's field, by the end of its name; the first that fits."""


def by_load(grid: Grid, document: dict[str, Any], metric: str, path: str, load: str) -> Chart:
    """One row a level of the factor at `path` (all others as at `load`), one mark a level of the judged factor, and
    the ratio of the last to the baseline in words. Bars are the ratio's 95 % interval, laid on the baseline's figure;
    with repeats a mark is the middle one."""
    unit, scale = unit_of(metric)
    title = f"{metric_label(metric).capitalize()}, {unit}"
    rows = [(words, at) for words, at in grid.along(path, load) if grid.at(grid.baseline, at)]
    table: dict[str, list[Any]] = {"load": [], "level": [], f"{metric_label(metric)}, {unit}": []}
    table |= {"ratio": [], "low": [], "high": []}
    shown = (grid.baseline, *grid.others()[-3:])
    traces: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    takeaways: list[str] = []
    notes: list[str] = []
    styles = iter(theme.STYLES)
    for level in shown:
        style = theme.BASELINE if level == grid.baseline else next(styles)
        marks: list[tuple[str, float, float, float]] = []
        for words, at in rows:
            value = middle(grid.at(level, at), metric)
            effect = grid.effect(document, level, at, metric) or {}
            append(table, words, level, _scaled(value, scale), *(effect.get(k) for k in ("ratio", "ci_low", "ci_high")))
            if value is None:
                reason = why_missing(grid.at(level, at), metric) or "not measured"
                notes.append(f"{level} at {words} is not drawn: {reason}")
                continue
            base, low, high = (effect.get(k) for k in ("a", "ci_low", "ci_high"))
            known = None not in (base, low, high)
            marks.append(
                (
                    words,
                    value,
                    max(0.0, base * high - value) if known else 0,
                    max(0.0, value - base * low) if known else 0,
                )
            )
            if level == shown[-1]:
                annotations.append(_ratio_label(words, effect))
                takeaways.append(_takeaway(words, level, value, effect, metric, grid))
        if marks:
            traces.append(_marks(level, marks, scale, style, unit))
    height = 130 + 52 * max(2, len(rows))
    if not traces:
        return nothing_to_draw(title, notes[0] if notes else "no level has this figure yet", height=height)
    layout = theme.layout(
        height=height,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 90, "r": 128, "t": 40, "b": 52},
        xaxis=theme.axis(f"{metric_label(metric)}, {unit}"),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks=""),
        annotations=annotations,
        shapes=_connections(traces, rows),
    )
    return Chart(title, {"data": traces, "layout": layout}, "; ".join(takeaways) + ".", table, tuple(notes))


def effects(document: dict[str, Any], grid: Grid, metric: str, title: str) -> Chart:
    """Every level's ratio to the baseline (x, log) on one metric with its 95 % interval, one row a level and load."""
    rows = []
    table: dict[str, list[Any]] = {"level": [], "load": [], "ratio": [], "low": [], "high": [], "verdict": []}
    notes = []
    for load in grid.loads:
        for level in grid.others():
            effect = grid.effect(document, level, load, metric)
            if effect is None:
                continue
            append(table, level, load, *(effect[k] for k in ("ratio", "ci_low", "ci_high", "verdict")))
            if effect["ratio"] is None:
                notes.append(f"{level} at {load}: {effect['reason'] or effect['verdict']}")
            else:
                rows.append(
                    (f"{load}, {level}", effect["ratio"], effect["ci_low"], effect["ci_high"], effect["verdict"])
                )
    height = 90 + 26 * max(3, len(rows))
    if not rows:
        return nothing_to_draw(title, "no comparison was possible", height=height)
    rows.reverse()
    ratios = [row[1] for row in rows]
    known = [v for row in rows for v in row[1:4] if v is not None and v > 0]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": floats(ratios),
        "y": [row[0] for row in rows],
        "marker": {
            "color": ["@grey" if row[4] in ("no detectable difference", "not comparable") else "@blue" for row in rows],
            "symbol": ["circle-open" if row[4].startswith("no") else "circle" for row in rows],
            "size": 9,
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": floats([(row[3] or row[1]) - row[1] for row in rows]),
            "arrayminus": floats([row[1] - (row[2] or row[1]) for row in rows]),
            "color": "@muted",
            "thickness": 1.5,
            "width": 4,
        },
        "text": [row[4] for row in rows],
        "hovertemplate": "%{y}<br>%{x:.3~g}× the baseline, %{text}<extra></extra>",
    }
    layout = theme.layout(
        height=height,
        margin={"l": 170, "r": 24, "t": 12, "b": 52},
        xaxis=log_axis(
            f"ratio to {grid.baseline}, × (bars: 95 % interval)", log_range([*known, 1.0]), most_decades=2.5
        ),
        yaxis=theme.axis("", type="category", showline=False, ticks=""),
        shapes=[
            {
                "type": "line",
                "yref": "paper",
                "x0": 1,
                "x1": 1,
                "y0": 0,
                "y1": 1,
                "line": {"color": "@ink", "width": 1, "dash": "longdash"},
                "layer": "below",
            }
        ],
    )
    best = max(rows, key=lambda row: row[1])
    alt = f"{title}: from {format_ratio(min(ratios))} to {format_ratio(best[1])} of {grid.baseline}, most at {best[0]}."
    return Chart(title, {"data": [trace], "layout": layout}, alt, table, tuple(notes))


def unit_of(metric: str) -> tuple[str, float]:
    """(unit, factor from the summary's own) of an axis for this field."""
    return next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), ("", 1.0))


def _marks(
    level: str, marks: list[tuple[str, float, float, float]], scale: float, style: theme.Style, unit: str
) -> dict[str, Any]:
    words, values, above, below = zip(*marks, strict=True)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": level,
        "y": list(words),
        "x": floats([v * scale for v in values]),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": floats([v * scale for v in above]),
            "arrayminus": floats([v * scale for v in below]),
            "color": style.role,
            "thickness": 1.5,
            "width": 4,
        },
        "marker": {"color": style.role, "symbol": style.marker, "size": 11, "line": {"color": style.role, "width": 2}},
        "hovertemplate": f"{level}, %{{y}}<br>%{{x:,.3~g}} {unit}<extra></extra>",
    }


def _connections(traces: list[dict[str, Any]], rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """A thin line from zero through the marks of each row, so that the eye compares lengths."""
    return [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": words,
            "y1": words,
            "line": {"color": "@grid", "width": 1},
            "layer": "below",
        }
        for words, _ in rows
    ]


def _ratio_label(words: str, effect: dict[str, Any]) -> dict[str, Any]:
    """At the end of a row, the ratio with its interval; why there is none."""
    ratio, low, high = (effect.get(k) for k in ("ratio", "ci_low", "ci_high"))
    text = "" if ratio is None else f"<b>{format_ratio(ratio)}</b>"
    if low is not None and high is not None:
        text += f" ({format_range(low, high, format_ratio)})"
    return {
        "xref": "paper",
        "x": 1,
        "y": words,
        "text": text,
        "showarrow": False,
        "xanchor": "left",
        "xshift": 8,
        "font": {"size": 12, "color": "@ink"},
    }


def _takeaway(words: str, level: str, value: float, effect: dict[str, Any], metric: str, grid: Grid) -> str:
    text = f"{words}: {format_metric(metric, value)} with {level}"
    ratio = effect.get("ratio")
    return text if ratio is None else f"{text}, {format_ratio(ratio)} of {grid.baseline}"


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale
