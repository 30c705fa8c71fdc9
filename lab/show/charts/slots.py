"""Who shares the steps of a language model: the slots of its batch over time.

A slot is a place in the batch. Where an answer ends and nothing begins in its place although a request waits, the slot
is wasted: that is what a static batch costs while its longest answer goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.measure.words import format_fraction, plural
from lab.show import theme
from lab.show.charts.figure import Chart, append, floats, nothing_to_draw

Floats = npt.NDArray[np.float64]

GRAIN_HZ = 50


@dataclass(frozen=True)
class Stretch:
    """Requests in a stretch of `span_s` seconds: when each was due, its first and its last token in seconds from the
    stretch's beginning, and the tokens it was answered. `slots`: how many the batch has."""

    span_s: float
    slots: int
    due_s: Floats
    first_s: Floats
    last_s: Floats
    tokens: npt.NDArray[np.int64]

    def placed(self) -> list[tuple[int, int]]:
        """(slot, request) of every answer that was written in the stretch, slot by slot in order of time. An answer
        takes the first slot that is free when its first token comes; more than `slots` are needed only where the
        stamps of an ending and a beginning answer cross."""
        written = (self.tokens > 0) & (self.last_s > 0) & (self.first_s < self.span_s)
        free_at: list[float] = []
        found: list[tuple[int, int]] = []
        for i in np.flatnonzero(written)[np.argsort(self.first_s[written], kind="stable")]:
            slot = next((s for s, at in enumerate(free_at) if at <= self.first_s[i]), len(free_at))
            if slot == len(free_at):
                free_at.append(0.0)
            free_at[slot] = float(self.last_s[i])
            found.append((slot, int(i)))
        return sorted(found, key=lambda pair: pair[0])

    @property
    def wasted_fraction(self) -> float:
        """The share of the slots' time in which a slot was empty while a request waited for one."""
        t = np.linspace(0, self.span_s, round(self.span_s * GRAIN_HZ), endpoint=False)[:, None]
        waiting = ((self.due_s <= t) & (t < self.first_s)).sum(axis=1)
        empty = self.slots - ((self.first_s <= t) & (t < self.last_s)).sum(axis=1)
        return float(np.minimum(waiting, np.maximum(empty, 0)).mean()) / self.slots


def slots(stretch: Stretch, level: str, at: str) -> Chart:
    """Time (x) against the slots of the batch (y), a bar an answer from its first token to its last."""
    title = f"The batch, slot by slot: {level}"
    placed = stretch.placed()
    if not placed:
        return nothing_to_draw(title, "no answer was being written in this stretch", height=300)
    rows = max(stretch.slots, placed[-1][0] + 1)
    table: dict[str, list[Any]] = {"slot": [], "first token, s": [], "last token, s": [], "tokens": []}
    for slot, i in placed:
        append(table, slot + 1, float(stretch.first_s[i]), float(stretch.last_s[i]), int(stretch.tokens[i]))
    begin, end = (np.clip(table[name], 0, stretch.span_s) for name in ("first token, s", "last token, s"))
    turns = [table["slot"][:i].count(slot) for i, slot in enumerate(table["slot"])]
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "answers",
        "y": table["slot"],
        "base": floats(begin),
        "x": floats(end - begin),
        "customdata": table["tokens"],
        # Neighbours in a slot differ in shade, so that one answer's end and the next one's beginning are seen.
        "marker": {"color": "@blue", "opacity": [1.0 if turn % 2 == 0 else 0.6 for turn in turns]},
        "hovertemplate": "slot %{y}<br>%{customdata} tokens in %{x:.2f} s<extra></extra>",
    }
    layout = theme.layout(
        height=84 + 26 * rows,
        bargap=0.2,
        margin={"l": 56, "r": 20, "t": 8, "b": 52},
        xaxis=theme.axis("seconds", range=[0, stretch.span_s], rangemode="normal"),
        yaxis=theme.axis("slot", range=[rows + 0.5, 0.5], rangemode="normal", dtick=1, showgrid=False, ticks=""),
    )
    wasted = format_fraction(stretch.wasted_fraction)
    alt = (
        f"At {at}, {level}: {plural(len(placed), 'answer')} in {stretch.span_s:g} s on "
        f"{plural(stretch.slots, 'slot')}; {wasted} of their time they were empty while a request waited."
    )
    note = f"**{wasted}** of the slots' time: empty, although a request waited"
    return Chart(title, {"data": [trace], "layout": layout}, alt, table, (note,))
