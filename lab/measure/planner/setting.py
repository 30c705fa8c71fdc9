"""What is asked of a calibrated model, and what of the measured blocks it is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.measure.planner import heldout
from lab.measure.planner.accelerators import Accelerator
from lab.measure.planner.calibration import Measured
from lab.measure.planner.queueing import Routing
from lab.spec import Precision


@dataclass(frozen=True)
class Setting:
    """`rate_rps`: of all replicas together. None leaves a field as the run's model has it; a `delay_s` has no meaning
    for batches of 1 and for a language model."""

    rate_rps: float
    replicas: int = 1
    max_batch_size: int | None = None
    delay_s: float | None = None
    precision: Precision | None = None
    accelerator: Accelerator | None = None
    routing: Routing = "round_robin"


@dataclass(frozen=True)
class Ranges:
    """What was measured: requests a second of one server, the largest batch that was executed (answers in a step), the
    settings (calibration's `setting` of a model) and precisions."""

    rates_rps: tuple[float, float]
    largest_batch: float
    settings: frozenset[tuple[object, ...]]
    precisions: tuple[Precision, ...]


@dataclass(frozen=True)
class Point:
    """A measured block in a few figures; `setting` as calibration's of its model."""

    label: str
    setting: tuple[object, ...]
    precision: Precision
    offered_rps: float | None
    served_rps: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None

    @classmethod
    def of(cls, block: Measured) -> Point:
        found = block.summary
        return cls(
            block.label,
            heldout.setting(block.model),
            block.model.precision,
            found.offered_rps,
            found.throughput_rps,
            found.latency_p50_s,
            found.latency_p95_s,
            found.latency_p99_s,
        )


def at_rate(setting: Setting, rate_rps: float, replicas: int | None = None) -> Setting:
    """The same setting at another rate, with as many replicas or so many."""
    return replace(setting, rate_rps=rate_rps, replicas=replicas or setting.replicas)
