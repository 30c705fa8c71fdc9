"""A search and a sweep: every rate and every setting that was tried, those that failed among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.measure import pareto
from lab.measure.words import format_fraction, format_metric, level_label, metric_label
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, level_line, log_axis, log_range, nothing_to_draw, upright

SCALES = {"_bytes": ("MiB", 1 / 2**20), "_rps": ("requests/s", 1.0), "_per_s": ("tokens/s", 1.0), "_s": ("ms", 1e3)}
MOST_NAMED = 4
"""Settings of the frontier whose names stand in the chart."""
WORDS = {"met": "met", "missed": "missed", "client": "the load generator was the limit"}


def probes(search: Mapping[str, Any], percentile: float) -> Chart:
    """The share served in time (y) at every rate that was tried (x, log), in the order of trying; filled met it."""
    title = "Every rate that was tried"
    found = search["probes"]
    table: dict[str, list[Any]] = {"rate, req/s": [], "served in time, %": [], "p99, ms": [], "result": [], "why": []}
    for p in found:
        share = None if p["attained"] is None else 100 * p["attained"]
        p99 = None if p["latency_p99_s"] is None else 1e3 * p["latency_p99_s"]
        append(table, p["rate_rps"], share, p99, WORDS[p["result"]], p["why"])
    drawn = [p for p in found if p["attained"] is not None]
    if not drawn:
        return nothing_to_draw(title, "no probe was answered")
    symbols = {"met": "circle", "missed": "circle-open", "client": "x-thin-open"}
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": floats([p["rate_rps"] for p in drawn]),
        "y": floats([100 * p["attained"] for p in drawn]),
        "marker": {
            "size": 11,
            "symbol": [symbols[p["result"]] for p in drawn],
            "color": ["@blue" if p["result"] == "met" else "@vermillion" for p in drawn],
            "line": {"width": 1.5, "color": ["@blue" if p["result"] == "met" else "@vermillion" for p in drawn]},
        },
        "text": [f"{p['why']}" for p in drawn],
        "hovertemplate": "%{x:,.4~g} req/s<br>%{text}<extra></extra>",
    }
    objective, label = level_line(100 * percentile, f"objective: {format_fraction(percentile)} in time", log=False)
    shapes: list[dict[str, Any]] = [objective]
    if search["highest_rps"]:
        shapes.append(upright(search["highest_rps"], dash="dash"))
    low = min(100 * p["attained"] for p in drawn)
    rates = sorted({p["rate_rps"] for p in drawn})
    ticks = sorted({rates[0], search["highest_rps"] or rates[0], rates[-1]})
    layout = theme.layout(
        height=340,
        xaxis=log_axis(
            "offered, requests a second",
            log_range(rates, least_decades=0.5),
            tickvals=ticks,
            ticktext=[f"{rate:,.4g}" for rate in ticks],
        ),
        yaxis=theme.axis("served in time, %", range=[max(low - 5, 0), 101.5], rangemode="normal"),
        shapes=shapes,
        annotations=[label],
    )
    notes = ("filled met the objective, open missed it; upright: the highest rate that meets it",)
    return Chart(title, {"data": [marks], "layout": layout}, str(search["text"]), table, notes)


def frontier(sweep: Mapping[str, Any]) -> Chart:
    """The first figure (x) against the second (y, log) of every setting, dominated ones faded, the frontier joined."""
    names = list(sweep["better"])
    x_name, y_name = names[0], names[1]
    title = f"{_capital(metric_label(x_name))} against {metric_label(y_name)}"
    table: dict[str, list[Any]] = {"setting": []}
    table |= {f"{metric_label(name)}, {_scale(name)[0]}": [] for name in names}
    table |= {"frontier": [], "objective": [], "why": []}
    points, notes = [], []
    for point in sweep["points"]:
        label = _label(point)
        values = [None if point["figures"][n] is None else point["figures"][n] * _scale(n)[1] for n in names]
        met = {True: "met", False: "missed", None: "n/a"}[point["met"]]
        append(table, label, *values, "yes" if point["frontier"] else "no", met, point["why"] or "")
        if values[0] is None or values[1] is None:
            notes.append(f"{label} is not drawn: {point['why'] or 'a figure is missing'}")
        else:
            points.append((values[0], values[1], label, point["frontier"], point["why"]))
    if not points:
        return nothing_to_draw(title, notes[0] if notes else "no setting was measured")
    # The line joins what is best in these two figures; a point off it may be on the frontier for a third.
    best = pareto.frontier(
        [{"x": p[0], "y": p[1]} for p in points], {"x": sweep["better"][x_name], "y": sweep["better"][y_name]}
    )
    on = sorted(p for p, told in zip(points, best, strict=True) if told and p[3])
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": floats([p[0] for p in on]),
        "y": floats([p[1] for p in on]),
        "line": {"color": "@blue", "width": 1.5, "dash": "dot", "shape": "hv"},
        "hoverinfo": "skip",
    }
    # Who is on the frontier says its name, below and before its mark, where no dominated one lies.
    named = sorted((p for p in points if p[3]), key=lambda p: -p[0])[:MOST_NAMED]
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": floats([p[0] for p in points]),
        "y": floats([p[1] for p in points]),
        "marker": {
            "size": [12 if p[3] else 9 for p in points],
            "symbol": ["circle" if p[3] else "x-thin-open" if p[4] else "circle-open" for p in points],
            "color": ["@blue" if p[3] else "@grey" for p in points],
            "line": {"width": 1.5, "color": ["@blue" if p[3] else "@grey" for p in points]},
        },
        "text": [p[2] for p in points],
        "hovertemplate": "%{text}<br>%{x:,.4~g}, %{y:,.3~g}<extra></extra>",
    }
    layout = theme.layout(
        height=380,
        xaxis=theme.axis(
            f"{metric_label(x_name)}, {_scale(x_name)[0]}", range=_with_air([p[0] for p in points]), rangemode="normal"
        ),
        yaxis=log_axis(f"{metric_label(y_name)}, {_scale(y_name)[0]}", log_range([p[1] for p in points])),
        annotations=[
            {
                "x": p[0],
                "y": float(np.log10(p[1])),
                "text": p[2],
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "top",
                "yshift": -8,
                "font": {"size": 12, "color": "@blue-text"},
            }
            for p in named
            if p[1] > 0
        ],
    )
    return Chart(title, {"data": [line, marks], "layout": layout}, str(sweep["text"]), table, tuple(notes))


def importance(sweep: Mapping[str, Any]) -> Chart:
    """Of each knob the share of the first figure's variance that its levels explain."""
    first = metric_label(next(iter(sweep["better"])))
    title = f"What matters for {first}"
    shares = sweep["importance"]
    if not shares:
        return nothing_to_draw(title, "fewer than two settings differ", height=200)
    names = [_short(path) for path in shares]
    values = [100 * share for share in shares.values()]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": floats(values),
        "marker": {"color": "@blue"},
        "text": [f"{value:.0f} %" for value in values],
        "textposition": "outside",
        "textfont": {"color": "@ink", "size": 12},
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    layout = theme.layout(
        height=110 + 40 * len(names),
        margin={"l": 64, "r": 64, "t": 12, "b": 52},
        xaxis=theme.axis("share of the variance, %", range=[0, 105]),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8),
    )
    alt = "; ".join(f"{name} {format_fraction(share)}" for name, share in zip(names, shares.values(), strict=True))
    table = {"knob": names, "share of the variance, %": values}
    return Chart(title, {"data": [bars], "layout": layout}, f"Of {first}: {alt}.", table)


def heat(sweep: Mapping[str, Any]) -> Chart:
    """The first figure over the two knobs that matter most, the best of each pair of levels."""
    first = next(iter(sweep["better"]))
    title = f"{_capital(metric_label(first))} by two knobs"
    knobs = list(sweep["importance"])[:2]
    if len(knobs) < 2:
        return nothing_to_draw(title, "there are no two knobs that matter", height=200)
    a, b = knobs
    levels = [list({repr(p["factors"][k]): p["factors"][k] for p in sweep["points"]}.values()) for k in (a, b)]
    best = np.full((len(levels[1]), len(levels[0])), np.nan)
    for point in sweep["points"]:
        value = point["figures"][first]
        if value is not None and point["why"] is None:
            i, j = levels[1].index(point["factors"][b]), levels[0].index(point["factors"][a])
            best[i, j] = np.nanmax([best[i, j], value])
    x, y = ([level_label(k, level) for level in own] for k, own in zip((a, b), levels, strict=True))
    text = [["not measured" if np.isnan(v) else format_metric(first, float(v)) for v in row] for row in best]
    trace = {
        "type": "heatmap",
        "x": [label.replace(", ", "<br>") for label in x],
        "y": y,
        "z": [[None if np.isnan(v) else float(v) for v in row] for row in best],
        "text": text,
        "texttemplate": "%{text}",
        "hovertemplate": "%{x}, %{y}<br>%{text}<extra></extra>",
        "colorscale": [[0, "@surface"], [1, "@tint"]],
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "textfont": {"size": 13, "color": "@ink"},
    }
    layout = theme.layout(
        height=130 + 56 * len(y),
        margin={"l": 64, "r": 24, "t": 60, "b": 16},
        xaxis=theme.axis("", type="category", side="top", showline=False, ticks="", tickangle=0),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks=""),
    )
    flat = [(p, q, v) for q, row in zip(y, text, strict=True) for p, v in zip(x, row, strict=True)]
    table = {
        _short(a): [p for p, _, _ in flat],
        _short(b): [q for _, q, _ in flat],
        metric_label(first): [v for *_, v in flat],
    }
    alt = "; ".join(f"{p}, {q}: {v}" for p, q, v in flat)
    return Chart(title, {"data": [trace], "layout": layout}, f"{alt}.", table)


def _with_air(values: list[float]) -> list[float]:
    """From below the least, but not below zero, to above the largest: the settings of a sweep lie close together."""
    low, high = min(values), max(values)
    air = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
    return [max(low - air, 0.0), high + air]


def _scale(name: str) -> tuple[str, float]:
    return next(found for ending, found in SCALES.items() if name.endswith(ending))


def _label(point: Mapping[str, Any]) -> str:
    return ", ".join(level_label(path, level) for path, level in point["factors"].items())


def _short(path: str) -> str:
    return path.rsplit(".", 1)[-1].replace("_", " ")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
