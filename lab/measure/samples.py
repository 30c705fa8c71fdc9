"""Which records stand behind a summary's field, so that two settings can be compared sample by sample.

A rate counts what arrived over the window's seconds, a fraction is a mean of ones and zeros, and a time has one value
an answer (a gap between chunks has one a gap). Every sample carries the moment by which it belongs to the window or
not: that of its end for what is counted, that of its scheduled arrival for what is timed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from lab.errors import InputError
from lab.measure.objective import good
from lab.measure.pace import Floats, Mask, arrivals, gaps, pace
from lab.measure.records import OK, Int64s, Requests
from lab.spec import Slo

Sample = tuple[Int64s, Floats]
"""(perf_counter_ns, value) of each, in any order. Times are in seconds."""


@dataclass(frozen=True)
class Measure:
    """How samples become a metric; `slo` is given where they depend on one. `measured`: whether none at all means that
    there were none, and not that nobody counted."""

    kind: Literal["rate", "fraction", "mean", "percentile"]
    sample: Callable[[Requests], Sample]
    p: float = 0.5
    slo: Slo | None = None
    measured: Callable[[Requests], bool] = lambda requests: True

    @property
    def of_time(self) -> bool:
        return self.kind in ("mean", "percentile")


TIMED = re.compile(r"(latency|service|ttft|itl|icl|ntpot)_(?:mean|p([1-9][0-9]{1,4}))_s")


def is_time(metric: str) -> bool:
    """Whether a Summary field is a time that records tell: one that is better when it is lower."""
    return TIMED.fullmatch(metric) is not None


def is_compared_by_sample(metric: str) -> bool:
    """Whether the records behind a Summary field can be compared; other fields exist once a repeat."""
    return metric in COUNTED or metric in JUDGED or is_time(metric)


def measure_of(metric: str, slo: Slo | None) -> Measure:
    """The measure behind a Summary field's name; InputError where there is none."""
    if metric in COUNTED:
        return COUNTED[metric]
    if metric in JUDGED:
        if slo is None:
            raise InputError(f"metric {metric!r} needs an objective (slo), none is given")
        kind, sample = JUDGED[metric]
        return Measure(kind, partial(sample, slo=slo), slo=slo)
    match = TIMED.fullmatch(metric)
    if match is None:
        allowed = ", ".join((*COUNTED, *JUDGED, "latency_mean_s", "ttft_p99_s"))
        raise InputError(f"metric {metric!r} can't be compared sample by sample; allowed: {allowed} and the like")
    if match[2] is None:
        return Measure("mean", TIMES[match[1]])
    return Measure("percentile", TIMES[match[1]], p=int(match[2]) / 10 ** len(match[2]))


def latency(requests: Requests) -> Sample:
    """From the scheduled arrival to the end, of successes."""
    return _timed(requests, (requests.done_ns - requests.due_ns) / 1e9, requests.outcome == OK)


def _service(requests: Requests) -> Sample:
    return _timed(requests, (requests.done_ns - requests.sent_ns) / 1e9, _answered(requests))


def _ttft(requests: Requests) -> Sample:
    found = pace(requests)
    return _nothing() if found is None else _timed(requests, found.ttft_s(requests.sent_ns), _answered(requests))


def _itl(requests: Requests) -> Sample:
    found = pace(requests)
    return _nothing() if found is None else _timed(requests, found.itl_s, _answered(requests))


def _ntpot(requests: Requests) -> Sample:
    found = pace(requests)
    return _nothing() if found is None else _timed(requests, found.ntpot_s(requests.sent_ns), _answered(requests))


def _icl(requests: Requests) -> Sample:
    if requests.streams is None:
        return _nothing()
    request, _, gap_ns = gaps(requests.streams)
    own = _answered(requests)[request]
    return requests.due_ns[request][own], gap_ns[own] / 1e9


def _succeeded(requests: Requests) -> Sample:
    done_ns = requests.done_ns[requests.outcome == OK]
    return done_ns, np.ones(len(done_ns))


def _tokens(requests: Requests) -> Sample:
    return _nothing() if requests.streams is None else (requests.streams.t_ns, arrivals(requests.streams)[1])


def _counts_tokens(requests: Requests) -> bool:
    found = pace(requests)
    return found is not None and found.counts


def _failed(requests: Requests) -> Sample:
    kept = ~requests.given_up
    return requests.done_ns[kept], (requests.outcome[kept] != OK).astype(np.float64)


def _good(requests: Requests, slo: Slo) -> Sample:
    done_ns = requests.done_ns[good(requests, slo)]
    return done_ns, np.ones(len(done_ns))


def _attained(requests: Requests, slo: Slo) -> Sample:
    return requests.due_ns, good(requests, slo).astype(np.float64)


COUNTED = {
    "throughput_rps": Measure("rate", _succeeded),
    "output_tokens_per_s": Measure("rate", _tokens, measured=_counts_tokens),
    "error_fraction": Measure("fraction", _failed),
}
JUDGED: dict[str, tuple[Literal["rate", "fraction"], Callable[..., Sample]]] = {
    "goodput_rps": ("rate", _good),
    "slo_attainment_fraction": ("fraction", _attained),
}
TIMES = {"latency": latency, "service": _service, "ttft": _ttft, "itl": _itl, "icl": _icl, "ntpot": _ntpot}


def _answered(requests: Requests) -> Mask:
    answered: Mask = (requests.outcome == OK) & (requests.sent_ns >= 0)
    return answered


def _timed(requests: Requests, seconds: Floats, rows: Mask) -> Sample:
    known = rows & ~np.isnan(seconds)
    return requests.due_ns[known], seconds[known]


def _nothing() -> Sample:
    return np.zeros(0, dtype=np.int64), np.zeros(0)
