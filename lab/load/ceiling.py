"""The load generator's own ceiling on this machine: how fast it can send when the model costs nothing.

The server and the null model share the cores with it, so this is a ceiling of the whole bench, as every run meets it.
A result near it says as much about the bench as about the model.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np

from lab.errors import RunError
from lab.load.generator import Generator, Job
from lab.measure.records import OK, REQUESTS, Requests
from lab.spec import Arrival, ClosedLoop, Constant, ModelSpec, Protocol, Workload
from lab.stream import read_stream

PROBE_S = 1.0
STEPS = 5
TRIES = 2
"""A rate holds when it holds once: a machine that stalled for a moment has not reached its limit."""
USERS = 32
RATE_TOLERANCE = 0.01
LATE_NS = 10_000_000


def ceiling(url: str, model: str = "null", *, workers: int = 1, protocol: Protocol = "grpc") -> float:
    """Requests per second: the highest constant rate that is sent within 1 %, with the 99th percentile of lateness
    below 10 ms, and answered in full (S5 and S10 of MEASUREMENT.md).

    `model` is a loaded model of family null. Bisects between 0 and 1.1 times what a closed loop reaches, in about
    ten seconds, to 4 % of that. 0 when no rate held. RunError when nothing was answered at all.
    """
    spec = ModelSpec(name=model, family="null")
    with tempfile.TemporaryDirectory() as folder, Generator(Path(folder), workers) as generator:
        blocks = itertools.count()

        def measure(arrival: Arrival) -> Requests:
            block = next(blocks)
            workload = Workload(arrival=arrival, duration_s=PROBE_S, timeout_s=PROBE_S, protocol=protocol)
            generator.begin(Job(block, url, spec, workload))
            generator.wait(timeout_s=10 * PROBE_S)
            return Requests.from_table(read_stream(Path(folder) / "requests-*.arrows", REQUESTS), block)

        top = int((measure(ClosedLoop(concurrency=USERS)).outcome == OK).sum()) / PROBE_S
        if not top:
            raise RunError(f"model {model} at {url} answered nothing, so there is no ceiling to measure; is it loaded?")
        low, high = 0.0, 1.1 * top
        for _ in range(STEPS):
            rate = (low + high) / 2
            if any(keeps_up(measure(Constant(rate_rps=rate)), rate) for _ in range(TRIES)):
                low = rate
            else:
                high = rate
        return low


def keeps_up(requests: Requests, rate_rps: float) -> bool:
    """Whether a block of PROBE_S at a constant rate was sent on time and answered."""
    sent = requests.sent_ns >= 0
    if sent.sum() < 2 or (requests.outcome != OK).any():
        return False
    late_ns = np.percentile(requests.sent_ns[sent] - requests.due_ns[sent], 99)
    seconds = np.ptp(requests.sent_ns[sent]) / 1e9
    return bool((sent.sum() - 1) / seconds >= (1 - RATE_TOLERANCE) * rate_rps and late_ns < LATE_NS)
