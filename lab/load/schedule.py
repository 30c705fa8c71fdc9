"""When requests arrive: a pure function of the arrival process, the duration and a seed.

Arrivals are drawn, never rescaled to hit the asked rate exactly: a Poisson process keeps Poisson counts, so a
10-second run at 50/s has 500 ± 22 arrivals, and says so in `planned`. Constant is a metronome without randomness.
Knows no clock: offsets are relative to a start that somebody else picks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.errors import InputError
from lab.measure.records import Int64s
from lab.spec import Arrival, ClosedLoop, Constant, Gamma, Trace


def arrivals(arrival: Arrival, duration_s: float, seed: int) -> Int64s:
    """Offsets in ns from the start of the block, ascending, in [0, duration_s).

    Poisson gaps are exponential with mean 1/rate; Gamma gaps have shape 1/cv² and the same mean; both start with a
    gap. Constant arrivals are at 0, 1/rate, 2/rate … A Trace is cut at the duration. InputError for a closed loop
    (its users decide when they ask), for a rate that is still a fraction, and for a trace that cannot be read.
    """
    if isinstance(arrival, Trace):
        offsets_s = _trace(arrival.path)
    elif isinstance(arrival, ClosedLoop):
        raise InputError("arrival closed: users decide when they ask, so there is no schedule")
    elif arrival.rate_rps is None:
        raise InputError(f"arrival {arrival.kind}: saturation_fraction must be turned into rate_rps first")
    elif isinstance(arrival, Constant):
        # One more than fits: the product may round down to an integer that the last arrival is still below.
        offsets_s = np.arange(int(arrival.rate_rps * duration_s) + 2) / arrival.rate_rps
    else:
        cv = arrival.cv if isinstance(arrival, Gamma) else 1.0
        offsets_s = _renewals(arrival.rate_rps, cv, duration_s, np.random.default_rng(seed))
    offsets_ns = np.rint(offsets_s * 1e9).astype(np.int64)
    return offsets_ns[: np.searchsorted(offsets_ns, round(duration_s * 1e9))]


def share(total: int, worker: int, workers: int) -> int:
    """How many of `total` things worker `worker` of `workers` has when they are dealt out in turn."""
    return (total - worker + workers - 1) // workers


def _renewals(rate_rps: float, cv: float, duration_s: float, random: np.random.Generator) -> np.ndarray:
    """Arrival times with independent gamma gaps, drawn until they pass the duration."""
    shape = 1 / cv**2
    mean = rate_rps * duration_s
    chunk = int(mean + 4 * max(cv, 1.0) * mean**0.5) + 16
    times = np.cumsum(random.gamma(shape, 1 / (shape * rate_rps), chunk))
    while times[-1] < duration_s:
        times = np.concatenate([times, times[-1] + np.cumsum(random.gamma(shape, 1 / (shape * rate_rps), chunk))])
    return times


def _trace(path: str) -> np.ndarray:
    try:
        lines = Path(path).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"arrival.path {path!r}: cannot be read ({error})") from None
    try:
        times = np.array([float(line) for line in lines])
    except ValueError as error:
        raise InputError(f"arrival.path {path!r}: {error}; allowed: one number of seconds a line") from None
    if not len(times) or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any():
        raise InputError(f"arrival.path {path!r}: allowed is one arrival in seconds a line, ascending from 0")
    return times
