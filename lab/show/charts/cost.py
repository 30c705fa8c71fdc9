"""Cost as charts: what a million good answers costs at each load, and how that depends on how much a machine is used.

Both take costs that lab.measure.cost computed; no price and no date is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.measure.cost import Cost, Use, break_even, usd_per_useful_hour
from lab.measure.cost_words import commitment_label, format_usd
from lab.measure.prices import Price
from lab.measure.words import format_fraction
from lab.show import theme
from lab.show.charts.figure import (
    Chart,
    End,
    append,
    end_labels,
    line,
    log_axis,
    log_range,
    nothing_to_draw,
    reach,
    room,
)


@dataclass(frozen=True)
class Point:
    """One repeat of one cell: its good rate (tokens or requests a second), its cost, and whether the objective was met
    at its percentile."""

    load: str
    good_per_s: float | None
    cost: Cost
    met: bool | None


def by_load(points: Mapping[str, Sequence[Point]], baseline: str, within: str) -> Chart:
    """Good answers a second (x) against USD a million of them (y, log), one line a level, in order of load. A mark is
    hollow where the objective was missed: such a load is no place to run at, however cheap."""
    title = "Cost of a million good answers by load"
    height = 380
    traces: list[dict[str, Any]] = []
    ends: list[End] = []
    notes: list[str] = []
    takeaways: list[str] = []
    table: dict[str, list[Any]] = {"level": [], "load": [], "good a second": [], "USD a million good": []}
    table |= {"USD a million": [], "objective": []}
    drawn: list[float] = []
    rates: list[float] = []
    styles = iter(theme.STYLES)
    unit = "requests"
    for level, row in points.items():
        style = theme.BASELINE if level == baseline else next(styles)
        shown = []
        for point in row:
            unit = point.cost.unit
            met = {True: "met", False: "missed", None: "not judged"}[point.met]
            append(table, level, point.load, point.good_per_s, point.cost.per_million_good, point.cost.per_million, met)
            if point.cost.per_million_good is None or not point.good_per_s:
                notes.append(f"{level} at {point.load} has no cost: {next(iter(point.cost.notes.values()), 'no rate')}")
            else:
                shown.append((point.good_per_s, point.cost.per_million_good, point.load, bool(point.met), met))
        if not shown:
            continue
        x, y, loads, met_at, words = (list(column) for column in zip(*shown, strict=True))
        drawn += y
        rates += x
        trace = line(
            level,
            x,
            y,
            style,
            text=[f"{load}, objective {word}" for load, word in zip(loads, words, strict=True)],
            hovertemplate=f"{level}, %{{text}}<br>%{{x:,.4~g}} good {unit}/s<br>%{{y:$,.4~g}} a million<extra></extra>",
        )
        solid = style.marker.removesuffix("-open")
        trace["marker"]["symbol"] = [solid if met else f"{solid}-open" for met in met_at]
        traces.append(trace)
        ends.append(End(level.removeprefix("batching "), x[-1], y[-1], style))
        inside = [(cost, load) for _, cost, load, met, _ in shown if met]
        takeaways.append(
            f"{level} costs least with the objective met at {min(inside)[1]}, {format_usd(min(inside)[0])} "
            f"a million good {unit}"
            if inside
            else f"{level} met the objective at no load; its least cost was {format_usd(min(y))}"
        )
    if not traces:
        return nothing_to_draw(title, notes[0] if notes else "nothing was measured", height=height)
    title = f"Cost of a million good {unit} by load"
    y_range = log_range(drawn, least_decades=0.5)
    margin = {"l": 72, "r": room(ends), "t": 20, "b": 52}
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis(f"good {unit} a second", range=reach(rates)),
        yaxis=log_axis(f"USD a million good {unit}", y_range),
        annotations=end_labels(ends, y_range, log=True, height=height - margin["t"] - margin["b"]),
    )
    notes.insert(0, f"Good is what came {within}; a mark is hollow where the objective was missed")
    return Chart(title, {"data": traces, "layout": layout}, "; ".join(takeaways) + ".", table, tuple(notes))


def by_use(prices: Sequence[Price], chosen: Price, use: Use, per_hour_good: float | None, unit: str) -> Chart:
    """Share of all hours in use (x) against cost (y): of a million good answers where `per_hour_good` of them are
    served in an hour of use, else of that hour. One line a way to pay for the machine; they break even where they
    cross."""
    of = f"USD a million good {unit}" if per_hour_good else "USD an hour of use"
    title = "What paying for idle hours does"
    height = 340
    scale = 1e6 / per_hour_good / use.copies if per_hour_good else 1.0
    shares = np.linspace(0.05, 1.0, 39)
    table: dict[str, list[Any]] = {"hours in use, %": [100 * share for share in (0.1, 0.25, 0.5, 0.75, 1.0)]}
    traces, ends, drawn, takeaways = [], [], [], []
    styles = iter(theme.STYLES)
    for price in prices[:4]:
        style = theme.BASELINE if price == chosen and len(prices) > 1 else next(styles)

        def at(share: float, price: Price = price) -> float:
            return usd_per_useful_hour(price, use.model_copy(update={"utilization": float(share)})) * scale

        y = [at(share) for share in shares]
        label = commitment_label(price)
        table[f"{label}, {of}"] = [at(percent / 100) for percent in table["hours in use, %"]]
        hover = f"{label}<br>%{{x:.0f}} % in use: %{{y:$,.4~g}}<extra></extra>"
        traces.append(line(label, 100 * shares, y, style, mode="lines", hovertemplate=hover))
        # Its full name is in the data; beside a line there is room for what tells it apart.
        ends.append(End(label.partition(" ")[0] if price.billing == "committed" else label, 100.0, y[-1], style))
        drawn += y
        takeaways.append(f"{label} {format_usd(at(0.25))} at 25 % and {format_usd(y[-1])} at 100 %")
    if not traces:
        return nothing_to_draw(title, "no price is chosen", height=height)
    y_range = log_range(drawn, least_decades=0.5)
    margin = {"l": 72, "r": room(ends), "t": 20, "b": 52}
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis("share of all hours in use, %", range=[0, 102]),
        yaxis=log_axis(of, y_range),
        annotations=end_labels(ends, y_range, log=True, height=height - margin["t"] - margin["b"]),
    )
    crossings = [
        f"{commitment_label(a)} breaks even with {commitment_label(b)} at {format_fraction(even)}"
        for a in prices[:4]
        for b in prices[:4]
        if a.billing == "committed" and b.billing in ("hour", "second") and (even := break_even(a, b, use))
    ]
    alt = f"{of}: {'; '.join([*takeaways, *crossings])}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table)
