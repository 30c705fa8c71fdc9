"""The traces of a run's requests in a cassette: each one's stamps in whole microseconds, and back.

Unpacked they stand where the run's own stood and in Triton's form, so that whoever reads traces (lab/run/traced.py)
reads these too. Rounding is all that is lost; a batch is still known by the moment at which it began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from lab.measure.trace import STAMPS
from lab.run.cassette_lines import MOST_NS, MOST_ROWS, REQUEST_NS

FILE = "recorded.json"


def line(stamps: Mapping[int, Sequence[int]], block: int, model: str, origin_ns: int) -> dict[str, Any]:
    """Of one block: {request number: its stamps in ns, in the order of STAMPS}. `first` are the steps from one
    request's first stamp to the next one's, `after` has for each later stamp the steps from the one before it."""
    numbers = sorted(stamps)
    rounded = [[round((t - origin_ns) / REQUEST_NS) for t in stamps[number]] for number in numbers]
    return {
        "block": block,
        "model": model,
        "request": _steps(numbers),
        "first": _steps([row[0] for row in rounded]),
        "after": [[row[n] - row[n - 1] for row in rounded] for n in range(1, len(STAMPS))],
    }


def text(found: Mapping[str, Any]) -> tuple[int, str]:
    """(the block, its traces as Triton writes them). ValueError, KeyError or TypeError for what makes no sense."""
    block, model, columns = found["block"], found["model"], [found["request"], found["first"], *found["after"]]
    if type(block) is not int or not 0 <= block < MOST_ROWS or not isinstance(model, str):
        raise ValueError("traces of no block")
    if len(columns) != 1 + len(STAMPS) or len({len(column) for column in columns}) > 1 or len(columns[0]) > MOST_ROWS:
        raise ValueError("traces whose columns are not alike")
    if any(type(value) is not int for column in columns for value in column):
        raise ValueError("traces with what is no number")
    entries: list[dict[str, Any]] = []
    for number, first, *after in zip(*(accumulate(c) for c in columns[:2]), *columns[2:], strict=True):
        moments = [t * REQUEST_NS for t in accumulate([first, *after])]
        if max(map(abs, moments)) >= MOST_NS:
            raise ValueError("a stamp that is no time")
        timestamps = [{"name": name, "ns": t} for name, t in zip(STAMPS, moments, strict=True)]
        known = {"id": len(entries) + 1, "model_name": model, "request_id": str(number)}
        entries.append({**known, "timestamps": timestamps})
    return block, json.dumps(entries)


def _steps(values: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip([0, *values], values, strict=False)]
