"""How much of the load generator a run used: its ceiling on this machine, measured once and kept.

The ceiling (lab/load/ceiling.py) is what the whole bench does when the model costs nothing; a result near it says as
much about the client as about the server. It is kept with the machine's fingerprint, measured by the self-test or at
the first run that is long enough for the seconds it takes. Answers in chunks have one of their own, in chunks a second:
what a client spends on them is reading.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab import atomic
from lab.errors import LabError
from lab.home import home
from lab.load.ceiling import ceiling, stream_ceiling
from lab.run import passport
from lab.run.folder import RunFolder
from lab.serve.triton import Server
from lab.spec import Arrival, Batching, Experiment, ModelSpec, Protocol, Steps

NULL = ModelSpec(name="null", batching=Batching(max_batch_size=64))
NEAR = 0.7
GAUGED: tuple[Protocol, ...] = ("grpc", "http")
"""Protocols whose ceiling is measured; a request over HTTP costs the client several times one over gRPC."""
STREAMED: tuple[Protocol, ...] = ("grpc", "http", "openai")
"""The same where answers come in chunks."""
LONG_S = 30.0
"""A run at least this long measures the ceiling first, where none is known: ten seconds of it, of streams sixteen."""


@dataclass(frozen=True)
class Ceiling:
    """Requests a second that `workers` processes send on time; where `streamed`, chunks a second that they read."""

    rate_rps: float
    workers: int
    created_utc: str
    protocol: str = "grpc"
    streamed: bool = False


def path(mark: str) -> Path:
    return home() / "ceilings" / f"{mark}.json"


def read(workers: int = 1, protocol: str = "grpc", *, streamed: bool = False) -> Ceiling | None:
    """What is kept for this machine as it is now; None where nothing is."""
    try:
        kept = json.loads(path(passport.fingerprint()).read_text())
        return Ceiling(**kept[_key(workers, protocol, streamed)])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kept() -> list[Ceiling]:
    """All that is known of this machine as it is now: what is sent first, then what is read, by protocol."""
    try:
        found = [Ceiling(**each) for each in json.loads(path(passport.fingerprint()).read_text()).values()]
    except (OSError, ValueError, AttributeError, TypeError):
        return []
    return sorted(found, key=lambda each: (each.streamed, each.protocol, each.workers))


def _key(workers: int, protocol: str, streamed: bool) -> str:
    if streamed:
        return f"{workers} {protocol} streamed"
    return str(workers) if protocol == "grpc" else f"{workers} {protocol}"


def keep(rate_rps: float, workers: int, protocol: str = "grpc", *, streamed: bool = False) -> Ceiling:
    found = Ceiling(rate_rps, workers, datetime.now(UTC).isoformat(timespec="seconds"), protocol, streamed)
    target = path(passport.fingerprint())
    target.parent.mkdir(exist_ok=True)
    try:
        every = json.loads(target.read_text())
    except (OSError, ValueError):
        every = {}
    atomic.write(target, json.dumps({**every, _key(workers, protocol, streamed): asdict(found)}))
    return found


def measured(server: Server, workers: int = 1, protocol: Protocol = "grpc") -> Ceiling | None:
    """Measure and keep it on a server of the lab's; None where the null model does not serve or nothing came of it.
    The model is left as it was."""
    try:
        serves = server.state(NULL.name).ready
        if not serves:
            server.load(NULL)
        try:
            url = server.http_url if protocol == "http" else server.grpc_url
            rate = ceiling(url, workers=workers, protocol=protocol)
        finally:
            if not serves:
                server.unload(NULL.name)
    except LabError:
        return None
    return keep(rate, workers, protocol) if rate else None


def workers_for(experiment: Experiment, one: Ceiling | None) -> int:
    """Load workers that the experiment's highest rate needs, so that none sends more than NEAR of what it can: at least
    those that were asked for, at most one a core."""
    asked = experiment.workload.workers
    highest = max((highest_rps(cell.workload.arrival) or 0.0 for cell in experiment.cells()), default=0.0)
    given = experiment.workload.given
    if one is None or not highest or (given is not None and given.sequence_length is not None):
        return asked  # the requests of a sequence must leave one process in their order
    return max(asked, min(math.ceil(highest / (NEAR * one.rate_rps)), len(os.sched_getaffinity(0))))


def load_workers(
    experiment: Experiment, folder: RunFolder, server: object, total_s: float, report: Callable[[str], None]
) -> int:
    """Load workers for a run, by the load generator's ceiling on this machine: what is kept of it, or measured now if
    the run is long enough and its server the lab's. What they can send, or read, is written down in the run."""
    protocol = experiment.workload.protocol
    if experiment.model.family == "llm":
        streams(folder, {protocol}, experiment.workload.workers, total_s, report)
        return experiment.workload.workers
    if protocol not in GAUGED:
        return experiment.workload.workers
    one = read(protocol=protocol)
    if one is None and total_s >= LONG_S and isinstance(server, Server) and server.managed:
        report("measuring the load generator's own ceiling, once on this machine")
        one = measured(server, protocol=protocol)
    workers = workers_for(experiment, one)
    if (all_of_them := read(workers, protocol)) is not None:
        folder.event("ceiling", **asdict(all_of_them))
    return workers


def streams(
    folder: RunFolder, protocols: Collection[str], workers: int, total_s: float, report: Callable[[str], None]
) -> None:
    """What so many load workers can read of answers in chunks, over each of these protocols, written down in the run:
    what is kept of it, or measured now if the run is long enough. It takes no server of anybody's."""
    for protocol in STREAMED:
        if protocol not in protocols:
            continue
        found = read(workers, protocol, streamed=True)
        if found is None and total_s >= LONG_S:
            report(f"measuring how fast the load generator reads streams over {protocol}, once on this machine")
            try:
                rate = stream_ceiling(workers=workers, protocol=protocol)
            except LabError as error:
                report(f"  {error}")
                continue
            found = keep(rate, workers, protocol, streamed=True) if rate else None
        if found is not None:
            folder.event("ceiling", **asdict(found))


def highest_rps(arrival: Arrival) -> float | None:
    """The highest rate that an arrival process asks for; None where users or a file decide, or the saturation that is
    still to be measured."""
    if isinstance(arrival, Steps):
        return max(arrival.rates_rps)
    return getattr(arrival, "rate_rps", None)
