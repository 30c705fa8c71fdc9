"""The formats of a run side by side at one load: speed, size, memory, quality and the step's floor, from its document.

Reads the document of lab.run.results and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.measure.formats import frontier, main_measure
from lab.measure.quality import Measure, Quality
from lab.measure.reconcile import by_name
from lab.measure.sides import Side
from lab.show.grid import Grid, middle


@dataclass(frozen=True)
class Shown:
    """One level of the judged factor at one load; None where something was not measured. `size_bytes`: weights and
    scales. `ledger`: rows of lab.measure.ledger by name. `step`: as lab.run.floors.step_dict has it."""

    level: str
    tokens_per_s: float | None
    size_bytes: float | None
    memory_bytes: float | None
    ledger: Mapping[str, Mapping[str, Any]]
    step: Mapping[str, Any] | None
    quality: Quality | None
    why_no_quality: str | None

    @property
    def main(self) -> Measure | None:
        """The measure of quality that tells most."""
        return None if self.quality is None else main_measure(self.quality)

    @property
    def loses(self) -> bool | None:
        """Whether some loss of quality is measurable; None where nothing was evaluated."""
        if self.quality is None:
            return None
        return any(m.loss_low is not None and m.loss_low > 0 for m in self.quality.measures)


def shown(document: Mapping[str, Any], grid: Grid, load: str) -> list[Shown]:
    """Every level that was measured at this load, in the order of the experiment. Of repeats the ledger is the first
    one's: later ones may run in a process that has grown before."""
    found = []
    for level, _ in grid.levels_at(load):
        cells = grid.cells_at(level, load)
        told = document["formats"].get(cells[0]["format"], {})
        rows = by_name(cells[0]["ledger"])
        parts = [(rows.get(name) or {}).get("measured_bytes") for name in ("weights", "scales")]
        found.append(
            Shown(
                level=level,
                tokens_per_s=grid.figure(level, load, "output_tokens_per_s"),
                size_bytes=None if parts[0] is None else parts[0] + (parts[1] or 0.0),
                memory_bytes=grid.figure(level, load, "memory_peak_bytes"),
                ledger=rows,
                step=cells[0]["step"],
                quality=None if told.get("quality") is None else Quality.from_dict(told["quality"]),
                why_no_quality=told.get("reason"),
            )
        )
    return found


def evaluated(document: Mapping[str, Any]) -> list[Shown]:
    """The quality of every format that a run evaluated, without speed or memory: those may not have been measured."""
    found = []
    for label, told in document["formats"].items():
        quality = None if told.get("quality") is None else Quality.from_dict(told["quality"])
        found.append(Shown(label, None, None, None, {}, None, quality, told.get("reason")))
    return found


def of_sides(sides: Mapping[str, Side]) -> list[Shown]:
    """Any measured settings as formats, by name: each with its own speed, weights, memory and quality."""
    return [
        Shown(
            level=name,
            tokens_per_s=middle(side.summaries, "output_tokens_per_s"),
            size_bytes=middle(side.summaries, "engine_weight_bytes"),
            memory_bytes=middle(side.summaries, "memory_peak_bytes"),
            ledger={},
            step=None,
            quality=side.evaluated,
            why_no_quality=side.not_evaluated,
        )
        for name, side in sides.items()
    ]


def on_frontier(formats: Sequence[Shown]) -> list[bool]:
    """Which formats no other one beats in size, speed and quality together. A loss that is not measurable is none."""
    complete = [f for f in formats if f.tokens_per_s is not None and f.size_bytes is not None and f.main is not None]
    points = [(f.tokens_per_s or 0.0, -(f.size_bytes or 0.0), -_loss(f)) for f in complete]
    best = {f.level for f, kept in zip(complete, frontier(points), strict=True) if kept}
    return [f.level in best for f in formats]


def _loss(shown: Shown) -> float:
    main = shown.main
    return main.loss if main is not None and main.loss is not None and (main.loss_low or 0.0) > 0 else 0.0
