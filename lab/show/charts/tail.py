"""A slow request: its parts beside those of its batch-mates, and what computed while it waited."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.measure.trace import PARTS, Joined, Slow
from lab.measure.words import format_seconds
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, nothing_to_draw, pattern

SEEN = {"client": ("client",), "network": ("network", "frontend"), "queue": ("queue",)}
SEEN |= {"compute": ("input", "compute", "output")}
"""The parts that are told apart at a glance, by those of PARTS; the table has each."""
LOOKS = {"client": ("@grey", "/"), "network": ("@grey", ""), "queue": ("@vermillion", ""), "compute": ("@blue", "")}
MOST_MATES = 12


def waterfall(joined: Joined, slow: Slow) -> Chart:
    """One row a request (the slow one first, then its batch-mates), along the time from the slow one's arrival, ms; the
    bars above are the batches that computed while it waited."""
    title = f"Request {slow.request:,}: {format_seconds(slow.latency_s)}"
    rows = [slow.request, *slow.mates[:MOST_MATES]]
    at = {int(n): row for row, n in enumerate(joined.request)}
    parts = joined.parts_s
    origin = joined.due_ns[at[slow.request]]
    labels = [f"request {n:,}" for n in rows]
    table: dict[str, list[Any]] = {"request": [], "arrived, ms": [], **{f"{part}, ms": [] for part in PARTS}}
    due_ms = [float(joined.due_ns[at[n]] - origin) / 1e6 for n in rows]
    base = np.array(due_ms)
    traces: list[dict[str, Any]] = []
    back = (joined.done_ns - joined.stamps[:, 5]) / 1e9
    for part, held in SEEN.items():
        whole = np.sum([parts[one] for one in held], axis=0) - (back if part == "network" else 0.0)
        seconds = np.array([whole[at[n]] for n in rows])
        traces.append(_bar(part, labels, base, 1e3 * seconds))
        base = base + 1e3 * seconds
    traces.append(_bar("network", labels, base, np.array([1e3 * back[at[n]] for n in rows]), legend=False))
    for n, due in zip(rows, due_ms, strict=True):
        append(table, n, due, *(1e3 * float(parts[part][at[n]]) for part in PARTS))
    if slow.ahead:
        begin, end, size = (np.array(column) for column in zip(*slow.ahead, strict=True))
        ahead = _bar("compute", ["batches ahead"] * len(begin), 1e3 * begin, 1e3 * (end - begin), legend=False)
        ahead["text"] = [f"batch of {n}" for n in size]
        traces.insert(0, {**ahead, "marker": {"color": "@axis", "line": {"color": "@surface", "width": 1}}})
    order = (["batches ahead"] if slow.ahead else []) + labels
    layout = theme.layout(
        height=130 + 30 * len(order),
        barmode="overlay",
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 48, "b": 52},
        xaxis=theme.axis("ms from its arrival", rangemode="normal"),
        yaxis=theme.axis(
            "", type="category", categoryorder="array", categoryarray=order[::-1], showline=False, ticks=""
        ),
    )
    notes = () if len(slow.mates) <= MOST_MATES else (f"{len(slow.mates) - MOST_MATES} more were in its batch",)
    longest = max(slow.parts_s, key=lambda part: slow.parts_s[part])
    alt = f"{title}; {format_seconds(slow.parts_s[longest])} of it in {longest}: {slow.waited_for}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, notes)


def instead(measured: np.ndarray, modelled: np.ndarray, setting: str) -> Chart:
    """Latency of the same arrivals (ms, log) by percentile: as measured, and as a queue model has it otherwise."""
    title = f"The same arrivals with {setting} (modelled)"
    known = modelled[~np.isnan(modelled)]
    if not len(known):
        return nothing_to_draw(title, "the model answers none of them")
    shares = np.linspace(0, 99.9, 200)
    table: dict[str, list[Any]] = {"percentile": [], "measured, ms": [], "modelled, ms": []}
    traces = []
    for name, values, style in (("measured", measured, theme.BASELINE), ("modelled", known, theme.TREATMENT)):
        y = 1e3 * np.percentile(values, shares)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": floats(shares),
                "y": floats(y),
                "line": {"color": style.role, "width": 2, "dash": "solid" if name == "measured" else "dash"},
                "hovertemplate": f"{name}, p%{{x:.1f}}: %{{y:,.3~g}} ms<extra></extra>",
            }
        )
    for p in (50, 90, 95, 99):
        append(table, f"p{p}", 1e3 * float(np.percentile(measured, p)), 1e3 * float(np.percentile(known, p)))
    layout = theme.layout(
        height=320,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 52},
        xaxis=theme.axis("percentile", range=[0, 100]),
        yaxis=theme.axis("latency, ms", log=True),
    )
    a, b = float(np.percentile(measured, 99)), float(np.percentile(known, 99))
    alt = f"p99 measured {format_seconds(a)}, modelled with {setting} {format_seconds(b)}."
    notes = ("modelled: a queue with the batch times of this trace, not a measurement",)
    return Chart(title, {"data": traces, "layout": layout}, alt, table, notes)


def _bar(name: str, labels: list[str], base: np.ndarray, width: np.ndarray, *, legend: bool = True) -> dict[str, Any]:
    colour, shape = LOOKS.get(name, ("@axis", ""))
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "legendgroup": name,
        "showlegend": legend,
        "y": labels,
        "base": floats(base),
        "x": floats(width),
        "width": 0.6,
        "marker": {"color": colour, **({"pattern": pattern(shape)} if shape else {})},
        "hovertemplate": f"%{{y}}, {name}: %{{x:,.3~g}} ms<extra></extra>",
    }
