"""Fine-tunes as adapters of one base beside full copies: what they take, and whether they answer as taught."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.measure import lora
from lab.measure.words import format_bytes, format_fraction, plural
from lab.show import theme
from lab.show.charts.figure import Chart, floats, line, nothing_to_draw, pattern

MIB = 2**20
LOOKS = {"base": ("@muted", ""), "adapter": ("@blue", ""), "copy": ("@vermillion", "/")}
NAMES = {"base": "the base", "adapter": "the adapter", "copy": "its full copy"}


def memory(found: lora.Lora) -> Chart:
    """MiB of the base, of the base with all adapters, and of as many full copies: measured, and predicted before."""
    title = "One base with adapters, or full copies"
    adapters, copies = plural(len(found["adapters"]), "adapter"), len(found["copies"])
    rows = [
        ("the base alone", found["base_bytes"], None),
        (f"with {adapters}", found["with_adapters_bytes"], found["with_adapters_predicted_bytes"]),
        (f"{copies} full copies", found["copies_bytes"], found["copies_predicted_bytes"]),
    ]
    rows = [row for row in rows if row[1] is not None]
    if not rows:
        return nothing_to_draw(title, "no memory was read")
    names = [name for name, _, _ in rows]
    measured = [size / MIB for _, size, _ in rows]
    trace = {
        "type": "bar",
        "name": "measured",
        "x": names,
        "y": floats(measured),
        "marker": {"color": "@blue", "pattern": pattern("")},
        "text": [format_bytes(size) for _, size, _ in rows],
        "textposition": "outside",
        "textfont": {"size": 12, "color": "@ink"},
        "cliponaxis": False,
        "hovertemplate": "%{x}: %{y:,.0f} MiB<extra></extra>",
    }
    traces: list[dict[str, Any]] = [trace]
    predicted = [(name, size / MIB) for name, _, size in rows if size is not None]
    if predicted:
        marks = line(
            "predicted",
            [],
            [size for _, size in predicted],
            theme.Style("@ink", "solid", "line-ew-open"),
            mode="markers",
            hovertemplate="predicted: %{y:,.0f} MiB<extra></extra>",
        )
        marks |= {"x": [name for name, _ in predicted]}
        marks["marker"] |= {"size": 30}
        traces.append(marks)
    layout = theme.layout(
        height=340,
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 48},
        xaxis=theme.axis("", type="category", ticks=""),
        yaxis=theme.axis("memory of all processes, MiB", range=[0, 1.15 * max(measured)]),
    )
    table = {
        "what": names,
        "measured, MiB": measured,
        "predicted, MiB": [None if size is None else size / MIB for _, _, size in rows],
    }
    return Chart(title, {"data": traces, "layout": layout}, lora.memory(found) or f"{names[0]}.", table)


def taught(found: lora.Lora) -> Chart:
    """Of each fine-tune the share of its questions (taught to nobody) that base, adapter and copy answer as taught."""
    title = "Answers as taught, to questions that were not"
    lessons = found["lessons"]
    if not lessons:
        return nothing_to_draw(title, "nobody was asked")
    names = [lesson["title"] for lesson in lessons]
    traces, table = [], {"fine-tune": names}
    for who, (role, hatch) in LOOKS.items():
        shares = [lesson["passed"].get(who) for lesson in lessons]
        if all(share is None for share in shares):
            continue
        percent = [None if share is None else 100 * share for share in shares]
        traces.append(
            {
                "type": "bar",
                "name": NAMES[who],
                "x": names,
                "y": floats([np.nan if value is None else value for value in percent]),
                "marker": {"color": role, "pattern": pattern(hatch)},
                "hovertemplate": "%{x}: %{y:.0f} % by " + NAMES[who] + "<extra></extra>",
            }
        )
        table[f"{NAMES[who]}, %"] = percent
    layout = theme.layout(
        height=340,
        barmode="group",
        showlegend=True,
        legend=theme.legend(),
        margin={"l": 64, "r": 24, "t": 40, "b": 96},
        xaxis=theme.axis("", type="category", ticks="", tickangle=-30),
        yaxis=theme.axis("answers as taught, %", range=[0, 105]),
    )
    mean = {who: lora.passed(found, who) for who in LOOKS}
    by = ("the adapters", "the base", "the copies")
    shares = [(mean[who], told) for who, told in zip(("adapter", "base", "copy"), by, strict=True)]
    told = ", ".join(f"{format_fraction(share)} by {who}" for share, who in shares if share is not None)
    alt = f"As taught on average: {told}."
    return Chart(title, {"data": traces, "layout": layout}, alt, table)
