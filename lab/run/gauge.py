"""How much of the load generator a run used: its ceiling on this machine, measured once and kept.

The ceiling (lab/load/ceiling.py) is what the whole bench does when the model costs nothing; a result near it says as
much about the client as about the server. It is kept with the machine's fingerprint, measured by the self-test or at
the first run that is long enough for the seconds it takes.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab import atomic
from lab.errors import LabError
from lab.home import home
from lab.load.ceiling import ceiling
from lab.run import passport
from lab.serve.triton import Server
from lab.spec import Batching, Experiment, ModelSpec, Poisson

NULL = ModelSpec(name="null", batching=Batching(max_batch_size=64))
NEAR = 0.7
LONG_S = 30.0
"""A run at least this long measures the ceiling first, where none is known: ten seconds of it."""


@dataclass(frozen=True)
class Ceiling:
    """Requests a second that `workers` processes send on time, over gRPC."""

    rate_rps: float
    workers: int
    created_utc: str


def path(mark: str) -> Path:
    return home() / "ceilings" / f"{mark}.json"


def read(workers: int = 1) -> Ceiling | None:
    """What is kept for this machine as it is now; None where nothing is."""
    try:
        kept = json.loads(path(passport.fingerprint()).read_text())
        return Ceiling(**kept[str(workers)])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(rate_rps: float, workers: int) -> Ceiling:
    found = Ceiling(rate_rps, workers, datetime.now(UTC).isoformat(timespec="seconds"))
    target = path(passport.fingerprint())
    target.parent.mkdir(exist_ok=True)
    try:
        every = json.loads(target.read_text())
    except (OSError, ValueError):
        every = {}
    atomic.write(target, json.dumps({**every, str(workers): asdict(found)}))
    return found


def measured(server: Server, workers: int = 1) -> Ceiling | None:
    """Measure and keep it on a server of the lab's; None where the null model does not serve or nothing came of it.
    The model is left as it was."""
    try:
        serves = server.state(NULL.name).ready
        if not serves:
            server.load(NULL)
        try:
            rate = ceiling(server.grpc_url, workers=workers)
        finally:
            if not serves:
                server.unload(NULL.name)
    except LabError:
        return None
    return keep(rate, workers) if rate else None


def workers_for(experiment: Experiment, one: Ceiling | None) -> int:
    """Load workers that the experiment's highest rate needs, so that none sends more than NEAR of what it can: at least
    those that were asked for, at most one a core."""
    asked = experiment.workload.workers
    rates = [arrival.rate_rps for cell in experiment.cells() if isinstance(arrival := cell.workload.arrival, Poisson)]
    highest = max((rate for rate in rates if rate is not None), default=0.0)
    given = experiment.workload.given
    if one is None or not highest or (given is not None and given.sequence_length is not None):
        return asked  # the requests of a sequence must leave one process in their order
    return max(asked, min(math.ceil(highest / (NEAR * one.rate_rps)), len(os.sched_getaffinity(0))))
