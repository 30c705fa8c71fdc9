"""The memory of many models: what each adds, what would fit, who was there when, and what all of them took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.measure.fleet_words import fit
from lab.measure.tenancy import Held, Stay
from lab.measure.words import format_bytes
from lab.show import theme
from lab.show.charts.figure import MAX_POINTS, Chart, floats, level_line, line, nothing_to_draw, pattern, upright

MIB = 2**20
PLAN_HEIGHT = 270
"""Pixels: a plan is part of a form."""
Fleet = dict[str, Any]


def waterfall(fleet: Fleet) -> Chart:
    """What each model adds (y, MiB) to those loaded before it, measured, and what was predicted for all until then."""
    title = "What each model adds"
    filled = fleet["filled"]
    if not filled:
        return nothing_to_draw(title, "no model was loaded")
    names = [entry["model"] for entry in filled]
    totals = [entry["total_bytes"] for entry in filled]
    predicted = [entry["planned_bytes"] for entry in filled]
    return _fall(title, names, totals, predicted, fleet["budget_bytes"], fit(fleet) or _loaded(names, totals))


def plan(names: Sequence[str], predicted: Sequence[int | None], budget_bytes: int | None, source: str = "") -> Chart:
    """The same before anything is loaded, from what models of these kinds took when they were last loaded here; of
    another origin `source` is the sentence that says so."""
    title = "What would fit"
    known = [(name, total) for name, total in zip(names, predicted, strict=True) if total is not None]
    if not known:
        return nothing_to_draw(title, "none of these models was loaded here before", height=260)
    fits = [name for name, total in known if budget_bytes is None or total <= budget_bytes]
    room = "" if budget_bytes is None else f" of the {format_bytes(budget_bytes)} that they may take"
    last = known[len(fits) - 1][1] if fits else known[0][1]
    alt = f"{len(fits)} of {len(names)} models would fit: together they take {format_bytes(last)}{room}."
    alt = f"{alt} {source}".rstrip()
    notes: tuple[str, ...] = (source,) if source else ()
    where = "there" if source else "here before"
    notes += tuple(f"{n} is not predicted: no model of its kind was loaded {where}" for n in names[len(known) :][:1])
    totals = [total for _, total in known]
    chart = _fall(title, [name for name, _ in known], totals, [None] * len(known), budget_bytes, alt, PLAN_HEIGHT)
    return Chart(title, chart.figure, alt, {"model": list(names), "together, MiB": [_mib(p) for p in predicted]}, notes)


def _loaded(names: Sequence[str], totals: Sequence[float]) -> str:
    return f"{names[-1]} makes it {format_bytes(totals[-1])}."


def _fall(
    title: str,
    names: Sequence[str],
    totals: Sequence[float],
    predicted: Sequence[float | None],
    budget_bytes: float | None,
    alt: str,
    height: int = 340,
) -> Chart:
    base = np.array([0.0, *totals[:-1]]) / MIB
    rise = np.array(totals) / MIB - base
    over = [budget_bytes is not None and total > budget_bytes for total in totals]
    trace = {
        "type": "bar",
        "name": "adds",
        "x": list(names),
        "y": floats(rise),
        "base": floats(base),
        "marker": {
            "color": ["@vermillion" if beyond else "@blue" for beyond in over],
            "pattern": {**pattern(""), "shape": ["/" if beyond else "" for beyond in over]},
        },
        "hovertemplate": "%{x} adds %{y:,.1f} MiB<extra></extra>",
    }
    traces: list[dict[str, Any]] = [trace]
    if any(value is not None for value in predicted):
        y = [np.nan if value is None else value / MIB for value in predicted]
        look = theme.Style("@ink", "solid", "line-ew-open")
        marks = line(
            "predicted, together", [], y, look, mode="markers", hovertemplate="predicted: %{y:,.1f} MiB<extra></extra>"
        )
        marks |= {"x": list(names)}
        marks["marker"] |= {"size": 26}
        traces.append(marks)
    shapes = []
    labels: list[dict[str, Any]] = [
        {
            "x": name,
            "y": max(total, planned or 0.0) / MIB,  # above the mark of what was predicted
            "text": f"+{value:,.0f}",
            "showarrow": False,
            "yanchor": "bottom",
            "textangle": -90 if len(names) > 6 else 0,  # upright where bars are narrow
            "font": {"size": 12, "color": "@ink"},
            "bgcolor": "@surface",  # the budget does not strike through it
            "borderpad": 1,
        }
        for name, total, planned, value in zip(names, totals, predicted, rise, strict=True)
    ]
    if budget_bytes is not None:
        shape, label = level_line(budget_bytes / MIB, f"budget {format_bytes(budget_bytes)}", log=False)
        if sum(over) > 2:  # below the line on the right nothing stands: the bars there begin above it
            label |= {"x": 1, "xanchor": "right", "yanchor": "top", "xshift": -6}
        shapes, labels = [shape], [*labels, label]
    top = 1.12 * max(max(totals), budget_bytes or 0) / MIB
    layout = theme.layout(
        height=height,
        showlegend=len(traces) > 1,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40 if len(traces) > 1 else 24, "b": 64},
        xaxis=theme.axis("", type="category", ticks="", tickangle=-30 if len(names) > 6 else 0),
        yaxis=theme.axis("memory of all models, MiB", range=[0, top]),
        shapes=shapes,
        annotations=labels,
        bargap=0.35,
    )
    table: dict[str, list[Any]] = {
        "model": list(names),
        "adds, MiB": [float(value) for value in rise],
        "together, MiB": [_mib(total) for total in totals],
        "predicted together, MiB": [_mib(value) for value in predicted],
    }
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def tenancy(stays: Sequence[Stay], end_s: float, moments: Sequence[tuple[float, str]] = ()) -> Chart:
    """Who is loaded when (x, seconds): a bar a stay, hatched while it loads or unloads."""
    title = "Who was there when"
    if not stays:
        return nothing_to_draw(title, "no model was loaded or unloaded")
    names = sorted({stay.model for stay in stays}, key=lambda name: int(name.rpartition("_")[2] or 0))
    bars: dict[str, list[tuple[str, float, float]]] = {"loaded": [], "swapping": []}
    for stay in stays:
        bars["swapping"].append((stay.model, stay.asked_s, stay.from_s))
        bars["loaded"].append((stay.model, stay.from_s, end_s if stay.to_s is None else stay.to_s))
        if stay.to_s is not None and stay.gone_s is not None:
            bars["swapping"].append((stay.model, stay.to_s, stay.gone_s))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "y": [name for name, _, _ in own],
            "x": floats([to - begin for _, begin, to in own]),
            "base": floats([begin for _, begin, _ in own]),
            "marker": {"color": role, "pattern": pattern(hatch)},
            "hovertemplate": "%{y} " + label + ", %{x:.1f} s<extra></extra>",
        }
        for (label, own), role, hatch in zip(bars.items(), ("@blue", "@vermillion"), ("", "/"), strict=True)
    ]
    swaps = sum(stay.why == "evicted" for stay in stays)
    layout = theme.layout(
        height=120 + 26 * len(names),
        barmode="overlay",
        bargap=0.25,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 52},
        xaxis=theme.axis("seconds since the run began", rangemode="normal"),
        yaxis=theme.axis(
            "", type="category", categoryorder="array", categoryarray=names, autorange="reversed", ticks=""
        ),
        shapes=[upright(at_s, "@axis", "dot") for at_s, _ in moments],
    )
    table: dict[str, list[Any]] = {
        "model": [stay.model for stay in stays],
        "loaded at, s": [stay.from_s for stay in stays],
        "load took, s": [stay.from_s - stay.asked_s for stay in stays],
        "went at, s": [stay.to_s for stay in stays],
        "why": [stay.why for stay in stays],
    }
    times = "once" if swaps == 1 else f"{swaps} times"
    alt = f"{len(stays)} loads of {len(names)} models; {times} one had to go so that another fitted."
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def course(
    t_s: Any,
    size_bytes: Any,
    budget_bytes: float | None,
    moments: Sequence[tuple[float, str]] = (),
    held: Sequence[Held] = (),
    stays: Sequence[Stay] = (),
    *,
    on_gpu: bool = False,
) -> Chart:
    """Memory of all models together (y, MiB) over the run, with its budget; marks on the curve are models that came and
    went (`stays`), at what was read then. The table has each model's."""
    title = "Memory over the run"
    if not len(t_s):
        return nothing_to_draw(title, "no memory was read")
    step = max(1, -(-len(t_s) // MAX_POINTS))
    x, y = np.asarray(t_s)[::step], np.asarray(size_bytes)[::step] / MIB
    trace = line(
        "all models", x, y, theme.TREATMENT, mode="lines", hovertemplate="%{x:.0f} s: %{y:,.0f} MiB<extra></extra>"
    )
    came = [(stay.from_s, f"{stay.model} loaded") for stay in stays]
    went = [(stay.gone_s, f"{stay.model} {stay.why or 'unloaded'}") for stay in stays if stay.gone_s is not None]
    traces = [trace, *_events("loaded", came, x, y, "@blue", "triangle-up")]
    traces += _events("unloaded", went, x, y, "@vermillion", "triangle-down")
    shapes, labels = [upright(at_s, "@axis", "dot") for at_s, _ in moments], [_said(*moment) for moment in moments]
    if budget_bytes is not None:
        shape, label = level_line(budget_bytes / MIB, f"budget {format_bytes(budget_bytes)}", log=False)
        shapes, labels = [*shapes, shape], [*labels, label]
    layout = theme.layout(
        height=320,
        showlegend=len(traces) > 1,
        legend=theme.legend(y=-0.2, yanchor="top"),
        margin={"l": 64, "r": 24, "t": 28, "b": 84 if len(traces) > 1 else 52},
        xaxis=theme.axis("seconds since the run began", rangemode="normal"),
        yaxis=theme.axis(f"{'GPU memory' if on_gpu else 'PSS'} of all models, MiB"),
        shapes=shapes,
        annotations=labels,
    )
    most, last = (format_bytes(float(value) * MIB) for value in (y.max(), y[-1]))
    swaps = f" {len(came)} loads and {len(went)} unloads are marked." if stays else ""
    alt = f"All models together take at most {most}, at the end {last}.{swaps}"
    table: dict[str, list[Any]] = {
        "model": [one.model for one in held],
        "when loaded, MiB": [_mib(one.base_bytes) for one in held],
        "most, MiB": [_mib(one.peak_bytes) for one in held],
        "at the end, MiB": [_mib(one.now_bytes) for one in held],
        "not measured": [one.reason for one in held],
    }
    return Chart(title, {"data": traces, "layout": layout}, alt, table)


def _events(
    name: str, events: Sequence[tuple[float, str]], t_s: Any, mib: Any, role: str, symbol: str
) -> list[dict[str, Any]]:
    """Marks at moments, as high as the last reading before each (the first, where none was before)."""
    if not events:
        return []
    at_s = np.array([moment for moment, _ in events])
    heights = mib[np.maximum(np.searchsorted(t_s, at_s, side="right") - 1, 0)]
    look = theme.Style(role, "solid", symbol)
    marks = line(name, at_s, heights, look, mode="markers", hovertemplate="%{x:.1f} s: %{text}<extra></extra>")
    return [marks | {"text": [text for _, text in events]}]


def _said(at_s: float, text: str) -> dict[str, Any]:
    return {
        "x": at_s,
        "yref": "paper",
        "y": 1,
        "text": text,
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "font": {"size": 11, "color": "@muted"},
    }


def _mib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB
