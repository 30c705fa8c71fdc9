"""p50 and p99 beside perf_analyzer's at half of saturation, and who is right where the two differ.

Both stamp a request when they send it and both get the same Poisson arrivals, from one file (perf_analyzer's
--request-intervals). It runs asynchronously: with threads that wait for an answer each it falls behind the schedule
and measures a smaller load. Three views, as two clients on the server's own processors are part of what they measure:

sleeper    in turns; the server waits in place of computing, so neither client slows it, and what is true is known: the
           same arrivals through as many servers as there are instances, each as long as Triton says
at once    both meters on `digits` in the same seconds, each with half of the load: one server, one state, two readings
digits     in turns, the clients' own work included; Triton's own mean beside both says whose clients slow the server,
           and what is left over is each meter's own

The goals (p50 within 5 %, p99 within 15 %) are held against the first two, where both meters read the same service
times: a difference is a meter's. In the third the system under test differs between the turns, as each client takes its
share of the server's cores, so a difference may be the server's; it is reported with the server's own mean, unjudged.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measuring import Blocks, in_turns, median, ratio
from benchmarks.table import Row, say
from lab import priority
from lab.load.generator import Generator
from lab.load.schedule import arrivals
from lab.measure.records import Requests, Window
from lab.measure.server import ServerDelta, server_delta
from lab.measure.summary import Summary, summarize
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.spec import ModelSpec, Poisson, Trace, Workload

PAIRS = 4
SECONDS, WINDOWS = 6.0, 3  # perf_analyzer reports the last three of its windows
SETTLE_S, LEAVE_S, SPARE_S = 1.0, 0.5, 6.0
"""After the peer's process began, and before it ended, it may not be sending yet, or any more; how much longer than it
needs the lab's own load is planned to last."""
OFF_RATE = 0.05
SLEEP_S = 0.010
GOALS = {"p50": "<= 0.05", "p99": "<= 0.15"}
INPUTS = {"sleeper": {"SLEEP_S": [SLEEP_S]}}
"""What perf_analyzer sends in place of random numbers."""


@dataclass(frozen=True)
class Plan:
    """One draw of arrivals, for both meters: times in s a line, and gaps in µs a line."""

    times: Path
    gaps: Path
    offsets_s: np.ndarray


@dataclass(frozen=True)
class Reading:
    """One meter's latencies from its send, in seconds, and what Triton said meanwhile."""

    p50_s: float
    p99_s: float
    mean_s: float
    server: ServerDelta | None = None


class Meters:
    """The lab and perf_analyzer before one server."""

    def __init__(self, folder: Path, server: Server, generator: Generator, blocks: Blocks, peer: Path) -> None:
        self.folder, self.server, self.generator, self.blocks, self.peer = folder, server, generator, blocks, peer
        self._seeds = itertools.count()

    def plan(self, rate_rps: float) -> Plan:
        """Poisson arrivals, drawn anew, to whole microseconds, as the peer's file knows no finer ones."""
        seed = next(self._seeds)
        whole_us = np.rint(arrivals(Poisson(rate_rps=rate_rps), SECONDS, seed) / 1e3).astype(np.int64)
        times, gaps = (self.folder / f"{name}-{seed}.txt" for name in ("times", "gaps"))
        times.write_text("".join(f"{us / 1e6:.6f}\n" for us in whole_us))
        gaps.write_text("".join(f"{max(us, 1)}\n" for us in np.diff(whole_us, prepend=0)))
        return Plan(times, gaps, whole_us / 1e6)

    def warm_up(self, model: ModelSpec) -> None:
        """The first requests of each instance are slow, and would be the tail of whoever goes first."""
        self.blocks.closed(self.server.grpc_url, model, model.instances, 1.0, 0.0, sleep_s=(SLEEP_S,))

    def lab(self, model: ModelSpec, plan: Plan) -> Reading:
        workload = Workload(arrival=Trace(path=str(plan.times)), duration_s=SECONDS, sleep_s=(SLEEP_S,))
        before = scrape(self.server, [model.name])
        requests, window = self.blocks.run(self.server.grpc_url, model, workload)
        return self._read(requests, window, self._since(before, model))

    def theirs(self, model: ModelSpec, plan: Plan) -> Reading:
        """SystemExit where it gave no figures, or did not keep to the arrivals."""
        before = scrape(self.server, [model.name])
        p50_s, p99_s, mean_s = self._perf_analyzer(model, plan)
        return Reading(p50_s, p99_s, mean_s, self._since(before, model))

    def at_once(self, model: ModelSpec, rate_rps: float) -> tuple[Reading, Reading]:
        """(the lab's, theirs), each at `rate_rps` with arrivals of its own; the lab's only while both were sending."""
        plan, found = self.plan(rate_rps), []

        def beside(_: Window) -> None:
            began_ns = time.perf_counter_ns()
            found.append((self._perf_analyzer(model, plan), began_ns, time.perf_counter_ns()))
            self.generator.cancel()

        arrival = Poisson(rate_rps=rate_rps)
        workload = Workload(arrival=arrival, duration_s=SECONDS + SPARE_S, seed=next(self._seeds))
        requests, planned = self.blocks.run(self.server.grpc_url, model, workload, during=beside)
        figures, began_ns, ended_ns = found[0]
        if ended_ns > planned.end_ns:
            raise SystemExit(f"perf_analyzer took {(ended_ns - began_ns) / 1e9:.1f} s, longer than the lab's own load")
        both = Window(planned.start_ns, began_ns + round(SETTLE_S * 1e9), ended_ns - round(LEAVE_S * 1e9))
        return self._read(requests, both, None), Reading(*figures)

    def _since(self, before: pa.Table, model: ModelSpec) -> ServerDelta | None:
        both = pa.concat_tables([before, scrape(self.server, [model.name])])
        return server_delta(both, model.name, 0, time.perf_counter_ns())

    def _read(self, requests: Requests, window: Window, server: ServerDelta | None) -> Reading:
        found: Summary = summarize(requests, window=window, planned=None, slo=None)
        if found.error_fraction != 0 or found.service_p50_s is None or found.service_p99_s is None:
            raise SystemExit(f"the lab has no figures: {[problem.text for problem in found.problems]}")
        assert found.service_mean_s is not None
        return Reading(found.service_p50_s, found.service_p99_s, found.service_mean_s, server)

    def _perf_analyzer(self, model: ModelSpec, plan: Plan) -> tuple[float, float, float]:
        """p50, p99 and mean in seconds."""
        command = [str(self.peer), "-m", model.name, "-u", self.server.grpc_url, "-i", "grpc", "-a", "-s", "999"]
        command += ["-p", f"{SECONDS * 1e3 / WINDOWS:.0f}", "--request-intervals", str(plan.gaps)]
        if model.name in INPUTS:
            given = self.folder / f"{model.name}.json"
            given.write_text(json.dumps({"data": [INPUTS[model.name]]}))
            command += ["--input-data", str(given)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        priority.give(process.pid, priority.MEASURED)
        said, _ = process.communicate(timeout=300)
        names = ("p50 latency", "p99 latency", "Avg latency")
        found = [re.search(rf"{name}: (\d+) usec", said) for name in names]
        kept = re.search(r"Throughput: ([0-9.]+)", said)
        if None in found or kept is None:
            raise SystemExit(f"perf_analyzer gave no figures: {said.strip()[-300:]}")
        planned_rps = len(plan.offsets_s) / SECONDS
        if abs(float(kept[1]) / planned_rps - 1) > OFF_RATE:
            raise SystemExit(f"perf_analyzer sent {float(kept[1]):.0f} req/s; asked for {planned_rps:.0f}")
        p50_s, p99_s, mean_s = (int(match[1]) / 1e6 for match in found if match is not None)
        return p50_s, p99_s, mean_s


def queued(offsets_s: np.ndarray, servers: int, service_s: float) -> np.ndarray:
    """Seconds from arrival to answer of each request, first come first served, each `service_s` long."""
    free_s = [0.0] * servers
    took_s = np.empty(len(offsets_s))
    for i, arrived_s in enumerate(offsets_s):
        ends_s = max(arrived_s, heapq.heappop(free_s)) + service_s
        heapq.heappush(free_s, ends_s)
        took_s[i] = ends_s - arrived_s
    return took_s


def on_the_sleeper(meters: Meters, model: ModelSpec) -> list[Row]:
    """Both beside what is true, at half of what the instances can sleep."""
    rate_rps = model.instances / SLEEP_S / 2
    meters.warm_up(model)
    plans: list[Plan] = []
    sides = in_turns(_same_arrivals(meters, model, rate_rps, plans), PAIRS)
    what = f"sleeper, {rate_rps:.0f} req/s"
    rows = _beside(what, sides["lab"], sides["peer"])
    for name, side in (("the lab", "lab"), ("perf_analyzer", "peer")):
        off: dict[str, list[float]] = {"p50": [], "p99": []}
        for plan, reading in zip(plans, sides[side], strict=True):
            if reading.server is None or reading.server.compute_mean_s is None:
                continue
            true_s = queued(plan.offsets_s, model.instances, reading.server.compute_mean_s)
            for quantile, read_s in (("p50", reading.p50_s), ("p99", reading.p99_s)):
                off[quantile].append(read_s / float(np.percentile(true_s, int(quantile[1:]))) - 1)
        for quantile, values in off.items():
            middle = median(values)
            goal = GOALS[quantile] if side == "lab" else None
            value = None if middle is None else abs(middle)
            rows.append(Row(f"{quantile} of {name} off what is true, {what}", value, "", goal, len(values)))
    return rows


def in_turns_on(meters: Meters, model: ModelSpec, rate_rps: float) -> list[Row]:
    """Each alone before the server, and what Triton measured under each."""
    sides = in_turns(_same_arrivals(meters, model, rate_rps, []), PAIRS)
    what = f"{model.name}, {rate_rps:.0f} req/s, in turns"
    rows = _beside(what, sides["lab"], sides["peer"], judged=False)
    own = {side: [_mean(reading) for reading in readings] for side, readings in sides.items()}
    slower = ratio(own["lab"], own["peer"])
    rows.append(Row(f"Triton's own mean, the lab's load over the other's, {what}", slower, "ratio", None, PAIRS))
    for name, side in (("the lab", "lab"), ("perf_analyzer", "peer")):
        beyond = median([reading.mean_s - _mean(reading) for reading in sides[side]])
        rows.append(Row(f"mean of {name} beyond Triton's own, {what}", beyond and 1e3 * beyond, "ms", None, PAIRS))
    return rows


def both_at_once(meters: Meters, model: ModelSpec, rate_rps: float) -> list[Row]:
    """Each with half of `rate_rps`, in the same seconds."""
    readings = [meters.at_once(model, rate_rps / 2) for _ in range(PAIRS)]
    ours, theirs = ([pair[side] for pair in readings] for side in (0, 1))
    return _beside(f"{model.name}, {rate_rps:.0f} req/s, at once", ours, theirs)


def not_measured(peer: Path) -> list[Row]:
    note = f"no perf_analyzer at {peer}"
    return [Row(f"{name} off perf_analyzer's at half of saturation", None, "", None, 0, note) for name in GOALS]


def _same_arrivals(
    meters: Meters, model: ModelSpec, rate_rps: float, plans: list[Plan]
) -> dict[str, Callable[[], Reading]]:
    """Sides whose n-th turns have the same arrivals, which are kept in `plans`."""
    turns = {"lab": 0, "peer": 0}

    def turn(side: str, measure: Callable[[ModelSpec, Plan], Reading]) -> Reading:
        if turns[side] == len(plans):
            plans.append(meters.plan(rate_rps))
        turns[side] += 1
        return measure(model, plans[turns[side] - 1])

    return {"lab": lambda: turn("lab", meters.lab), "peer": lambda: turn("peer", meters.theirs)}


def _mean(reading: Reading) -> float:
    """Triton's own mean, in seconds."""
    found = None if reading.server is None else reading.server.server_mean_s
    if found is None:
        raise SystemExit("Triton gave no statistics")
    return found


def _beside(what: str, ours: Sequence[Reading], theirs: Sequence[Reading], judged: bool = True) -> list[Row]:
    """p50 and p99 beside the peer's, and how far off; judged where both read the same thing."""
    shown = [[tuple(round(1e3 * s, 2) for s in (r.p50_s, r.p99_s, r.mean_s)) for r in side] for side in (ours, theirs)]
    say(f"p50, p99 and mean in ms, {what}: lab {shown[0]}, perf_analyzer {shown[1]}")
    rows = []
    for name in GOALS:
        beside = ratio([getattr(r, f"{name}_s") for r in ours], [getattr(r, f"{name}_s") for r in theirs])
        rows.append(Row(f"{name} beside perf_analyzer's, {what}", beside, "ratio", None, len(ours)))
        if judged:
            off = None if beside is None else abs(beside - 1)
            rows.append(Row(f"{name} off perf_analyzer's by, {what}", off, "", GOALS[name], len(ours)))
    return rows
