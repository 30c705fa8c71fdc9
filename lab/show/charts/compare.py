"""Up to six measured settings beside each other, whatever runs they come from: the curve, what was asked and served,
the ratios with their intervals, and where memory went.

Names of sides are labels of lab.measure.sides; the first side of every mapping is the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.measure.compare import Effect
from lab.measure.versus import floor_fraction
from lab.measure.words import (
    format_bytes,
    format_fraction,
    format_rate,
    format_ratio,
    format_seconds,
    format_setting_s,
    metric_label,
)
from lab.show import theme
from lab.show.charts.figure import (
    Chart,
    End,
    append,
    end_labels,
    floats,
    level_line,
    line,
    log_axis,
    log_range,
    ms,
    nothing_to_draw,
    reach,
    room,
    upright,
)

MIB = 2**20
EDGE = 1.02
"""Served above this share of what was offered, a point is seen to lie above the diagonal."""
ABOVE = "above the dotted line: some answers in the window are to requests that came before it"


@dataclass(frozen=True)
class Load:
    """One load of one setting: its name, what was offered and served (requests a second), a latency in seconds with why
    it is None, and whether the objective was met."""

    name: str
    offered_rps: float | None
    served_rps: float | None
    latency_s: float | None
    why: str = ""
    met: bool | None = None


def curves(loads: Mapping[str, Sequence[Load]], quantity: str, slo_s: float | None) -> Chart:
    """Served requests a second (x) against `quantity` (y, log), one line a side in order of load. A filled mark met the
    objective; the last filled one before the line crosses it is where the setting can be run at."""
    title = f"Throughput against {quantity}"
    height = 380
    table: dict[str, list[Any]] = {"side": [], "load": [], "offered, req/s": [], "served, req/s": []}
    table |= {f"{quantity}, ms": [], "objective": []}
    traces: list[dict[str, Any]] = []
    ends: list[End] = []
    notes: list[str] = []
    takeaways: list[str] = []
    drawn: list[float] = [] if slo_s is None else [slo_s * 1e3]
    served: list[float] = []
    for (label, row), style in zip(loads.items(), _styles(), strict=False):
        points = []
        for load in row:
            met = {True: "met", False: "missed", None: "not judged"}[load.met]
            append(table, label, load.name, load.offered_rps, load.served_rps, ms(load.latency_s), met)
            if load.latency_s is None or load.served_rps is None:
                notes.append(f"{label} at {load.name} is not drawn: {load.why or 'not measured'}")
            else:
                points.append((load.served_rps, load.latency_s * 1e3, load.name, load.met))
        if not points:
            continue
        x, y, names, met_at = (list(column) for column in zip(*points, strict=True))
        drawn += y
        served += x
        hover = f"{label}, %{{text}}<br>%{{x:,.4~g}} req/s served<br>{quantity} %{{y:,.3~g}} ms<extra></extra>"
        trace = line(label, x, y, style, text=names, hovertemplate=hover)
        solid = style.marker.removesuffix("-open")
        trace["marker"]["symbol"] = [solid if met else f"{solid}-open" for met in met_at]
        traces.append(trace)
        ends.append(End(brief(label), x[-1], y[-1], style))
        best = max((rate for rate, _, _, met in points if met), default=None)
        met_up_to = "met the objective at no load shown" if best is None else f"met it up to {format_rate(best)}"
        span = f"from {format_seconds(y[0] / 1e3)} at {format_rate(x[0])} to {format_seconds(y[-1] / 1e3)}"
        takeaways.append(f"{label}: {quantity} {span} at {format_rate(x[-1])}, {met_up_to}")
    if not traces:
        return nothing_to_draw(title, notes[0] if notes else "no run has a load to show", height=height)
    y_range = log_range(drawn)
    margin = {"l": 64, "r": room(ends), "t": 20, "b": 52}
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis("served, requests a second", range=reach(served)),
        yaxis=log_axis(f"{quantity}, ms", y_range),
        annotations=end_labels(ends, y_range, log=True, height=height - margin["t"] - margin["b"]),
    )
    if slo_s is not None:
        shape, label_ = level_line(slo_s * 1e3, f"objective {format_setting_s(slo_s)}", log=True)
        layout["shapes"] = [shape]
        layout["annotations"].append(label_)
    return Chart(title, {"data": traces, "layout": layout}, "; ".join(takeaways) + ".", table, tuple(notes))


def offered_served(loads: Mapping[str, Sequence[Load]]) -> Chart:
    """Offered requests a second (x) against served ones (y): on the diagonal everything is served."""
    title = "Asked for and served"
    height = 380
    table: dict[str, list[Any]] = {"side": [], "load": [], "offered, req/s": [], "served, req/s": []}
    traces: list[dict[str, Any]] = []
    takeaways: list[str] = []
    most = 0.0
    for (label, row), style in zip(loads.items(), _styles(), strict=False):
        points = [
            (load.offered_rps, load.served_rps, load.name)
            for load in row
            if load.offered_rps is not None and load.served_rps is not None
        ]
        for offered, served, name in points:
            append(table, label, name, offered, served)
        if not points:
            continue
        x, y, names = (list(column) for column in zip(*points, strict=True))
        most = max(most, *x, *y)
        hover = f"{label}, %{{text}}<br>%{{x:,.4~g}} req/s offered<br>%{{y:,.4~g}} served<extra></extra>"
        traces.append(line(label, x, y, style, text=names, hovertemplate=hover))
        share = y[-1] / x[-1] if x[-1] else None
        takeaways.append(f"{label} served {format_rate(y[-1])} of {format_rate(x[-1])} ({format_fraction(share)})")
    if not traces:
        return nothing_to_draw(title, "a closed loop offers nothing of its own accord", height=height)
    diagonal = line("all served", [0, most], [0, most], theme.Style("@muted", "dot", "circle"), mode="lines")
    layout = theme.layout(
        height=height,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 48, "b": 52},
        xaxis=theme.axis("offered, requests a second", range=[0, 1.05 * most or 1.0]),
        yaxis=theme.axis("served, requests a second", range=[0, 1.05 * most or 1.0]),
    )
    figure = {"data": [*traces, {**diagonal, "hoverinfo": "skip", "showlegend": False}], "layout": layout}
    rates = zip(table["offered, req/s"], table["served, req/s"], strict=True)
    notes = (ABOVE,) if any(served > EDGE * offered for offered, served in rates) else ()
    return Chart(title, figure, "; ".join(takeaways) + ".", table, notes)


def ratios(effects: Mapping[str, Effect], baseline: str, noise_floor: float | None = None) -> Chart:
    """Every side's ratio to the baseline on one metric (x, log) with its 95 % interval, on a band of what could not
    have been told from no difference: the noise floor of that very comparison. Between the dotted lines, where
    `noise_floor` is given, two equal settings may lie on this machine (its noise passport)."""
    metric = next(iter(effects.values())).metric if effects else ""
    name = metric_label(metric) if metric else "ratio"
    title = f"{name[0].upper()}{name[1:]} against {baseline}"
    height = 110 + 40 * max(2, len(effects))
    table: dict[str, list[Any]] = {"side": [], "ratio": [], "low": [], "high": [], "noise floor, %": [], "verdict": []}
    notes: list[str] = []
    rows = []
    for label, effect in effects.items():
        floor = floor_fraction(effect)
        percent = None if floor is None else 100 * floor
        append(table, label, effect.ratio, effect.ci_low, effect.ci_high, percent, effect.verdict)
        if effect.ratio is None or effect.ci_low is None or effect.ci_high is None or floor is None:
            told = str(effect.verdict)
            told += ", and to nothing there is no ratio" if told in ("higher", "lower") else ""
            notes.append(f"{label}: {effect.reason or told}")
        else:
            rows.append((label, effect.ratio, effect.ci_low, effect.ci_high, floor, effect.verdict))
    if not rows:
        return nothing_to_draw(title, notes[0] if notes else "there is nothing to compare", height=height)
    names, middle, low, high, floors, verdicts = (list(column) for column in zip(*rows, strict=True))
    real = [verdict in ("higher", "lower") for verdict in verdicts]
    band = {
        "type": "bar",
        "orientation": "h",
        "name": "noise floor",
        "y": names,
        "base": floats([1 / (1 + floor) for floor in floors]),
        "x": floats([1 + floor - 1 / (1 + floor) for floor in floors]),
        "marker": {"color": "@shade"},
        "width": 0.7,
        "hovertemplate": "%{y}: not told from no difference<extra></extra>",
    }
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": "ratio",
        "y": names,
        "x": floats(middle),
        "marker": {
            "color": ["@blue" if differs else "@grey" for differs in real],
            "symbol": ["circle" if differs else "circle-open" for differs in real],
            "size": 10,
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": floats([h - m for h, m in zip(high, middle, strict=True)]),
            "arrayminus": floats([m - lo for m, lo in zip(middle, low, strict=True)]),
            "color": "@muted",
            "thickness": 1.5,
            "width": 4,
        },
        "text": verdicts,
        "hovertemplate": "%{y}<br>%{x:.3~g}×, %{text}<extra></extra>",
    }
    span = log_range([*low, *high, 1.0, *(1 + floor for floor in floors)], least_decades=0.3)
    layout = theme.layout(
        height=height,
        margin={"l": 64, "r": 24, "t": 12, "b": 52},
        barmode="overlay",
        xaxis=log_axis(f"ratio of {name}, × (bars: 95 % interval; band: noise floor)", span, most_decades=2.5),
        yaxis=theme.axis(
            "", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8, rangemode="normal"
        ),
        shapes=[upright(1), *_passport(noise_floor)],
    )
    if noise_floor is not None:
        table["machine's noise, %"] = [100 * noise_floor] * len(table["side"])
        notes.append(f"dotted: two equal settings may differ by {format_fraction(noise_floor)} on this machine")
    alt = "; ".join(
        f"{label} has {format_ratio(m)} the {name} of {baseline}, {verdict}" for label, m, _, _, _, verdict in rows
    )
    return Chart(title, {"data": [band, marks], "layout": layout}, alt + ".", table, tuple(notes))


def _passport(floor: float | None) -> list[dict[str, Any]]:
    """The lines between which equals may lie."""
    if floor is None:
        return []
    return [upright(x, dash="dot") for x in (1 / (1 + floor), 1 + floor)]


def memory(parts: Mapping[str, Mapping[str, float]]) -> Chart:
    """From the peak memory of the first side to that of the second (x, MiB), part by part: what grew, what shrank.
    `parts`: {side: {part: bytes}}, each with the same parts."""
    title = "Where the memory went"
    if len(parts) != 2 or not all(parts.values()):
        return nothing_to_draw(title, "the memory of one of the two was not measured", height=300)
    (first, a), (second, b) = parts.items()
    names = list(dict.fromkeys([*a, *b]))
    change = {name: (b.get(name, 0.0) - a.get(name, 0.0)) / MIB for name in names}
    total_a, total_b = sum(a.values()) / MIB, sum(b.values()) / MIB
    labels = [first, *names, second]
    table: dict[str, list[Any]] = {
        "part": names,
        f"{first}, MiB": [a.get(name, 0.0) / MIB for name in names],
        f"{second}, MiB": [b.get(name, 0.0) / MIB for name in names],
        "change, MiB": list(change.values()),
    }
    trace = {
        "type": "waterfall",
        "orientation": "h",
        "measure": ["absolute", *("relative" for _ in names), "total"],
        "y": labels,
        "x": floats([total_a, *change.values(), total_b]),
        "increasing": {"marker": {"color": "@vermillion"}},
        "decreasing": {"marker": {"color": "@green"}},
        "totals": {"marker": {"color": "@grey"}},
        "connector": {"line": {"color": "@axis", "width": 1}},
        "text": [f"{total_a:,.0f} MiB", *(f"{value:+,.1f} MiB" for value in change.values()), f"{total_b:,.0f} MiB"],
        "textposition": "outside",
        "textfont": {"color": "@ink", "size": 12},
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    layout = theme.layout(
        height=100 + 40 * len(labels),
        margin={"l": 64, "r": 90, "t": 12, "b": 52},
        xaxis=theme.axis("memory of the model's processes at its peak, MiB"),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8),
    )
    parts_told = ", ".join(f"{name} {value:+,.1f} MiB" for name, value in change.items())
    alt = f"From {format_bytes(total_a * MIB)} of {first} to {format_bytes(total_b * MIB)} of {second}: {parts_told}."
    return Chart(title, {"data": [trace], "layout": layout}, alt, table)


def _styles() -> list[theme.Style]:
    return [theme.BASELINE, *theme.STYLES, theme.FIFTH]


def brief(label: str) -> str:
    """For the narrow place at a line's end."""
    return label if len(label) <= 22 else f"{label[:21].rstrip(' ,')}…"
