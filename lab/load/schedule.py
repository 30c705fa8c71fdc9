"""When requests arrive: a pure function of the arrival process, the duration and a seed.

Arrivals are drawn, never rescaled to hit the asked rate exactly: a Poisson process keeps Poisson counts, so a
10-second run at 50/s has 500 ± 22 arrivals, and says so in `planned`. Constant is a metronome without randomness.
A long block has more arrivals than anybody wants to hold, or to wait for, so they can be had a chunk at a time; the
chunks of a seed are the pieces of one and the same schedule. Knows no clock: offsets are relative to a start that
somebody else picks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lab import own_file
from lab.errors import InputError
from lab.measure.records import Int64s
from lab.spec import Arrival, ClosedLoop, Constant, Gamma, Steps, Trace

CHUNK = 4096
"""Most arrivals drawn at once, but for a trace, which is read whole: about 0.1 ms of work."""
LARGEST_TRACE = 256 * 2**20
"""Bytes of a trace's file."""
HIGHEST_RPS = 1_000_000
"""More than any client here can send: each request costs a worker some tens of microseconds."""


def arrivals(arrival: Arrival, duration_s: float, seed: int) -> Int64s:
    """Offsets in ns from the start of the block, ascending, in [0, duration_s): all `chunks` in one."""
    return np.concatenate(list(chunks(arrival, duration_s, seed)))


def chunks(arrival: Arrival, duration_s: float, seed: int) -> Iterator[Int64s]:
    """Offsets in ns from the start of the block, ascending, in [0, duration_s), each chunk drawn when it is asked for.

    Poisson gaps are exponential with mean 1/rate; Gamma gaps have shape 1/cv² and the same mean; both start with a
    gap. Constant arrivals are at 0, 1/rate, 2/rate … A Trace is cut at the duration. InputError, at once, for a closed
    loop (its users decide when they ask), for a rate that is still a fraction or out of bounds, and for a trace that
    cannot be read.
    """
    if isinstance(arrival, Trace):
        all_s: Iterator[np.ndarray] = iter([_trace(arrival.path)])
    elif isinstance(arrival, ClosedLoop):
        raise InputError("arrival closed: users decide when they ask, so there is no schedule")
    elif isinstance(arrival, Steps):
        check_rate(max(arrival.rates_rps))
        all_s = _stairs(arrival.rates_rps, arrival.step_s, np.random.default_rng(seed))
    elif arrival.rate_rps is None:
        raise InputError(f"arrival {arrival.kind}: saturation_fraction must be turned into rate_rps first")
    else:
        check_rate(arrival.rate_rps)
        if isinstance(arrival, Constant):
            all_s = _metronome(arrival.rate_rps)
        else:
            cv = arrival.cv if isinstance(arrival, Gamma) else 1.0
            all_s = _renewals(arrival.rate_rps, cv, np.random.default_rng(seed))
    return before(round(duration_s * 1e9), (np.rint(part_s * 1e9).astype(np.int64) for part_s in all_s))


def before(end_ns: int, parts: Iterable[Int64s]) -> Iterator[Int64s]:
    """The ascending arrivals of `parts` below `end_ns`; no further part is drawn than the one that passes it."""
    for part in parts:
        if len(part) and part[-1] >= end_ns:
            yield part[: np.searchsorted(part, end_ns)]
            return
        yield part


def check_rate(rate_rps: float) -> None:
    """InputError for a rate that nobody could send."""
    if not 0 < rate_rps <= HIGHEST_RPS:
        raise InputError(f"rate_rps {rate_rps:g}: allowed is above 0, up to {HIGHEST_RPS:,} requests a second")


def share(total: int, worker: int, workers: int) -> int:
    """How many of `total` things worker `worker` of `workers` has when they are dealt out in turn."""
    return (total - worker + workers - 1) // workers


def _metronome(rate_rps: float) -> Iterator[np.ndarray]:
    for first in itertools.count(0, CHUNK):
        yield np.arange(first, first + CHUNK) / rate_rps


def _renewals(rate_rps: float, cv: float, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Arrival times in s with independent gamma gaps, without end."""
    shape = 1 / cv**2
    last_s = 0.0
    while True:
        gaps_s = random.gamma(shape, 1 / (shape * rate_rps), CHUNK)
        gaps_s[0] += last_s  # before the sum, so that chunks add up in the order of one long sum, to the last bit
        times_s = np.cumsum(gaps_s)
        last_s = times_s[-1]
        yield times_s


def _stairs(rates_rps: Sequence[float], step_s: float, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Arrival times in s, step by step without end: in each as many as Poisson draws, evenly spread."""
    for number in itertools.count():
        rate_rps = rates_rps[number % len(rates_rps)]
        yield (number + np.sort(random.random(random.poisson(rate_rps * step_s)))) * step_s


def _trace(path: str) -> np.ndarray:
    lines = own_file.read_text(Path(path), "arrival.path", LARGEST_TRACE).split()
    try:
        times = np.array([float(line) for line in lines])
    except ValueError as error:
        raise InputError(f"arrival.path {path!r}: {error}; allowed: one number of seconds a line") from None
    if not len(times) or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any():
        raise InputError(f"arrival.path {path!r}: allowed is one arrival in seconds a line, ascending from 0")
    return times
