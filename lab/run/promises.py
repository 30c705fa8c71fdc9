"""What each way of serving makes of the machine, and which promise it keeps, from a run's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.measure import patterns
from lab.run.blocks import BlockResult
from lab.spec import Experiment, plain


def promised(experiment: Experiment, blocks: Sequence[BlockResult]) -> dict[str, Any] | None:
    """None where the experiment compares no such ways."""
    if experiment.judge is None:
        return None
    served = []
    for index, cell in enumerate(experiment.cells()):
        own = [b for b in blocks if b.role == "cell" and b.cell == index]
        level = plain(cell.factors.get(experiment.judge.factor))
        pairs = [(b.requests, b.window) for b in own]
        served.append(patterns.Served(cell.workload, level, pairs, [b.summary for b in own]))
    return patterns.patterns(served, experiment.judge.factor)
