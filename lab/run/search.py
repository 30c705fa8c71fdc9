"""The highest rate that meets an objective, measured: `python -m lab search`.

A run like any other (its blocks are probes, at rates that lab/measure/search.py asks for). A closed loop first says
where to begin; a bound, a limit of time and the load generator's own limit end what a server that never saturates
would not. Failed probes stay in the run, with why.
"""

from __future__ import annotations

import math
import time
from typing import Any

from lab.errors import InputError
from lab.measure import search as pure
from lab.measure.percentile import needed
from lab.measure.search import Found, Search
from lab.run import gauge, results
from lab.run.bench import Bench
from lab.run.folder import RunFolder
from lab.run.plan import Block
from lab.run.runner import Stop
from lab.run.serving import serving
from lab.run.turn import Report, turn
from lab.spec import ClosedLoop, Experiment, Poisson, Workload, set_paths

USERS, CLOSED_S = 32, 3.0
START = 0.5
BOUND = 4.0
"""Times what the closed loop reached: no open loop gets there."""
SHORTEST_S, LONGEST_S, WARMUP = 4.0, 30.0, 0.2
SAMPLES = 1.5
"""Times as many requests a block as the objective's percentile needs."""


def check(most_rps: float | None, minutes: float) -> None:
    """InputError for a limit under which nothing can be searched."""
    if not minutes > 0:
        raise InputError(f"--minutes {minutes:g}: allowed is a time above 0")
    if most_rps is not None and not most_rps > 0:
        raise InputError(f"--most {most_rps:g}: allowed is a rate above 0")


def run(
    experiment: Experiment,
    folder: RunFolder,
    *,
    most_rps: float | None,
    minutes: float,
    stop: Stop,
    report: Report,
    url: str | None,
) -> Found:
    """Search on the experiment's model into `folder`, and end it: done, failed or cancelled. LabError when nothing can
    be measured."""
    with turn(folder, "search", stop, report):
        with serving(url, folder) as server:
            folder.event("serving", triton=server.version(), grpc_url=server.grpc_url, managed=bool(server.managed))
            workers = gauge.load_workers(experiment, folder, server, 60 * minutes, report)
            with Bench(folder, server, workers=workers, cells=1, stopped=stop) as bench:
                found = _search(experiment, folder, bench, most_rps, time.monotonic() + 60 * minutes, stop, report)
        folder.event("search", **found.to_dict(), text=pure.told(found, experiment.slo))
    return found


def _search(
    experiment: Experiment,
    folder: RunFolder,
    bench: Bench,
    most_rps: float | None,
    until: float,
    stop: Stop,
    report: Report,
) -> Found:
    began = time.monotonic()
    workload = experiment.workload
    closed = {"arrival": ClosedLoop(concurrency=USERS), "duration_s": CLOSED_S, "warmup_s": WARMUP * CLOSED_S}
    report(f"a closed loop of {USERS} says where to begin")
    block = Block("saturation", 0, 0, experiment.model, workload.model_copy(update=closed))
    bench.block(0, block, on_tick=lambda phase, progress: None)
    served = results.block_results(folder, experiment)[0].summary.throughput_rps or 1.0
    search = Search(START * served, BOUND * served if most_rps is None else most_rps)
    number = 0
    while (rate := search.next()) is not None and time.monotonic() < until and not stop():
        number += 1
        report(f"probe {number}: {rate:,.4g} req/s")
        share = min((time.monotonic() - began) / max(until - began, 1e-9), 0.99)
        folder.set_status(state="running", phase=f"probe {number}: {rate:,.4g} req/s", progress=share)
        asked = _probe(workload, rate, experiment.slo.percentile, number)
        bench.block(number, Block("cell", 0, number, experiment.model, asked), on_tick=lambda phase, progress: None)
        probe = pure.judged(results.block_results(folder, experiment)[-1].summary, rate, experiment.slo)
        folder.event("probe", block=number, **vars(probe))
        report(f"  {probe.result}: {probe.why}")
        search.tell(probe)
    return search.found(out_of_time=search.next() is not None)


def _probe(workload: Workload, rate_rps: float, percentile: float, number: int) -> Workload:
    """Long enough for the percentile at that rate, within limits; each with requests of its own."""
    measured_s = min(max(SAMPLES * needed(percentile) / rate_rps, SHORTEST_S), LONGEST_S)
    changes: list[tuple[str, Any]] = [
        ("arrival", Poisson(rate_rps=rate_rps)),
        ("duration_s", math.ceil(10 * measured_s * (1 + WARMUP)) / 10),
        ("warmup_s", round(measured_s * WARMUP, 3)),
        ("seed", workload.seed + 1000 * number),
    ]
    return set_paths(workload, changes)
