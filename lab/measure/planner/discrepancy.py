"""What a calibrated server leaves unexplained in measured blocks, and what of that to expect at another place.

A curve over batch sizes and a queue do not know everything of a machine: which caches are warm, who shares its cores,
how stalls follow one another. So each measured block leaves a rest: batches took so many times as long as the curve
says, and the latencies' quantiles were so many times those of a replay at the block's own speed. A place (batching and
share of capacity) is expected to leave what measured places near it left: a block counts by how near it is in load, as
a normal density of NEAR of capacity and never less than FAR, since a machine that stalls at the loads that were
measured stalls at others too; in full where it batched alike, as ALIKE where it batched otherwise, and not at all where
one batches and the other does not. PRIOR blocks that left nothing are added, so that one block alone moves little.

In the words of Kennedy and O'Hagan ("Bayesian calibration of computer models", 2001) this is the model's discrepancy,
estimated apart from its parameters; what `heldout` says of a prediction is with it, and never from the block itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.measure.pace import Floats

QUANTILES = (0.5, 0.95, 0.99)
"""Of latency, at which rests are taken; between them they are interpolated, beyond them they go on."""
NEAR = 0.15
FAR = 0.05
ALIKE = 0.3
PRIOR = 1.0
UNKNOWN = (np.nan,) * len(QUANTILES)
FULL = 1.0
"""The load of a closed loop."""
BESIDE = 3
"""Blocks before and after one that tell its pace."""
ROUNDS = 5
"""Times that pace and place are taken out of each other."""


@dataclass(frozen=True)
class Place:
    """What requests share a batch by, and the share of capacity that is asked."""

    max_batch_size: int
    delay_s: float
    load: float


@dataclass(frozen=True)
class Rest:
    """What a block left, natural logarithms of measured ÷ modelled; NaN: not known. `work`: of how long batches took;
    `latency`: of each of QUANTILES."""

    place: Place
    work: float
    latency: tuple[float, ...] = UNKNOWN


def near(at: Sequence[Place], of: Sequence[Place]) -> Floats:
    """How much the blocks `of` (columns) count at the places `at` (rows), 0 to 1."""
    (most, delay_s, load), (mosts, delays_s, loads) = (
        np.array([(p.max_batch_size, p.delay_s, p.load) for p in places], float).reshape(-1, 3).T for places in (at, of)
    )
    same = (most[:, None] == mosts) & ((delay_s[:, None] == delays_s) | (mosts == 1))
    kind = (most[:, None] > 1) == (mosts > 1)
    close = np.maximum(np.exp(-(((load[:, None] - loads) / NEAR) ** 2) / 2), FAR)
    return np.asarray(np.where(same, 1.0, np.where(kind, ALIKE, 0.0)) * close, float)


def mean(weights: Floats, values: Floats) -> Floats:
    """The mean of the known values by each row of weights, PRIOR zeros added."""
    known = ~np.isnan(values)
    return np.asarray(weights[:, known] @ values[known] / (weights[:, known].sum(axis=1) + PRIOR), float)


def expected(rests: Sequence[Rest], place: Place) -> tuple[float, Floats]:
    """(work, latency at QUANTILES) to expect there."""
    if not rests:
        return 0.0, np.zeros(len(QUANTILES))
    weights = near([place], [rest.place for rest in rests])
    told = np.array([(rest.work, *rest.latency) for rest in rests], float)
    found = [float(mean(weights, column)[0]) for column in told.T]
    return found[0], np.array(found[1:])


def corrected(latency_s: Floats, latency: Floats) -> Floats:
    """What the latencies become when each of their quantiles is exp(`latency`) times as long, in their order."""
    if not latency.any() or not len(latency_s):
        return latency_s
    order = np.argsort(latency_s, kind="stable")
    rank = (np.arange(len(order)) + 0.5) / len(order)
    moved = np.empty_like(latency_s)
    moved[order] = np.maximum.accumulate(latency_s[order] * np.exp(np.interp(rank, QUANTILES, latency)))
    return moved


def paces(off: Floats, places: Sequence[Place]) -> Floats:
    """Of blocks in the order they ran, how much longer than usual everything took just then: the part of `off` (log of
    how many times as long as modelled; NaN: not known) that neighbours in time share, the part that neighbours in place
    share taken out. Logarithms, 0 on average."""
    weights, rest = near(places, places), np.zeros(len(off))
    pace = np.zeros(len(off))
    for _ in range(ROUNDS):
        left = off - rest
        pace = np.array([_mean(left[max(0, n - BESIDE) : n + BESIDE + 1]) for n in range(len(off))])
        pace -= pace.mean()
        rest = mean(weights, off - pace)
    return pace


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0
