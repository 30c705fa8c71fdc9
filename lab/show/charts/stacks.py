"""The memory of each format from the ground up: predicted over measured, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.measure.words import format_bytes, format_fraction
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, nothing_to_draw, pattern, upright
from lab.show.formats import Shown

MIB = 2**20
PARTS = {
    # what it is called: rows of the ledger, colour role, hatching
    "weights": (("weights",), "@blue", ""),
    "scales with zero points": (("scales",), "@green", "x"),
    "cache in use, activations, workspace": (("under load",), "@vermillion", "/"),
    "runtime and libraries": (("runtime", "libraries"), "@grey", "."),
}


def by_format(formats: Sequence[Shown], at: str) -> Chart:
    """Two bars a format, what was predicted over what was measured, from weights to libraries; the line stands at an
    eighth of fp32's weights, which is what 4 bits are often said to take."""
    title = "Memory of each format, predicted over measured"
    known = [f for f in formats if f.ledger]
    height = 130 + 52 * max(2, len(known))
    if not known:
        return nothing_to_draw(title, "no format's memory was measured", height=height)
    table: dict[str, list[Any]] = {
        name: [] for name in ("format", "part", "predicted, MiB", "measured, MiB", "error, %", "predicted from")
    }
    for f in known:
        for name, row in f.ledger.items():
            error = row["error_fraction"]
            mib = (_mib(row["predicted_bytes"]), _mib(row["measured_bytes"]))
            append(table, f.level, name, *mib, None if error is None else 100 * error, row["formula"])
    sides = ("predicted_bytes", "measured_bytes")
    levels = [f.level for f in known for _ in sides]
    kinds = ["predicted", "measured"] * len(known)
    traces = []
    for words, (rows, role, hatch) in PARTS.items():
        sizes = [sum(_mib(f.ledger[name][side]) or 0.0 for name in rows) for f in known for side in sides]
        if not any(sizes):
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": words,
                "y": [levels, kinds],
                "x": floats(sizes),
                "marker": {
                    "color": role,
                    "pattern": pattern(hatch),
                    "opacity": [0.55 if kind == "predicted" else 1.0 for kind in kinds],
                },
                "hovertemplate": f"%{{y}}<br>{words}: %{{x:,.1f}} MiB<extra></extra>",
            }
        )
    wholes = [(f, f.ledger["in all"]) for f in known]
    annotations = [
        {
            "x": _mib(whole[side]) or 0.0,
            "y": [f.level, kind],
            "text": format_bytes(whole[side]) + (_error(whole) if kind == "predicted" else ""),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 6,
            "font": {"size": 12, "color": "@ink"},
        }
        for f, whole in wholes
        for side, kind in zip(sides, ("predicted", "measured"), strict=True)
        if whole[side] is not None
    ]
    fp32 = next((f.ledger["weights"]["predicted_bytes"] for f in known if f.level == "fp32"), None)
    shapes: list[dict[str, Any]] = []
    if fp32:
        eighth = _mib(fp32 / 8) or 0.0
        shapes.append({**upright(eighth, "@ink", "longdash"), "layer": "above"})
        annotations.append(
            {
                "x": eighth,
                "y": 1.0,
                "yref": "paper",
                "text": "an eighth of fp32's weights",
                "showarrow": False,
                "xanchor": "left",
                "yanchor": "bottom",
                "xshift": -4,
                "font": {"size": 12, "color": "@muted"},
            }
        )
    layout = theme.layout(
        height=height,
        barmode="stack",
        bargap=0.25,
        showlegend=True,
        legend=theme.legend(traceorder="normal", y=1.07),
        margin={"l": 150, "r": 150, "t": 64, "b": 52},
        xaxis=theme.axis("memory of the model, MiB"),
        yaxis=theme.axis("", type="multicategory", autorange="reversed", showline=False, ticks="", showdividers=False),
        shapes=shapes,
        annotations=annotations,
    )
    told = [
        f"{f.level} takes {format_bytes(whole['measured_bytes'])}, {format_bytes(_held(f))} of it weights and scales"
        for f, whole in wholes
        if whole["measured_bytes"] is not None
    ]
    alt = "; ".join(told) + f"; {at}." if told else f"No format's process was measured; {at}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table, (f"{at[0].upper()}{at[1:]}",))


def _held(f: Shown) -> float:
    return sum(f.ledger[name]["measured_bytes"] or 0.0 for name in ("weights", "scales"))


def _error(whole: Any) -> str:
    error = whole["error_fraction"]
    return "" if error is None else f", {format_fraction(abs(error))} too {'high' if error > 0 else 'low'}"


def _mib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB
