"""Which requests were good: successes within every limit that the objective gives."""

from __future__ import annotations

import numpy as np

from lab.measure.pace import Mask, pace
from lab.measure.records import OK, Requests
from lab.spec import Slo


def good(requests: Requests, slo: Slo, *, slower: float = 1.0) -> Mask:
    """One truth value a request; `slower`: as if every time had been that many times as long.

    An answer that was not streamed shows its first token when it is complete. One that came in a single chunk has no
    time between tokens, so a limit on that time does not fail it; the limits on the first token and the whole do."""
    within: Mask = requests.outcome == OK
    if slo.latency_s is not None:
        within &= (requests.done_ns - requests.due_ns) * slower <= slo.latency_s * 1e9
    if slo.ttft_s is None and slo.itl_s is None:
        return within
    found = pace(requests)
    if slo.ttft_s is not None:
        first_ns = requests.done_ns if found is None else np.where(found.chunks > 0, found.first_ns, requests.done_ns)
        within &= (first_ns - requests.due_ns) * slower <= slo.ttft_s * 1e9
    if slo.itl_s is not None and found is not None:
        itl_s = found.itl_s
        within &= np.isnan(itl_s) | (itl_s * slower <= slo.itl_s)
    return within
