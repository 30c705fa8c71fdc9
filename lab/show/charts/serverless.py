"""Scale to zero by rate: the share of cold requests, the tail, and the cost against an always-on machine.

All take the part "serverless" of a run's document (lab/measure/serverless.py). Marks were measured; lines are modelled
with the run's own times, and say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lab.measure.billing import Billing
from lab.measure.break_even import break_even_range, even_label, rate_label, usd_per_hour
from lab.measure.cost_words import format_usd
from lab.measure.serverless import Found, up_fraction
from lab.measure.words import format_fraction, format_seconds
from lab.show import theme
from lab.show.charts.figure import (
    Chart,
    append,
    floats,
    level_line,
    line,
    log_axis,
    log_range,
    nothing_to_draw,
    upright,
)

HEIGHT = 360
MARGIN = {"l": 64, "r": 24, "t": 40, "b": 52}
RATES = "requests a second"


def cold_share(found: Found) -> Chart:
    """Share of requests that waited for a worker to come up, by rate."""
    title = "Who waits for a cold start"
    points, blocks = found["curve"], found["rates"]
    if not points and not blocks:
        return nothing_to_draw(title, "nothing was measured", height=HEIGHT)
    table: dict[str, list[Any]] = {"": [], RATES: [], "cold, %": [], "modelled of it, %": []}
    traces = []
    if points:
        x, y = [p["rate_rps"] for p in points], [100 * p["cold_fraction"] for p in points]
        traces.append(_line("modelled", x, y, theme.TREATMENT, "%{y:.1f} % cold at %{x:.3~g}/s, modelled"))
        for point in points:
            append(table, "modelled", point["rate_rps"], 100 * point["cold_fraction"], None)
    if blocks:
        x, y = [b["rate_rps"] for b in blocks], [100 * b["cold_fraction"] for b in blocks]
        traces.append(_marks("measured", x, y, "%{y:.1f} % cold at %{x:.3~g}/s, measured"))
        for block in blocks:
            model = (block["modelled"] or {}).get("cold_fraction")
            append(table, "measured", block["rate_rps"], 100 * block["cold_fraction"], model and 100 * model)
    layout = theme.layout(
        height=HEIGHT, showlegend=True, legend=theme.legend(), margin=MARGIN, xaxis=_rates(found),
        yaxis=theme.axis("requests that were cold, %", range=[-2, 104]),
    )  # fmt: skip
    said = [f"{format_fraction(b['cold_fraction'])} at {rate_label(b['rate_rps'])}" for b in (blocks[:1] + blocks[-1:])]
    alt = f"Measured cold: {' and '.join(said)}" if said else "Modelled only"
    if points:
        alt += f"; modelled at one request a minute {format_fraction(points[0]['cold_fraction'])}"
    return Chart(title, {"data": traces, "layout": layout}, alt + ".", table)


def tail(found: Found) -> Chart:
    """p50 and p99 of latency by rate: lines modelled, marks measured."""
    title = "What that does to latency"
    points, blocks = found["curve"], found["rates"]
    table: dict[str, list[Any]] = {"": [], RATES: [], "p50, s": [], "p99, s": []}
    traces, drawn = [], []
    looks = (("p50_s", "p50", theme.STYLES[1]), ("p99_s", "p99", theme.STYLES[2]))
    for field, name, style in looks:
        known = [p for p in points if p[field] is not None]
        if known:
            y = [p[field] for p in known]
            drawn += y
            hover = f"{name} %{{y:.3~g}} s at %{{x:.3~g}}/s, modelled"
            traces.append(_line(f"{name}, modelled", [p["rate_rps"] for p in known], y, style, hover))
        there = [b for b in blocks if b[field] is not None]
        if there:
            y = [b[field] for b in there]
            drawn += y
            hover = f"{name} %{{y:.3~g}} s at %{{x:.3~g}}/s, measured"
            traces.append(_marks(f"{name}, measured", [b["rate_rps"] for b in there], y, hover, style))
    if not traces:
        return nothing_to_draw(title, "too few requests for a percentile", height=HEIGHT)
    for kind, rows in (("modelled", points), ("measured", blocks)):
        for row in rows:
            append(table, kind, row["rate_rps"], row["p50_s"], row["p99_s"])
    layout = theme.layout(
        height=HEIGHT, showlegend=True, legend=theme.legend(), margin=MARGIN, xaxis=_rates(found),
        yaxis=log_axis("latency from arrival, s", log_range(drawn)),
    )  # fmt: skip
    first = next((p for p in points if p["p99_s"] is not None), None)
    alt = f"A cold start takes {format_seconds(found['cold_s']['mean'])}"
    if first is not None:
        alt += f"; modelled p99 at {rate_label(first['rate_rps'])} is {format_seconds(first['p99_s'])}"
    short = [b for b in blocks if b["p99_s"] is None]
    notes = (f"Measured p99 needs 459 answers: {len(short)} of {len(blocks)} rates have fewer.",) if short else ()
    return Chart(title, {"data": traces, "layout": layout}, alt + ".", table, notes)


def cost(found: Found, usd_an_hour: float, billing: Billing, always_usd_an_hour: float) -> Chart:
    """USD an hour by rate: by the second and billing rule, beside the machine that is always on. Modelled."""
    title = "From which rate an always-on machine is cheaper"
    points = found["curve"]
    if not points:
        return nothing_to_draw(title, "nothing could be modelled: no cold start or no answer", height=HEIGHT)
    rates = [point["rate_rps"] for point in points]
    by_second = [usd_per_hour(point, usd_an_hour, billing) for point in points]
    every = break_even_range(found, usd_an_hour, billing, always_usd_an_hour)
    even = every[0]
    table: dict[str, list[Any]] = {
        RATES: [],
        "USD an hour, by the second": [],
        "USD an hour, always on": [],
        "up, %": [],
    }
    for point, usd in zip(points, by_second, strict=True):
        append(table, point["rate_rps"], usd, always_usd_an_hour, 100 * up_fraction(point))
    traces = [
        _line("by the second, modelled", rates, by_second, theme.TREATMENT, "$%{y:.3~g} an hour at %{x:.3~g}/s"),
        _line("always on", [rates[0], rates[-1]], [always_usd_an_hour] * 2, theme.BASELINE, "$%{y:.3~g} an hour"),
    ]
    shapes, annotations = [], []
    if even is not None:
        _, label = level_line(always_usd_an_hour, f"break-even at {even_label(every)}", log=True)
        shapes.append(upright(even, dash="dash"))
        annotations.append(label | {"xref": "x", "x": math.log10(even), "xanchor": "right", "xshift": -6})
    layout = theme.layout(
        height=HEIGHT, showlegend=True, legend=theme.legend(), margin=MARGIN, xaxis=_rates(found), shapes=shapes,
        annotations=annotations, yaxis=log_axis("USD an hour", log_range([*by_second, always_usd_an_hour])),
    )  # fmt: skip
    alt = f"Modelled: {format_usd(by_second[0])} an hour at one request a minute by the second"
    alt += f", {format_usd(always_usd_an_hour)} always on; "
    alt += "they meet at no rate between." if even is None else f"they break even at {even_label(every)}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def _rates(found: Found) -> dict[str, Any]:
    rates = [p["rate_rps"] for p in found["curve"]] + [b["rate_rps"] for b in found["rates"]]
    return log_axis(RATES, log_range(rates))


def _line(name: str, x: Sequence[float], y: Sequence[float], style: theme.Style, hover: str) -> dict[str, Any]:
    return line(name, x, y, style, mode="lines", hovertemplate=f"{hover}<extra></extra>")


def _marks(
    name: str, x: Sequence[float], y: Sequence[float], hover: str, style: theme.Style = theme.TREATMENT
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": floats(x),
        "y": floats(y),
        "marker": {"color": style.role, "symbol": style.marker, "size": 9, "line": {"color": "@surface", "width": 1}},
        "hovertemplate": f"{hover}<extra></extra>",
    }
