"""Percentiles: how they are interpolated, when there are enough samples for one, and how far it may be off.

Linear interpolation between order statistics (numpy's default, type 7 of Hyndman and Fan). A tail needs samples: the
counts are MLPerf LoadGen's, the fewest successes after which "p % are below x" holds with 99 % confidence when none
was above (mlcommons/inference, early stopping). The interval is distribution-free: which two samples of the sorted
list bracket the true percentile, from the binomial distribution. It holds for independent samples; requests that
waited in one queue are not, which is what `effective_n` is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def needed(p: float) -> int:
    """Fewest samples for the percentile `p` (a fraction): 7, 44, 90, 459, 4603 for .5, .9, .95, .99, .999."""
    return math.ceil(math.log(0.01) / math.log(p))


def percentile(values: npt.ArrayLike, p: float) -> float | None:
    """The percentile `p` (a fraction, 0 to 1) of values in any order; None of no values."""
    return percentile_of_sorted(np.sort(np.asarray(values)), p)


def percentile_of_sorted(ordered: Numbers, p: float) -> float | None:
    """The same for values that ascend already."""
    if len(ordered) == 0:
        return None
    position = p * (len(ordered) - 1)
    below = min(int(position), len(ordered) - 1)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return min(low + (high - low) * (position - below), high)  # rounding must not lift it above the larger neighbour


def ordered_at(values: npt.NDArray[np.int64], quantiles: Iterable[float]) -> npt.NDArray[np.int64]:
    """The values with those in their sorted place that `percentile_of_sorted` reads for these quantiles, and the
    largest last; a third of the time of sorting a million."""
    n = len(values)
    if n == 0:
        return values
    below = [min(int(p * (n - 1)), n - 1) for p in quantiles]
    return np.partition(values, sorted({n - 1, *below, *(min(rank + 1, n - 1) for rank in below)}))


def interval(
    ordered: Numbers, p: float, confidence: float = 0.95, effective_n: float | None = None
) -> tuple[float | None, float | None]:
    """(low, high) of the percentile `p` of the population that the ascending values were drawn from.

    A side is None when there are too few samples to bound it. `effective_n`: how many independent samples the values
    are worth (at most their count, the default)."""
    n = len(ordered)
    worth = n if effective_n is None else min(n, int(effective_n))
    if worth == 0:
        return None, None
    below, above = _ranks(worth, p, (1 - confidence) / 2)
    low = ordered[math.ceil(below / worth * n) - 1] if below >= 1 else None
    high = ordered[math.ceil(above / worth * n) - 1] if above <= worth else None
    return (None if low is None else float(low)), (None if high is None else float(high))


def _ranks(n: int, p: float, tail: float) -> tuple[int, int]:
    """1-based ranks (l, u) with P(K < l) <= tail and P(K >= u) <= tail for K ~ Binomial(n, p), the number of samples
    below the percentile. 0 and n + 1 mean that no sample is low or high enough."""
    # The distribution is computed where it has mass, from its mode outwards: exact for few samples, quick for 10^6.
    reach = math.ceil(12 * math.sqrt(n * p * (1 - p)) + 30)
    mode = min(int((n + 1) * p), n)
    first, last = max(0, mode - reach), min(n, mode + reach)
    k = np.arange(first, last, dtype=np.float64)
    steps = np.log((n - k) / (k + 1)) + math.log(p / (1 - p))  # log of P(k + 1) / P(k)
    log_mass = np.concatenate([[0.0], np.cumsum(steps)])
    mass = np.exp(log_mass - log_mass.max())
    cumulated = np.cumsum(mass) / mass.sum()  # P(K <= first), P(K <= first + 1), …
    # l: the largest with P(K <= l - 1) <= tail. u: the smallest with P(K <= u - 1) >= 1 - tail.
    below = first + int(np.searchsorted(cumulated, tail, side="right"))
    above = first + int(np.searchsorted(cumulated, 1 - tail, side="left")) + 1
    return below, above
