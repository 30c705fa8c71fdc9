"""A machine's noise passport: how much each figure moves when nothing is changed.

The same setting is measured again and again, loaded anew each time (an A/A run). What a figure then varies by is what
this machine, its neighbours and the sampling of one block do to it; a difference between two settings that is not
larger may be just that. The floor for two sides of r repeats is t × s × √(2 / r), s the standard deviation of the
logarithm over n repeats and t Student's with n - 1 degrees of freedom: 95 of 100 comparisons of equals fall below it.

A floor holds for blocks as long as those it was taken from; longer ones have less. Knows no machine and no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from lab.measure.compare import Effect, student
from lab.measure.summary import Summary
from lab.measure.words import format_fraction, format_metric, metric_label

CLOSED = ("throughput_rps", "output_tokens_per_s")
"""Taken from the closed loop; the others from the open one."""
OPEN = (
    "latency_mean_s",
    "latency_p50_s",
    "latency_p95_s",
    "latency_p99_s",
    "service_mean_s",
    "service_p50_s",
    "goodput_rps",
    "queue_mean_s",
    "compute_mean_s",
    "memory_peak_bytes",
    "cpu_mean_fraction",
)
LIKE = {"slo_attainment_fraction": "goodput_rps", "good_tokens_per_s": "goodput_rps"}
"""Figures that were not taken and move as another one does."""

BUSY = 0.25
"""A machine whose throughput alone moves by more is not quiet."""

Standing = Literal["real", "within noise", "none"]


@dataclass(frozen=True)
class Floor:
    """One metric: `sd` of its logarithm over `n` repeats, around `typical`."""

    metric: str
    typical: float
    sd: float
    n: int

    def fraction(self, repeats: int = 1) -> float:
        """The relative difference below which two sides of that many repeats may be equal."""
        return math.exp(student(self.n - 1) * self.sd * math.sqrt(2 / max(repeats, 1))) - 1


@dataclass(frozen=True)
class Noise:
    """`fingerprint` is the machine's (lab/run/passport.py), `block_s` what each repeat measured."""

    fingerprint: str
    created_utc: str
    model: str
    block_s: float
    floors: Mapping[str, Floor]

    def floor(self, metric: str, repeats: int = 1) -> float | None:
        """None where the passport does not know the metric."""
        found = self.floors.get(LIKE.get(metric, metric))
        return None if found is None else found.fraction(repeats)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "floors": {name: asdict(floor) for name, floor in self.floors.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Noise:
        floors = {name: Floor(**floor) for name, floor in data["floors"].items()}
        return cls(**{**data, "floors": floors})


def floors(closed: Sequence[Summary], open_loop: Sequence[Summary]) -> dict[str, Floor]:
    """From the repeats of one setting under two loads. A metric that some repeat lacks, or that is zero, has none."""
    found = {}
    for metrics, summaries in ((CLOSED, closed), (OPEN, open_loop)):
        for metric in metrics:
            values = [getattr(summary, metric) for summary in summaries]
            if len(values) < 2 or any(not value for value in values):
                continue
            logs = np.log([float(value) for value in values])
            found[metric] = Floor(metric, float(np.exp(logs.mean())), float(np.std(logs, ddof=1)), len(values))
    return found


def standing(effect: Effect, noise: Noise | None, repeats: int) -> Standing:
    """ "real": told apart and beyond the floor; "within noise": told apart, and no larger than equals may differ here;
    "none": not told apart, or nothing known."""
    floor = None if noise is None else noise.floor(effect.metric, repeats)
    if effect.verdict not in ("higher", "lower") or floor is None or not effect.ratio:
        return "none"
    return "real" if abs(math.log(effect.ratio)) > math.log1p(floor) else "within noise"


def told(effect: Effect, noise: Noise | None, repeats: int) -> str:
    """A sentence on an effect that is told apart, and yet no larger than this machine's noise; "" for any other."""
    if noise is None or standing(effect, noise, repeats) != "within noise":
        return ""
    floor = noise.floor(effect.metric, repeats)
    return (
        f"Mind the noise: two equal settings differ by up to {format_fraction(floor)} in {metric_label(effect.metric)} "
        f"on this machine (noise passport of {noise.created_utc[:10]})."
    )


def doubt(noise: Noise) -> str:
    """Why the passport is worth little; "" where it is worth something."""
    floor = noise.floor("throughput_rps")
    if floor is None or floor <= BUSY:
        return ""
    return (
        f"Equal repeats differed by up to {format_fraction(floor)} in throughput: the machine was busy with something "
        "else. Take the passport again when it is quiet."
    )


def table(noise: Noise) -> dict[str, list[Any]]:
    """The floors, for a terminal and a page."""
    rows = list(noise.floors.values())
    return {
        "figure": [metric_label(f.metric) for f in rows],
        "typical": [format_metric(f.metric, f.typical) for f in rows],
        "one repeat": [f"± {format_fraction(f.fraction(1))}" for f in rows],
        "three repeats": [f"± {format_fraction(f.fraction(3))}" for f in rows],
        "repeats measured": [f.n for f in rows],
    }
