"""The load generator's own ceiling on this machine: how fast it can send, and read streams, when the model costs
nothing.

The server and the null model share the cores with it, so this is a ceiling of the whole bench, as every run meets it.
A result near it says as much about the bench as about the model. Streams are read from a server that keeps to a
timetable (null_stream.py), so that when each chunk should be read is known.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from lab import priority
from lab.errors import RunError
from lab.load.generator import ROOT, STOP_LIMIT_S, Generator, Job
from lab.load.null_stream import CHUNKS, GAP_S, PROMPT_TOKENS
from lab.measure.records import OK, REQUESTS, Requests
from lab.spec import Arrival, ClosedLoop, Constant, ModelSpec, Poisson, Protocol, Workload
from lab.stream import read_stream

PROBE_S = 1.0
STEPS = 5
TRIES = 2
"""A rate holds when it holds once: a machine that stalled for a moment has not reached its limit."""
USERS = 32
RATE_TOLERANCE = 0.01
LATE_NS = 10_000_000
FIRST_CHUNKS_PER_S, MOST_CHUNKS_PER_S, STREAM_STEPS = 4_000.0, 1e6, 3


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
        return _bisected(
            lambda rate: any(keeps_up(measure(Constant(rate_rps=rate)), rate) for _ in range(TRIES)),
            0.0,
            1.1 * top,
            STEPS,
        )


def _bisected(holds: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """The highest rate that was seen to hold, after so many halvings; `low` where none was."""
    for _ in range(steps):
        rate = (low + high) / 2
        if holds(rate):
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


def stream_ceiling(*, workers: int = 1, protocol: Protocol = "grpc") -> float:
    """Chunks per second: as many answers of a null streaming server as are sent and read on time together, with the
    99th percentile of a chunk's lateness below 10 ms, and whole.

    Doubles the load until it does not hold, and halves the last step three times: to an eighth of it, in about a
    quarter of a minute. `protocol`: "grpc" (Triton's stream), "http" (its /generate_stream) or "openai". 0 when no load
    held. RunError when the server could not be started.
    """
    spec = ModelSpec(name="llm")
    asked: dict[str, Any] = {
        "duration_s": PROBE_S,
        "timeout_s": 4 * PROBE_S,
        "protocol": protocol,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": CHUNKS,
    }
    with (
        null_stream_server() as port,
        tempfile.TemporaryDirectory() as folder,
        Generator(Path(folder), workers) as generator,
    ):
        url = f"127.0.0.1:{port}" if protocol == "grpc" else f"http://127.0.0.1:{port}"
        blocks = itertools.count()

        def read(chunks_per_s: float) -> Requests:
            block = next(blocks)
            # Of independent users: answers that began together would have all their chunks together.
            workload = Workload(arrival=Poisson(rate_rps=chunks_per_s / CHUNKS), **asked)
            generator.begin(Job(block, url, spec, workload))
            generator.wait(timeout_s=10 * PROBE_S)
            return Requests.from_table(read_stream(Path(folder) / "requests-*.arrows", REQUESTS), block)

        def holds(chunks_per_s: float) -> bool:
            return any(keeps_reading(read(chunks_per_s)) for _ in range(TRIES))

        low, high = 0.0, FIRST_CHUNKS_PER_S
        while high < MOST_CHUNKS_PER_S and holds(high):
            low, high = high, 2 * high
        return _bisected(holds, low, high, STREAM_STEPS)


def keeps_reading(requests: Requests) -> bool:
    """Whether answers of the null streaming server were asked for on time, came whole, and each chunk by its deadline:
    the k-th (k + 1) GAP_S after the request was sent."""
    streams = requests.streams
    if streams is None or (requests.outcome != OK).any() or (requests.sent_ns < 0).any():
        return False
    chunks = np.diff(streams.first)
    if (chunks != CHUNKS).any():
        return False
    due_ns = np.repeat(requests.sent_ns, chunks) + np.tile(np.arange(1, CHUNKS + 1), len(chunks)) * round(GAP_S * 1e9)
    late_ns = np.percentile(streams.t_ns - due_ns, 99)
    lag_ns = np.percentile(requests.sent_ns - requests.due_ns, 99)
    return bool(late_ns < LATE_NS and lag_ns < LATE_NS)


@contextmanager
def null_stream_server() -> Iterator[int]:
    """The port of a null streaming server, while it runs. RunError when it could not be started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.load.null_stream"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    priority.give(process.pid, priority.MEASURED)
    stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    try:
        said = stdout.readline().strip()
        if not said.isdigit():
            raise RunError("the null streaming server did not start, so there is no ceiling to measure")
        yield int(said)
    finally:
        stdin.close()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        stdout.close()
