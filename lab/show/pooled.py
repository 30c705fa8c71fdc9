"""Latencies of a run's cells, straight from the records: what a distribution is drawn from.

The same choice of requests as the summary's latency figures: successes that were due in the measured window, timed
from their scheduled arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lab.measure.records import OK, Requests
from lab.run.folder import RunFolder
from lab.show.grid import load_name, short_label


def latencies(
    folder: RunFolder, factor: str | None, load: str, levels: Sequence[str]
) -> dict[str, npt.NDArray[np.float64]]:
    """{level: latencies in seconds, all repeats pooled} at one load, in the words of lab.show.grid."""
    cells = [cell["factors"] for cell in folder.document["cells"]]
    table = folder.read("requests")
    found: dict[str, list[npt.NDArray[np.float64]]] = {level: [] for level in levels}
    for event in folder.events():
        if event["kind"] != "block_start" or event["role"] != "cell":
            continue
        factors = dict(cells[event["cell"]])
        level = short_label(factor, factors.pop(factor, None) if factor else None)
        if level in found and load_name(factors) == load:
            r = Requests.from_table(table, block=event["block"])
            chosen = (r.outcome == OK) & (r.due_ns >= event["measured_from_ns"]) & (r.due_ns < event["end_ns"])
            found[level].append((r.done_ns - r.due_ns)[chosen] / 1e9)
    return {level: np.concatenate(parts) if parts else np.empty(0) for level, parts in found.items()}
