"""Every request of a setting, not a few of its percentiles: the cumulative distribution, and latency over time.

A mean hides modes; these show them (two batches' bands, a cache's hits, a stall). Data comes thinned to what a screen
can show, and the thinning keeps the extremes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.measure.percentile import percentile_of_sorted
from lab.measure.words import format_count, format_seconds, format_setting_s
from lab.show import theme
from lab.show.charts.figure import (
    Chart,
    floats,
    level_line,
    line,
    log_axis,
    log_range,
    nothing_to_draw,
    upright,
)

Floats = npt.NDArray[np.float64]
POINTS = 300
TIME_BINS, LATENCY_BINS = 120, 48


def ecdf(latencies_s: Mapping[str, Floats], slo_s: float | None) -> Chart:
    """Latency (x, log) against the share of successes that took no longer (y)."""
    title = "Share of answers within a time"
    height = 380
    traces: list[dict[str, Any]] = []
    notes: list[str] = []
    takeaways: list[str] = []
    drawn: list[float] = [] if slo_s is None else [slo_s * 1e3]
    shares = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
    table: dict[str, list[Any]] = {"share of answers, %": [100 * share for share in shares]}
    for (label, values), style in zip(latencies_s.items(), (theme.BASELINE, *theme.STYLES, theme.FIFTH), strict=False):
        ordered = np.sort(values)
        n = len(ordered)
        if not n:
            notes.append(f"{label} is not drawn: it has no success")
            table[f"{label}, ms"] = [None] * len(shares)
            continue
        rank = np.unique(np.linspace(0, n - 1, min(n, POINTS)).astype(np.int64))
        x, y = ordered[rank] * 1e3, 100 * (rank + 1) / n
        # numpy's linear percentile, as everywhere in the lab.
        found = [percentile_of_sorted(ordered, share) for share in shares]
        table[f"{label}, ms"] = [None if value is None else value * 1e3 for value in found]
        drawn += [value for value in (float(x[0]), float(x[-1])) if value > 0]
        hover = f"{label}<br>%{{y:.1f}} % within %{{x:,.3~g}} ms<extra></extra>"
        trace = line(label, x, y, style, mode="lines", hovertemplate=hover)
        trace["line"]["shape"] = "hv"
        traces.append(trace)
        middle = percentile_of_sorted(ordered, 0.5)
        takeaway = f"{label}: half within {format_seconds(middle)} (n = {format_count(n)})"
        if slo_s is not None:
            takeaway += f", {100 * float(np.searchsorted(ordered, slo_s, side='right')) / n:.1f} % within the objective"
        takeaways.append(takeaway)
    if not traces:
        return nothing_to_draw(title, notes[0] if notes else "no answer succeeded", height=height)
    layout = theme.layout(
        height=height,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 48, "b": 52},
        xaxis=log_axis("latency from the scheduled arrival, ms", log_range(drawn)),
        yaxis=theme.axis("share of successes, %", range=[0, 101]),
    )
    if slo_s is not None:
        layout["shapes"], layout["annotations"] = _objective(slo_s)
    return Chart(title, {"data": traces, "layout": layout}, "; ".join(takeaways) + ".", table, tuple(notes))


def heat_map(label: str, due_s: Floats, latency_s: Floats, slo_s: float | None) -> Chart:
    """Scheduled arrival (x) against latency (y, log), the colour counting successes: bands, stalls and warm-up show,
    which no percentile over time tells apart. Cells are equal on the log axis."""
    title = f"Latency over time, {label}"
    height = 380
    known = np.isfinite(latency_s) & (latency_s > 0)
    due_s, latency_ms = due_s[known], latency_s[known] * 1e3
    clipped = int((~known).sum())
    if not len(due_s):
        return nothing_to_draw(title, "no answer succeeded", height=height)
    low, high = log_range([*latency_ms, *([slo_s * 1e3] if slo_s else [])])
    x_edges = np.linspace(0.0, max(float(due_s.max()), 1e-3), min(TIME_BINS, max(1, len(due_s))) + 1)
    y_edges = np.linspace(low, high, LATENCY_BINS + 1)
    counts, _, _ = np.histogram2d(due_s, np.log10(latency_ms), bins=[x_edges, y_edges])
    z = np.where(counts.T > 0, np.log10(np.maximum(counts.T, 1)), np.nan)
    top = int(counts.max())
    ticks = [10**k for k in range(len(str(top)))] if top > 1 else [1]
    trace = {
        "type": "heatmap",
        "x": floats((x_edges[1:] + x_edges[:-1]) / 2),
        "y": floats(10 ** ((y_edges[1:] + y_edges[:-1]) / 2)),
        "z": [[None if np.isnan(cell) else round(float(cell), 3) for cell in row] for row in z],
        "colorscale": [[0, "@axis"], [0.5, "@blue"], [1, "@ink"]],  # from faint to strong in light and in dark
        "hoverongaps": False,
        "colorbar": {
            "title": {"text": "answers", "font": {"size": 12, "color": "@muted"}},
            "tickvals": [float(np.log10(tick)) for tick in ticks],
            "ticktext": [f"{tick:,}" for tick in ticks],
            "tickfont": {"size": 12, "color": "@muted"},
            "outlinewidth": 0,
            "thickness": 12,
        },
        "hovertemplate": "%{x:.1f} s, %{y:,.3~g} ms<extra></extra>",
    }
    layout = theme.layout(
        height=height,
        margin={"l": 64, "r": 24, "t": 20, "b": 52},
        xaxis=theme.axis("scheduled arrival, s from the start of the window"),
        yaxis=log_axis("latency from the scheduled arrival, ms", (low, high)),
    )
    if slo_s is not None:
        shape, text = level_line(slo_s * 1e3, f"objective {format_setting_s(slo_s)}", log=True)
        layout["shapes"], layout["annotations"] = [{**shape, "layer": "above"}], [text]
    thirds = np.array_split(np.argsort(due_s, kind="stable"), 3)
    middles = [float(np.median(latency_ms[part])) for part in thirds if len(part)]
    table: dict[str, list[Any]] = {
        "third of the window": list(range(1, len(middles) + 1)),
        "answers": [len(part) for part in thirds if len(part)],
        "median, ms": middles,
        "slowest, ms": [float(latency_ms[part].max()) for part in thirds if len(part)],
    }
    first, last, slowest = (format_seconds(value / 1e3) for value in (middles[0], middles[-1], float(latency_ms.max())))
    alt = f"{label}: the median is {first} in the first third of the window and {last} in the last; "
    alt += f"the slowest answer took {slowest}."
    notes = (f"{clipped} answers without a positive latency are left out",) if clipped else ()
    return Chart(title, {"data": [trace], "layout": layout}, alt, table, notes)


def _objective(slo_s: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The objective as a line across a time axis."""
    text = {
        "yref": "paper",
        "x": float(np.log10(slo_s * 1e3)),
        "y": 0.04,
        "text": f"objective {format_setting_s(slo_s)}",
        "showarrow": False,
        "xanchor": "right",
        "xshift": -4,
        "bgcolor": "@surface",
        "font": {"size": 12, "color": "@muted"},
    }
    return [upright(slo_s * 1e3, "@ink", "longdash")], [text]
