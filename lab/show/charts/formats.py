"""What a format buys: speed by quality and size, and a step against its floors. What it costs: quality.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lab.measure.formats import figure
from lab.measure.quality import WERE_4_BIT
from lab.measure.steps import TOO_QUICK
from lab.measure.words import format_bytes, format_fraction, format_seconds, format_token_rate
from lab.show import theme
from lab.show.charts.figure import Chart, End, end_labels, floats, nothing_to_draw, pattern, room
from lab.show.charts.quality import KINDS
from lab.show.formats import Shown, on_frontier

MIB = 2**20
LARGEST_PX = 44.0
LIMITS = {
    "memory": "what the machine can do, limited by reading",
    "compute": "what the machine can do, limited by arithmetic",
    None: "what the probe found it can do",
}


def price(formats: Sequence[Shown], at: str) -> Chart:
    """Quality (x) against tokens a second (y), the area of a mark being the size of its weights. A line joins those
    that no other format beats in all three; the others are faint."""
    title = "Speed, quality and size of each format"
    height = 420
    complete = [f for f in formats if f.tokens_per_s is not None and f.main is not None and f.size_bytes]
    notes = [f"{at[0].upper()}{at[1:]}; the larger the mark, the more MiB of weights"]
    notes += [f"{f.level} is not drawn: {_why_not(f)}" for f in formats if f not in complete]
    notes += [WERE_4_BIT] if any(f.quality and f.quality.were_4_bit for f in complete) else []
    if not complete:
        return nothing_to_draw(title, notes[1] if len(notes) > 1 else "no format was measured", height=height)
    kept = dict(zip([f.level for f in complete], on_frontier(complete), strict=True))
    name, label = complete[0].main.name, complete[0].main.label  # type: ignore[union-attr]
    less_is_better = name == "perplexity"
    table: dict[str, list[Any]] = {
        "format": [f.level for f in complete],
        "tokens/s": [f.tokens_per_s for f in complete],
        label: [_main(f) for f in complete],
        "weights, MiB": [_mib(f.size_bytes) for f in complete],
        "peak memory (PSS), MiB": [_mib(f.memory_bytes) for f in complete],
        "quality": [f.quality.verdict if f.quality else None for f in complete],
        "on the frontier": ["yes" if kept[f.level] else "no" for f in complete],
    }
    largest = max(f.size_bytes or 0.0 for f in complete)
    traces: list[dict[str, Any]] = []
    line = sorted((f for f in complete if kept[f.level]), key=_main)
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "the frontier",
            "x": floats([_main(f) for f in line]),
            "y": floats([_rate(f) for f in line]),
            "line": {"color": "@muted", "dash": "dot", "width": 1.5},
            "hoverinfo": "skip",
        }
    )
    for loses, (words, role, symbol) in KINDS.items():
        some = [f for f in complete if bool(f.loses) is loses]
        if not some:
            continue
        sizes = [LARGEST_PX * math.sqrt((f.size_bytes or 0.0) / largest) for f in some]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": words,
                "x": floats([_main(f) for f in some]),
                "y": floats([_rate(f) for f in some]),
                "text": [f"{f.level}: {format_bytes(f.size_bytes)} of weights" for f in some],
                "marker": {
                    "color": role,
                    "symbol": symbol,
                    "size": [round(size, 1) for size in sizes],
                    "opacity": [0.85 if kept[f.level] else 0.35 for f in some],
                    "line": {"color": "@ink", "width": 1},
                },
                "cliponaxis": False,
                "hovertemplate": f"%{{text}}<br>%{{y:,.0f}} tokens/s, {label} %{{x:,.4~g}}<extra></extra>",
            }
        )
    xs, top = [_main(f) for f in complete], 1.15 * max(_rate(f) for f in complete)
    span = (max(xs) - min(xs)) or 0.02 * max(xs)
    column = max(xs) + 0.22 * span  # the right edge, where the names stand: the marks lie too close for theirs
    sides = [min(xs) - 0.2 * span, column]
    margin = {"l": 64, "r": room(_ends(complete, column)), "t": 40, "b": 52}
    labels, leaders = _names(complete, column, top, height - margin["t"] - margin["b"])
    layout = theme.layout(
        height=height,
        showlegend=True,
        legend=theme.legend(itemsizing="constant"),
        margin=margin,
        xaxis=theme.axis(
            f"{label}{', less is better' if less_is_better else ', more is better'}",
            range=sides,
            rangemode="normal",
        ),
        yaxis=theme.axis("tokens a second", range=[0, top]),
        annotations=labels,
        shapes=leaders,
    )
    best = ", ".join(f"{f.level} ({_told(f)})" for f in line)
    alt = f"At {at}, no other format beats these in speed, size and quality together: {best}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, tuple(notes))


def _names(formats: Sequence[Shown], x: float, top: float, height: int) -> tuple[list[Any], list[Any]]:
    """(annotations, shapes): the format's name and size at `x`, as high as its mark or as near to that as the others
    leave room, and a line to each from its mark. `height` in pixels is that of `top` tokens a second."""
    leaders = []
    order = sorted(formats, key=_rate)  # as they are placed, from below
    placed = end_labels(_ends(order, x), (0.0, top), log=False, height=height)
    for f, annotation in zip(order, placed, strict=True):
        annotation["y"] += annotation["yshift"] * top / height
        annotation |= {"yshift": 0.0, "xshift": 4, "font": {"size": 12, "color": "@ink"}}
        leaders.append(
            {
                "type": "line",
                "x0": _main(f),
                "y0": _rate(f),
                "x1": x,
                "y1": annotation["y"],
                "line": {"color": "@axis", "width": 1},
                "layer": "below",
            }
        )
    return placed, leaders


def _ends(formats: Sequence[Shown], x: float) -> list[End]:
    return [End(f"{f.level}, {format_bytes(f.size_bytes)}", x, _rate(f), theme.BASELINE) for f in formats]


def floors(formats: Sequence[Shown], at: str) -> Chart:
    """The mean decode step of each format (bar, ms) with what it must take at least: to read its bytes and to compute
    its products."""
    title = "A step and its floors"
    known = [f for f in formats if f.step is not None]
    height = 120 + 40 * max(3, len(known))
    if not known:
        return nothing_to_draw(title, "this machine's limits or the engine's steps were not measured", height=height)
    names = [f.level for f in known]
    steps = [f.step or {} for f in known]
    columns: dict[str, list[float]] = {
        "step, ms": [1e3 * s["step_s"] for s in steps],
        "reading its bytes, ms": [1e3 * s["memory_floor_s"] for s in steps],
        "its products, ms": [1e3 * s["compute_floor_s"] for s in steps],
    }
    table: dict[str, list[Any]] = {
        "format": names,
        **columns,
        "bytes read, MiB": [_mib(s["read_bytes"]) for s in steps],
        "answers in a step": [s["batch"] for s in steps],
        "limited by": [s["limiting"] or "unknown" for s in steps],
        "of its floor": [s["fraction"] for s in steps],
    }
    bar, *marks = columns
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "measured",
            "y": names,
            "x": floats(columns[bar]),
            "marker": {"color": "@blue", "pattern": pattern("")},
            "hovertemplate": "%{y}<br>measured: %{x:.3~g} ms a step<extra></extra>",
        }
    ]
    for label, symbol in zip(marks, ("line-ns", "diamond-open"), strict=True):
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"floor: {label.removesuffix(', ms')}",
                "y": names,
                "x": floats(columns[label]),
                "marker": {"symbol": symbol, "size": 22 if symbol == "line-ns" else 11, "color": "@ink",
                           "line": {"color": "@ink", "width": 2.5}},
                "hovertemplate": f"%{{y}}<br>{label.removesuffix(', ms')}: %{{x:.3~g}} ms at least<extra></extra>",
            }
        )  # fmt: skip
    layout = theme.layout(
        height=height,
        bargap=0.4,
        showlegend=True,
        legend=theme.legend(traceorder="normal"),
        margin={"l": 110, "r": 84, "t": 40, "b": 52},
        xaxis=theme.axis("a decode step, ms (beside: how much of what the machine can do)"),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8),
        annotations=[
            {
                # Beside whatever reaches farthest: a floor may lie above the step when the probe was disturbed.
                "x": 1e3 * max(s["step_s"], s["memory_floor_s"], s["compute_floor_s"]),
                "y": name,
                "text": format_fraction(s["fraction"]),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 12,
                "font": {"size": 12, "color": "@ink"},
            }
            for name, s in zip(names, steps, strict=True)
        ],
    )
    told = "; ".join(
        f"{name} {format_seconds(s['step_s'])}, {format_fraction(s['fraction'])} of {LIMITS[s['limiting']]}"
        for name, s in zip(names, steps, strict=True)
    )
    notes = [f"{at[0].upper()}{at[1:]}", *([TOO_QUICK] if any(s["limiting"] is None for s in steps) else [])]
    return Chart(title, {"data": traces, "layout": layout}, f"At {at}: {told}.", table, tuple(notes))


def _told(f: Shown) -> str:
    name = f.main.name if f.main else ""
    return f"{format_token_rate(f.tokens_per_s)}, {name} {figure(name, _main(f))}, {format_bytes(f.size_bytes)}"


def _rate(f: Shown) -> float:
    return f.tokens_per_s or 0.0


def _main(f: Shown) -> float:
    return f.main.value if f.main else math.nan


def _why_not(f: Shown) -> str:
    if f.tokens_per_s is None:
        return "its tokens a second were not measured"
    return f"quality {f.why_no_quality or 'not evaluated'}" if f.main is None else "its weights were not measured"


def _mib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB
