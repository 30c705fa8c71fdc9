"""What a format costs in quality: each loss with its interval, and which blocks of the model it hurts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.measure.formats import figure
from lab.measure.quality import Sensitivity
from lab.measure.words import format_fraction, join
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, nothing_to_draw, pattern, upright
from lab.show.formats import Shown

KINDS = {
    # whether it loses quality: name in the legend, colour role, marker
    False: ("no measurable loss", "@blue", "circle"),
    True: ("a measurable loss", "@vermillion", "diamond"),
}
LOSS_LABELS = {"perplexity": "perplexity, % more than the baseline's"}


def losses(formats: Sequence[Shown]) -> Chart:
    """Every judged loss of quality (x) with its 95 % interval, one row a format; left of zero is better than the
    baseline, and an interval that holds zero is no measurable loss."""
    known = [f for f in formats if f.main is not None and f.main.loss is not None]
    title = "Loss of quality"
    table: dict[str, list[Any]] = {
        name: [] for name in ("format", "measure", "value", "baseline", "loss", "low", "high", "n", "verdict")
    }
    for f in formats:
        for m in f.quality.measures if f.quality else ():
            percent = [None if x is None else 100 * x for x in (m.loss, m.loss_low, m.loss_high)]
            value, base = figure(m.name, m.value), None if m.baseline is None else figure(m.name, m.baseline)
            append(table, f.level, m.label, value, base, *percent, f"{m.n} {m.of}", m.verdict or None)
    notes = tuple(f"{f.level} is not drawn: {f.why_no_quality}" for f in formats if f.quality is None)
    said: dict[str, list[str]] = {}
    for f in formats:
        for note in f.quality.notes if f.quality else ():
            said.setdefault(note, []).append(f.level)
    notes += tuple(f"{join(levels)}: {note}" for note, levels in said.items())
    height = 110 + 40 * max(3, len(known))
    if not known:
        return nothing_to_draw(title, notes[0].partition(": ")[2] if notes else "no format is compared", height=height)
    main = known[0].main
    assert main is not None  # noqa: S101  those without one are left out above
    levels = [f.level for f in known]
    loss, low, high = (
        100 * np.array([getattr(f.main, field) for f in known]) for field in ("loss", "loss_low", "loss_high")
    )
    loses = [bool(least > 0) for least in low]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": floats(loss),
        "y": levels,
        "marker": {
            "color": [KINDS[lost][1] for lost in loses],
            "symbol": [KINDS[lost][2] for lost in loses],
            "size": 11,
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": floats(high - loss),
            "arrayminus": floats(loss - low),
            "color": "@muted",
            "thickness": 1.5,
            "width": 4,
        },
        "text": ["a measurable loss" if lost else "no measurable loss" for lost in loses],
        "hovertemplate": "%{y}<br>%{x:.3~g} %, %{text}<extra></extra>",
    }
    unit = LOSS_LABELS.get(main.name, f"{main.label}, points less than the baseline's")
    layout = theme.layout(
        height=height,
        margin={"l": 110, "r": 24, "t": 12, "b": 52},
        xaxis=theme.axis(unit, rangemode="normal"),
        yaxis=theme.axis("", type="category", autorange="reversed", showline=False, ticks="", ticklabelstandoff=8),
        shapes=[upright(0.0)],
    )
    told = "; ".join(f"{f.level}: {f.quality.verdict.rstrip('.')}" for f in known if f.quality)
    return Chart(f"{title}: {main.label}", {"data": [trace], "layout": layout}, f"{told}.", table, notes)


def sensitivity(blocks: Sequence[Sensitivity], label: str, why_not: str = "") -> Chart:
    """How much perplexity rises (y, %) when one block alone is in this format (x, its place in the model)."""
    title = f"Which blocks {label} hurts"
    if not blocks:
        return nothing_to_draw(title, why_not or "the blocks were not evaluated one by one", height=300)
    table: dict[str, list[Any]] = {
        "block": [b.block for b in blocks],
        "perplexity, %": [100 * b.perplexity_loss for b in blocks],
        "KL divergence, nats a token": [b.kl_nats for b in blocks],
    }
    trace = {
        "type": "bar",
        "x": [b.block for b in blocks],
        "y": floats(table["perplexity, %"]),
        "marker": {"color": "@blue", "pattern": pattern("")},
        "hovertemplate": "block %{x} alone: %{y:.3~g} % more perplexity<extra></extra>",
    }
    layout = theme.layout(
        height=320,
        bargap=0.25,
        xaxis=theme.axis("block of the model", rangemode="normal", dtick=5),
        yaxis=theme.axis("perplexity, % more", rangemode="tozero"),
    )
    worst = max(blocks, key=lambda b: b.perplexity_loss)
    middle = float(np.median([b.perplexity_loss for b in blocks]))
    alt = (
        f"With {label} in one block alone, block {worst.block} costs most: {format_fraction(worst.perplexity_loss)} of "
        f"perplexity, the middle block {format_fraction(middle)}."
    )
    return Chart(title, {"data": [trace], "layout": layout}, alt, table)
