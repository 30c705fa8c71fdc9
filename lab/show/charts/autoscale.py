"""Instances that come and go: how many there were over time, measured and modelled, and what that bought.

What was measured is solid, what is modelled dashed or hollow, and its name says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.measure.words import format_fraction, format_seconds
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, level_line, line, ms, nothing_to_draw, pattern

HEIGHT = 340
MEASURED = theme.Style("@blue", "solid", "circle")
MODELLED = theme.Style("@vermillion", "dash", "circle-open")
WORK = theme.Style("@grey", "solid", "circle")


def over_time(block: Mapping[str, Any], simulated: Mapping[str, Any] | None = None, *, real: bool = True) -> Chart:
    """Instances over time, and the work that came in, in the same unit: arrivals a second × seconds of service.
    `simulated`: of other rules than the block's own; `real`: the block's own measured line beside."""
    title = f"Instances over time, {block['label']}" if real else "Instances over time, as modelled"
    model = simulated or block["simulated"]
    end_s = block["seconds"]
    work = block["work"]
    seconds = np.arange(len(work)) + 0.5
    traces = [line("work that came in", seconds, work, WORK, mode="lines", fill="tozeroy", fillcolor="@shade")]
    traces[0]["line"] |= {"width": 1}
    shown = [("measured", block["measured"], MEASURED)] if real else []
    shown.append(("modelled", model, MODELLED))
    table: dict[str, list[Any]] = {"what": [], "from, s": [], "instances": []}
    for name, figures, style in shown:
        times, counts = [*figures["times_s"], end_s], [*figures["instances"], figures["instances"][-1]]
        times = [min(time, end_s) for time in times]
        trace = line(
            name, times, counts, style, mode="lines", hovertemplate=f"{name}: %{{y}} at %{{x:.1f}} s<extra></extra>"
        )
        trace["line"] |= {"shape": "hv"}
        traces.append(trace)
        for time, count in zip(figures["times_s"], figures["instances"], strict=True):
            append(table, name, round(time, 2), count)
    most = max([*work, *(count for _, figures, _ in shown for count in figures["instances"])])
    layout = theme.layout(
        height=HEIGHT,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 56, "r": 24, "t": 44, "b": 52},
        xaxis=theme.axis("seconds", range=[0, end_s]),
        yaxis=theme.axis("instances", range=[0, 1.12 * most]),
    )
    alt = " ".join(
        f"{name.capitalize()}: {figures['instances_mean']:.2f} instances on average, {figures['most']} at most, "
        f"{figures['changes']} changes."
        for name, figures, _ in shown
    )
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def price(ways: Sequence[Mapping[str, Any]]) -> Chart:
    """Instances on average (x) against the share in time (y): up and left is better."""
    title = "Share in time against instances paid"
    known = [way for way in ways if way["measured"]["share"] is not None]
    if not known:
        return nothing_to_draw(title, "no request was due", height=HEIGHT)
    traces = []
    table: dict[str, list[Any]] = {"way": [], "what": [], "mean instances": [], "in time, %": []}
    for name, style in (("measured", MEASURED), ("simulated", MODELLED)):
        called = "modelled" if name == "simulated" else name
        own = [(way["label"], way[name]) for way in known if way[name]["share"] is not None]
        x = [figures["instances_mean"] for _, figures in own]
        y = [100 * figures["share"] for _, figures in own]
        labels = [label for label, _ in own]
        hover = "%{text}: %{y:.1f} % in time with %{x:.2f} instances<extra>" + called + "</extra>"
        trace = line(called, x, y, style, mode="markers+text" if name == "measured" else "markers", hovertemplate=hover)
        places = ["top center", "bottom center"]  # in turn from the left, so that neighbours do not overlap
        ranks = np.argsort(np.argsort(x)).tolist()
        trace |= {"text": labels, "textposition": [places[rank % 2] for rank in ranks]}
        trace |= {"textfont": {"size": 12, "color": "@ink"}}
        trace |= {"cliponaxis": False}
        trace["marker"] |= {"size": 11}
        traces.append(trace)
        for label, mean, share in zip(labels, x, y, strict=True):
            append(table, label, called, mean, share)
    shape, label = level_line(100 * known[0]["goal"], "objective", log=False)
    most = max(way["measured"]["instances_mean"] for way in known)
    low = min(100 * known[0]["goal"] - 5, *table["in time, %"])
    layout = theme.layout(
        height=HEIGHT,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 40, "t": 44, "b": 52},
        shapes=[shape],
        annotations=[label],
        xaxis=theme.axis("instances paid, on average", range=[0, 1.25 * most]),
        yaxis=theme.axis("in time, %", range=[low - 0.15 * (100 - low), 100 + 0.15 * (100 - low)], rangemode="normal"),
    )
    alt = "; ".join(
        f"{way['label']}: {format_fraction(way['measured']['share'])} in time with "
        f"{way['measured']['instances_mean']:.2f} instances"
        for way in known
    )
    return Chart(title, {"data": traces, "layout": layout}, f"{alt}.", table)


def tail(ways: Sequence[Mapping[str, Any]]) -> Chart:
    """p95 of each way, measured and modelled."""
    title = "p95, measured and modelled"
    known = [way for way in ways if way["measured"]["p95_s"] is not None]
    if not known:
        return nothing_to_draw(title, "too few answers for a p95", height=HEIGHT)
    names = [way["label"] for way in known]
    series = {
        name: [ms(way[key]["p95_s"]) for way in known]
        for name, key in (("measured", "measured"), ("modelled", "simulated"))
    }
    looks = {"measured": ("@blue", ""), "modelled": ("@vermillion", "/")}
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": floats([np.nan if value is None else value for value in values]),
            "marker": {"color": looks[name][0], "pattern": pattern(looks[name][1])},
            "hovertemplate": f"%{{x}}: %{{y:,.0f}} ms {name}<extra></extra>",
        }
        for name, values in series.items()
    ]
    layout = theme.layout(
        height=HEIGHT,
        barmode="group",
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 44, "b": 64},
        xaxis=theme.axis("", type="category", ticks=""),
        yaxis=theme.axis("p95, ms"),
    )
    both = [[format_seconds(way[key]["p95_s"]) for key in ("measured", "simulated")] for way in known]
    parts = [f"{way['label']} {one}, modelled {two}" for way, (one, two) in zip(known, both, strict=True)]
    table = {"way": names, "measured, ms": series["measured"], "modelled, ms": series["modelled"]}
    table["off by, %"] = [None if way["off_p95"] is None else 100 * way["off_p95"] for way in known]
    return Chart(title, {"data": traces, "layout": layout}, f"p95: {'; '.join(parts)}.", table)
