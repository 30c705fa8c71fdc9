"""What formats cost, as lines for a terminal: memory, quality and the steps' floors, beside the speeds of text.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.measure.formats import is_baseline
from lab.measure.quality import Quality
from lab.measure.reconcile import by_name
from lab.measure.words import NOT_MEASURED, format_bytes, format_fraction, format_seconds
from lab.run import quality_text
from lab.run.columns import aligned
from lab.spec import ModelSpec, parse

PARTS = {
    "weights": "weights",
    "scales": "scales",
    "under load": "under load",
    "runtime": "runtime",
    "libraries": "libraries",
    "in all": "in all",
}
"""Rows of the ledger, and their column."""
LIMITS = {"memory": "reading", "compute": "arithmetic", None: "unknown"}


def lines(document: Mapping[str, Any]) -> list[str]:
    """Nothing for a run of the baseline alone, whose answers are what others are compared with."""
    formats, cells = document.get("formats", {}), document["cells"]
    if all(is_baseline(parse(ModelSpec, told["model"])) for told in formats.values()):
        return []
    parts = [_memory(cells), _quality(formats)]
    if len(formats) > 1:
        parts += [_steps(cells), _beside(cells)]
    return [line for part in parts if part for line in ("", *part)]


def _memory(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each format where it took most."""
    most: dict[str, dict[str, Mapping[str, Any]]] = {}
    for cell in cells:
        rows = by_name(cell.get("ledger"))
        if rows and _whole(rows) > _whole(most.get(cell["format"], {})):
            most[cell["format"]] = rows
    if not most:
        return []
    found = [["memory, measured", *PARTS.values(), "predicted", "off by"]]
    for label, rows in most.items():
        whole = rows["in all"]
        found.append(
            [
                label,
                *(
                    format_bytes(rows[name]["measured_bytes"]) if rows[name]["measured_bytes"] else "-"
                    for name in PARTS
                ),
                format_bytes(whole["predicted_bytes"]),
                NOT_MEASURED if whole["error_fraction"] is None else format_fraction(whole["error_fraction"]),
            ]
        )
    return aligned(found)


def _whole(rows: Mapping[str, Any]) -> float:
    return (rows.get("in all") or {}).get("measured_bytes") or 0.0


def _quality(formats: Mapping[str, Mapping[str, Any]]) -> list[str]:
    known = [Quality.from_dict(told["quality"]) for told in formats.values() if told["quality"]]
    unknown = [f"{label}: quality {told['reason']}" for label, told in formats.items() if not told["quality"]]
    return (quality_text.table(known) if known else []) + unknown


def _steps(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        ["a step of", "answers", "reads", "reading takes", "products take", "measured", "of the floor", "limited by"]
    ]
    for cell in cells:
        if (step := cell.get("step")) is not None:
            rows.append(
                [
                    cell["format"],
                    f"{step['batch']:.1f}",
                    format_bytes(step["read_bytes"]),
                    format_seconds(step["memory_floor_s"]),
                    format_seconds(step["compute_floor_s"]),
                    format_seconds(step["step_s"]),
                    format_fraction(step["fraction"]),
                    LIMITS[step["limiting"]],
                ]
            )
    return aligned(rows) if len(rows) > 1 else []


def _beside(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first repeat's sentences."""
    told = [cell for cell in cells if cell.get("beside") and cell["role"] == "cell" and cell["repeat"] == 0]
    return [f"{cell['step']['batch']:.0f} at a time: {cell['beside']}" for cell in told]
