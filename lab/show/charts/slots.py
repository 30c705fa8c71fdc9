"""Who shares the steps of a language model: the slots of its batch over time, and how many were in use.

A slot is a place in the batch. Where an answer ends and nothing begins in its place, the slot computes nothing: that is
what a static batch costs while it waits for its longest answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.measure.words import format_fraction, plural
from lab.show import theme
from lab.show.charts.figure import Chart, End, append, end_labels, floats, line, nothing_to_draw

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stretch:
    """Answers that were being written in a stretch of `span_s` seconds: first and last token of each, in seconds from
    its beginning, and the tokens it held. `slots`: how many the batch has."""

    span_s: float
    slots: int
    first_s: Floats
    last_s: Floats
    tokens: npt.NDArray[np.int64]

    def placed(self) -> list[int]:
        """The slot of each answer: the first that is free when its first token comes. More than `slots` only where
        the stamps of an ending and a beginning answer cross."""
        free_at: list[float] = []
        slots = [0] * len(self.first_s)
        for i in np.argsort(self.first_s, kind="stable"):
            slot = next((s for s, at in enumerate(free_at) if at <= self.first_s[i]), len(free_at))
            if slot == len(free_at):
                free_at.append(0.0)
            free_at[slot], slots[i] = float(self.last_s[i]), slot
        return slots

    @property
    def used_fraction(self) -> float:
        """The share of the slots' time in which an answer was being written."""
        inside = np.clip(self.last_s, 0, self.span_s) - np.clip(self.first_s, 0, self.span_s)
        return float(inside.sum()) / (self.slots * self.span_s)


def slots(stretch: Stretch, level: str, at: str) -> Chart:
    """Time (x) against the slots of the batch (y), a bar an answer from its first token to its last."""
    title = f"The batch, slot by slot: {level}"
    if len(stretch.first_s) == 0:
        return nothing_to_draw(title, "no answer was being written in this stretch", height=300)
    places = stretch.placed()
    rows = max(stretch.slots, max(places) + 1)
    table: dict[str, list[Any]] = {"slot": [], "first token, s": [], "last token, s": [], "tokens": []}
    order = sorted(range(len(places)), key=lambda i: (places[i], stretch.first_s[i]))
    seen: dict[int, int] = {}
    shades = []
    for i in order:
        append(table, places[i] + 1, float(stretch.first_s[i]), float(stretch.last_s[i]), int(stretch.tokens[i]))
        shades.append("@blue" if seen.get(places[i], 0) % 2 == 0 else "@green")
        seen[places[i]] = seen.get(places[i], 0) + 1
    begin = np.clip([table["first token, s"]], 0, stretch.span_s)[0]
    end = np.clip([table["last token, s"]], 0, stretch.span_s)[0]
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "answers",
        "y": table["slot"],
        "base": floats(begin),
        "x": floats(end - begin),
        "customdata": table["tokens"],
        "marker": {"color": shades, "line": {"color": "@surface", "width": 1}},
        "hovertemplate": "slot %{y}<br>%{customdata} tokens in %{x:.2f} s<extra></extra>",
    }
    layout = theme.layout(
        height=130 + 24 * rows,
        bargap=0.25,
        margin={"l": 56, "r": 20, "t": 12, "b": 52},
        xaxis=theme.axis("seconds", range=[0, stretch.span_s], rangemode="normal"),
        yaxis=theme.axis("slot", range=[rows + 0.5, 0.5], rangemode="normal", dtick=1, showgrid=False, ticks=""),
    )
    used = format_fraction(stretch.used_fraction)
    alt = (
        f"At {at}, {level}: {len(places)} answers in {stretch.span_s:g} s; {used} of the time of "
        f"{plural(stretch.slots, 'slot')} went into answers."
    )
    note = f"**{used}** of the slots' time goes into answers."
    return Chart(title, {"data": [trace], "layout": layout}, alt, table, (note,))


def written_at_once(stretches: Mapping[str, Stretch], baseline: str, at: str) -> Chart:
    """Time (x) against the number of answers that were being written (y), one line a level."""
    title = f"Answers being written at once, {at}"
    height, margin = 320, {"l": 56, "r": 112, "t": 20, "b": 52}
    traces, ends, takeaways = [], [], []
    table: dict[str, list[Any]] = {"second": []}
    styles = iter(theme.STYLES)
    highest = 1
    for level, stretch in stretches.items():
        style = theme.BASELINE if level == baseline else next(styles)
        t = np.arange(0, stretch.span_s, 0.1)
        count = np.array([int(((stretch.first_s <= s) & (stretch.last_s > s)).sum()) for s in t])
        if not count.any():
            continue
        highest = max(highest, stretch.slots, int(count.max()))
        table["second"] = [round(float(s), 1) for s in t]
        table[level] = count.tolist()
        trace = line(
            level, t, count, style, mode="lines", hovertemplate=f"{level}: %{{y}} at %{{x:.1f}} s<extra></extra>"
        )
        trace["line"] = {**trace["line"], "shape": "hv"}
        traces.append(trace)
        ends.append(End(level, float(t[-1]), float(count[-1]), style))
        takeaways.append(f"{level} {count.mean():.1f} of {stretch.slots}")
    if not traces:
        return nothing_to_draw(title, "no answer was being written in this stretch", height=height)
    layout = theme.layout(
        height=height,
        margin=margin,
        xaxis=theme.axis("seconds", rangemode="normal", range=[0, table["second"][-1]]),
        yaxis=theme.axis("answers being written", range=[0, highest + 0.5]),
        annotations=end_labels(ends, (0.0, highest + 0.5), log=False, height=height - margin["t"] - margin["b"]),
    )
    alt = f"At {at}, answers being written at once on average: {', '.join(takeaways)} slots."
    return Chart(title, {"data": traces, "layout": layout}, alt, table)
