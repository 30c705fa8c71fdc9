"""A run whose factors all have two levels, as a factorial design: main effects and interactions of its figures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from lab.measure.factorial import Factorial, Levels, factorial, is_factorial, told
from lab.measure.levels import same
from lab.measure.summary import Summary
from lab.spec import ClosedLoop, Experiment, plain


class Measured(Protocol):
    """A block of a run: which cell it was, and its figures."""

    @property
    def cell(self) -> int: ...

    @property
    def summary(self) -> Summary: ...


CLOSED = ("throughput_rps", "latency_p50_s", "memory_peak_bytes")
OPEN = ("goodput_rps", "latency_p50_s", "latency_p99_s", "memory_peak_bytes")
GENERATED = ("output_tokens_per_s", "ttft_p50_s", "itl_mean_s", "memory_peak_bytes")


def design(experiment: Experiment, blocks: Sequence[Measured]) -> dict[str, Any] | None:
    """{"text", "figures": [one a metric that every cell has]}; None for an experiment that is no factorial, or that
    judges one factor alone. Text and figures are empty until every cell is measured."""
    if experiment.judge is not None or not is_factorial(experiment.factors):
        return None
    factors: dict[str, Levels] = {path: (levels[0], levels[1]) for path, levels in experiment.factors.items()}
    found = [_of(experiment, factors, blocks, metric) for metric in _metrics(experiment)]
    whole = [figure for figure in found if figure is not None]
    return {"text": told(whole[0]) if whole else "", "figures": [_plain(figure) for figure in whole]}


def _metrics(experiment: Experiment) -> tuple[str, ...]:
    if experiment.model.family == "llm":
        return GENERATED
    return CLOSED if isinstance(experiment.workload.arrival, ClosedLoop) else OPEN


def _of(
    experiment: Experiment, factors: dict[str, Levels], blocks: Sequence[Measured], metric: str
) -> Factorial | None:
    cells = experiment.cells()
    values: dict[tuple[int, ...], list[float | None]] = {}
    for block in blocks:
        levels = cells[block.cell].factors
        at = tuple(int(not same(levels[path], low)) for path, (low, _) in factors.items())
        forbidden = any(problem.forbids_verdict for problem in block.summary.problems)
        values.setdefault(at, []).append(None if forbidden else getattr(block.summary, metric))
    return factorial(factors, values, metric)


def _plain(found: Factorial) -> dict[str, Any]:
    """As JSON has it: means as a list in the order of the cells."""
    cells = list(itertools.product((0, 1), repeat=len(found.factors)))
    return {
        "metric": found.metric,
        "factors": {path: [plain(level) for level in levels] for path, levels in found.factors.items()},
        "means": [found.means[cell] for cell in cells],
        "repeats": found.repeats,
        "contrasts": [{**asdict(c), "factors": list(c.factors)} for c in found.contrasts],
    }
