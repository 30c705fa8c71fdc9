"""The levels of the judged factor against each other: one figure by load, and every ratio with its interval.

Both read the document of a run laid out as a Grid (levels of the judged factor × loads).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lab.measure.phrases import TELLING_SPAN
from lab.measure.words import format_metric, format_range, format_ratio, metric_label
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, log_axis, log_range, nothing_to_draw, upright
from lab.show.grid import Grid, brief, why_missing

UNITS = {"_tokens_per_s": ("tok/s", 1.0), "_rps": ("req/s", 1.0), "_bytes": ("MiB", 2.0**-20), "_s": ("ms", 1e3)}
"""How an axis counts a summary's field, by the end of its name; the first that fits."""
CALLED = {
    "output_tokens": "answer length",
    "prompt_tokens": "prompt length",
    "saturation_fraction": "share of saturation",
}


def by_load(grid: Grid, document: dict[str, Any], metric: str, path: str, load: str, told: str | None = None) -> Chart:
    """One row a level of the factor at `path` (all others as at `load`), one mark a level of the judged factor, and
    over the mark of the one that is `told` of (else the last) its ratio to the baseline. Bars are the ratio's 95 %
    interval, laid on the baseline's figure; with repeats a mark is what the verdict pooled. The table has every level,
    also those that are not drawn."""
    unit, scale = unit_of(metric)
    name = metric_label(metric)
    title = f"{name[0].upper()}{name[1:]} by {CALLED.get(path.rpartition('.')[2], 'load')}"
    rows = [(brief(words), at) for words, at in grid.along(path, load)]
    rows = [(words, at) for words, at in rows if grid.at(grid.baseline, at)]
    table: dict[str, list[Any]] = {"load": [], "level": [], f"{name}, {unit}": [], "ratio": [], "low": [], "high": []}
    table["note"] = []
    shown = grid.few(told)
    main = told if told in shown else shown[-1]
    traces: list[dict[str, Any]] = []
    takeaways: list[str] = []
    notes: list[str] = []
    largest = 0.0
    styles = iter(theme.STYLES)
    for level in (grid.baseline, *grid.others()):
        is_base = level == grid.baseline
        style = theme.BASELINE if is_base or level not in shown else next(styles)
        marks = []
        for words, at in rows:
            value = grid.figure(level, at, metric, main)
            effect = grid.effect(document, level, at, metric) or {}
            bounds = (effect.get(k) for k in ("ratio", "ci_low", "ci_high"))
            append(table, words, level, _scaled(value, scale), *bounds, "the baseline" if is_base else no_ratio(effect))
            if level not in shown:
                continue
            if value is None:
                reason = why_missing(grid.at(level, at), metric) or "not measured"
                notes.append(f"{level} at {words} is not drawn: {reason}")
                continue
            low, high = _bounds(value, effect)
            largest = max(largest, high * scale)
            marks.append(
                (words, value * scale, low * scale, high * scale, _effect(effect, metric) if level == main else "")
            )
            if level == main:
                takeaways.append(_takeaway(words, level, value, effect, metric, grid))
        if marks:
            traces.append(_marks(level, marks, style, unit))
    height = max(380, 116 + 60 * len(rows))  # as its neighbour on a page
    if not traces:
        return nothing_to_draw(title, notes[0] if notes else "no level has this figure yet", height=height)
    layout = theme.layout(
        height=height,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 48, "b": 52},
        xaxis=theme.axis(f"{name}, {unit}", range=[0, 1.12 * largest or 1.0]),
        yaxis=theme.axis(
            "",
            type="category",
            categoryarray=[words for words, _ in rows],
            range=[len(rows) - 0.5, -0.5],
            rangemode="normal",
            showline=False,
            ticks="",
            ticklabelstandoff=8,
        ),
    )
    alt = "; ".join(takeaways or notes) + "."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, (*notes, *grid.left_out(shown)))


def effects(document: dict[str, Any], grid: Grid, metric: str, title: str) -> Chart:
    """Every level's ratio to the baseline (x, log) on one metric with its 95 % interval, one row a level and load. Its
    table says why a ratio is missing, and what the verdict then stands on."""
    rows = []
    table: dict[str, list[Any]] = {"level": [], "load": [], "ratio": [], "low": [], "high": [], "verdict": []}
    table["why"] = []
    notes = []
    for load in grid.loads:
        for level in grid.others():
            effect = grid.effect(document, level, load, metric)
            if effect is None:
                continue
            why = no_ratio(effect)
            append(table, level, load, *(effect[k] for k in ("ratio", "ci_low", "ci_high", "verdict")), why)
            if effect["ratio"] is None:
                notes.append(f"{level} at {load}: {why or effect['verdict']}")
            else:
                rows.append(
                    (f"{load}, {level}", effect["ratio"], effect["ci_low"], effect["ci_high"], effect["verdict"])
                )
    height = 90 + 26 * max(3, len(rows))
    if not rows:
        empty = nothing_to_draw(title, notes[0] if notes else "no comparison was possible", height=height)
        return replace(empty, table=table if notes else {}, notes=tuple(notes))
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
        yaxis=theme.axis("", type="category", showline=False, ticks="", ticklabelstandoff=8),
        shapes=[upright(1)],
    )
    best = max(rows, key=lambda row: row[1])
    alt = f"{title}: from {format_ratio(min(ratios))} to {format_ratio(best[1])} of {grid.baseline}, most at {best[0]}."
    return Chart(title, {"data": [trace], "layout": layout}, alt, table, tuple(notes))


def no_ratio(effect: dict[str, Any]) -> str:
    """Why there is no ratio, and what a verdict without one stands on: "no ratio, as one side is zero or may be in
    parts of its window; the difference decides: +374 req/s (210 to 540 req/s)". With one, what else is to be said."""
    said = [effect["reason"]] if effect.get("reason") else []
    if effect and effect.get("ratio") is None and effect["verdict"] != "not comparable":
        text = "no ratio, as one side is zero or may be in parts of its window"
        metric = effect["metric"]
        size, low, high = (effect.get(k) for k in ("difference", "difference_low", "difference_high"))
        if size is not None:
            text += f"; the difference decides: {'+' if size > 0 else ''}{format_metric(metric, size)}"
        if size is not None and low is not None and high is not None:
            text += f" ({format_range(low, high, lambda one: format_metric(metric, one))})"
        said.insert(0, text)
    return "; ".join(said)


def unit_of(metric: str) -> tuple[str, float]:
    """(unit, factor from the summary's own) of an axis for this field."""
    return next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), ("", 1.0))


def _marks(
    level: str, marks: list[tuple[str, float, float, float, str]], style: theme.Style, unit: str
) -> dict[str, Any]:
    """`marks`: (row, value, low, high, words over it), in the axis' unit."""
    words, values, low, high, texts = zip(*marks, strict=True)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": level,
        "y": list(words),
        "x": floats(values),
        "text": list(texts),
        "textposition": "top center",
        "textfont": {"size": 12, "color": "@ink"},
        "cliponaxis": False,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": floats(np.subtract(high, values)),
            "arrayminus": floats(np.subtract(values, low)),
            "color": style.role,
            "thickness": 1.5,
            "width": 4,
        },
        "marker": {"color": style.role, "symbol": style.marker, "size": 11, "line": {"color": style.role, "width": 2}},
        "hovertemplate": f"{level}, %{{y}}<br>%{{x:,.3~g}} {unit}<extra></extra>",
    }


def _bounds(value: float, effect: dict[str, Any]) -> tuple[float, float]:
    """The ratio's interval laid on the baseline's figure; the value itself where there is none."""
    base, low, high = (effect.get(k) for k in ("a", "ci_low", "ci_high"))
    if base is None or low is None or high is None:
        return value, value
    return min(value, base * low), max(value, base * high)


def _effect(effect: dict[str, Any], metric: str) -> str:
    """ "7.3× (7.0 to 7.6×)"; "+2.2 req/s" where the baseline is about zero; "" where nothing is known."""
    ratio, low, high = (effect.get(k) for k in ("ratio", "ci_low", "ci_high"))
    if low is not None and high is not None:
        if high > TELLING_SPAN * low and effect["verdict"] in ("higher", "lower"):
            at_least = effect["verdict"] == "higher"
            return f"<b>{f'at least {format_ratio(low)}' if at_least else f'at most {format_ratio(high)}'}</b>"
        return f"<b>{format_ratio(ratio)}</b> ({format_range(low, high, format_ratio)})"
    difference = effect.get("difference")
    if difference is None or effect["verdict"] == "not comparable":
        return ""
    return f"<b>{'+' if difference > 0 else ''}{format_metric(metric, difference)}</b>"


def _takeaway(words: str, level: str, value: float, effect: dict[str, Any], metric: str, grid: Grid) -> str:
    text = f"{words}: {format_metric(metric, value)} with {level}"
    ratio = effect.get("ratio")
    return text if ratio is None else f"{text}, {format_ratio(ratio)} of {grid.baseline}"


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale
