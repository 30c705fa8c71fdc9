"""`lab runs`: the runs that are kept, what each is of, and how it ended."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lab.commands.terminal import add_json, print_json

if TYPE_CHECKING:
    from lab.run.folder import RunInfo

HEADER = ("run", "experiment", "model", "depth", "state", "begun (UTC)")
WIDTH = 100
"""Of a line; a run's id is never cut, since commands ask for it."""
LEAST = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.run.folder import runs

    found = runs()
    if options.json:
        print_json({"runs": [{"run": r.run_id, "state": r.state, "created_utc": r.created_utc} for r in found]})
    elif found:
        print("\n".join(lines(found)))
    else:
        print("No run is kept here yet; `python -m lab run batching --quick` makes one.")
    return 0


def lines(found: Sequence[RunInfo]) -> list[str]:
    """A table of at most WIDTH characters a line. An id that leaves too little of it has a line to itself."""
    from lab.run.columns import aligned

    rows = [_row(info) for info in found]
    longest = WIDTH - sum(max(len(row[n]) for row in (HEADER, *rows)) for n in (3, 4, 5)) - 2 * LEAST - 10
    own_line = [len(row[0]) > longest for row in rows]
    shown = [["" if alone else row[0], *row[1:]] for row, alone in zip(rows, own_line, strict=True)]
    room = WIDTH - 10 - sum(max(len(row[n]) for row in (HEADER, *shown)) for n in (0, 3, 4, 5))
    model = min(max(len(row[2]) for row in (HEADER, *shown)), max(LEAST, room // 2))
    cut = [[row[0], _cut(row[1], room - model), _cut(row[2], model), *row[3:]] for row in (HEADER, *shown)]
    head, *others = aligned(cut)
    out = [head]
    for row, alone, line in zip(rows, own_line, others, strict=True):
        out += [row[0], line] if alone else [line]
    return out


def _row(info: RunInfo) -> list[str]:
    experiment = _object(info.document.get("experiment"))
    model = _object(experiment.get("model"))
    depth = "" if not experiment else "quick" if info.document.get("quick") else "whole"
    begun = info.created_utc[:16].replace("T", " ")
    return [info.run_id, str(experiment.get("id", "")), str(model.get("name", "")), depth, info.state, begun]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
