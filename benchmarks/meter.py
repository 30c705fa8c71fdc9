"""A meter that engineers trust: beside perf_analyzer and AIPerf, against equals and a planted slowdown, and over time.

    .venv/bin/python benchmarks/meter.py [--json] [--section NAME]…            about 8 minutes without the self-test
    .venv/bin/python benchmarks/meter.py --section soak --minutes 60           an hour at 500 req/s
    .venv/bin/python benchmarks/meter.py --section selftest                    about three minutes

peers      throughput at 1, 8, 16 and 64 in flight, p50 and p99 at half of saturation, in alternating turns; needs
           perf_analyzer beside the project (../shared/peers/perf_analyzer)
half       the latency part of peers alone
equals     20 A/A pairs must be called equal, 20 pairs with a planted 20 % slowdown must not: the sleeper asked for
           12 ms in place of 10 ms
rate       2,000 req/s on the null model for a minute
soak       500 req/s on the null model: no record lost or twice, memory of client and server flat; 2 minutes unless
           told otherwise
selftest   every self-test of the lab

TTFT and ITL beside AIPerf's are measured by `benchmarks/decode.py --section timetable --section aiperf`.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import load
from benchmarks.load import PEER
from benchmarks.measuring import Blocks, in_turns, own_home, ratio
from benchmarks.table import Row, main, say
from lab import priority
from lab.load.generator import Generator, Job
from lab.measure.compare import compare
from lab.measure.records import OK, REQUESTS, Requests, Window
from lab.measure.summary import Summary, summarize
from lab.serve import installation, weights
from lab.serve.triton import Server
from lab.spec import Arrival, Batching, ClosedLoop, Constant, ModelSpec, Poisson, Workload
from lab.stream import read_stream
from lab.watch.host import model_processes

PAIRS = 4
HALF_PAIRS, HALF_S, OFF_RATE = 4, 4.0, 0.05
EQUALS, EQUALS_S = 20, 1.5
SLOWED = 1.2
RATE_RPS, RATE_S = 2_000.0, 60.0
SOAK_RPS, SOAK_MINUTES, LOOK_S = 500.0, 2.0, 5.0
FLAT_BYTES = 50 * 2**20
DIGITS = ModelSpec(name="digits", batching=Batching(max_batch_size=32))
NULL = ModelSpec(name="null", batching=Batching(max_batch_size=32))
SLEEPER = ModelSpec(name="sleeper", instances=4)


class Bench:
    """One server and one load generator, asked for a block at a time."""

    def __init__(self, folder: Path, server: Server, generator: Generator) -> None:
        self.folder, self.server, self.generator = folder, server, generator
        self.blocks = Blocks(folder, generator)

    def block(self, model: ModelSpec, arrival: Arrival, seconds: float, **more: Any) -> tuple[Requests, Window]:
        workload = Workload(arrival=arrival, duration_s=seconds + 0.3, warmup_s=0.3, **more)
        return self.blocks.run(self.server.grpc_url, model, workload)


def peers(bench: Bench, peer: Path, _: float) -> list[Row]:
    """Throughput at every width, then latency at half of what digits serves."""
    load.PAIRS = PAIRS
    rows: list[Row] = []
    for model in (DIGITS, NULL):
        for users in load.IN_FLIGHT:
            rows += load.rows_for(bench.blocks, bench.server, peer, model, users)
    return [*rows, *half_of_saturation(bench, peer)]


def half_of_saturation(bench: Bench, peer: Path) -> list[Row]:
    """p50 and p99 of both under Poisson arrivals at half of what 16 users are served."""
    if not peer.is_file():
        note = f"no perf_analyzer at {peer}"
        return [
            Row(f"{name} off perf_analyzer's at half of saturation", None, "", None, 0, note) for name in ("p50", "p99")
        ]
    rate = load.of_the_lab(bench.blocks, bench.server, DIGITS, 16).throughput_rps / 2
    seeds = itertools.count()

    def mine() -> tuple[float, float]:
        found = figures(*bench.block(DIGITS, Poisson(rate_rps=rate), HALF_S, seed=next(seeds)))
        return found.service_p50_s or 0.0, found.service_p99_s or 0.0

    sides = in_turns({"lab": mine, "peer": lambda: their_latency(peer, bench.server, rate)}, HALF_PAIRS)
    ours, theirs = sides["lab"], sides["peer"]
    shown = [[(round(1e3 * a, 2), round(1e3 * b, 2)) for a, b in side] for side in (ours, theirs)]
    say(f"p50 and p99 at {rate:.0f} req/s, ms: lab {shown[0]}, perf_analyzer {shown[1]}")
    rows = []
    for i, (name, goal) in enumerate((("p50", "<= 0.05"), ("p99", "<= 0.15"))):
        beside = ratio([a[i] for a in ours], [b[i] for b in theirs])
        rows.append(Row(f"{name} beside perf_analyzer's, {rate:.0f} req/s", beside, "ratio", None, HALF_PAIRS))
        off = None if beside is None else abs(beside - 1)
        rows.append(Row(f"{name} off perf_analyzer's at half of saturation", off, "", goal, HALF_PAIRS))
    return rows


def their_latency(peer: Path, server: Server, rate_rps: float) -> tuple[float, float]:
    """(p50, p99) in seconds of perf_analyzer's, from its send, as it has no other. Asynchronous: its threads that wait
    for an answer each are late with nearly every request at this rate, and measure a smaller load. SystemExit when it
    did not keep to the rate."""
    command = [str(peer), "-m", "digits", "-u", server.grpc_url, "-i", "grpc", "-p", f"{HALF_S * 1e3 / 3:.0f}"]
    command += ["-s", "100", "--request-rate-range", f"{rate_rps:.0f}", "--request-distribution", "poisson", "-a"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    priority.give(process.pid, priority.MEASURED)
    said, _ = process.communicate(timeout=300)
    found = [re.search(rf"{name} latency: (\d+) usec", said) for name in ("p50", "p99")]
    kept = re.search(r"Throughput: ([0-9.]+)", said)
    if None in found or kept is None:
        raise SystemExit(f"perf_analyzer gave no figures: {said.strip()[-300:]}")
    if abs(float(kept[1]) / rate_rps - 1) > OFF_RATE:
        raise SystemExit(f"perf_analyzer sent {float(kept[1]):.0f} req/s; asked for {rate_rps:.0f}")
    p50, p99 = (int(match[1]) / 1e6 for match in found if match is not None)
    return p50, p99


def equals(bench: Bench, _: Path, __: float) -> list[Row]:
    """How often equals are called equal, and a planted slowdown found, by the comparison that verdicts rest on."""
    same, found = 0, 0
    for pair in range(EQUALS):
        a, b, slow = (asleep(bench, seconds, pair) for seconds in (0.010, 0.010, 0.010 * SLOWED))
        same += all(
            compare([a], [b], metric).verdict == "no detectable difference"
            for metric in ("throughput_rps", "latency_p50_s")
        )
        found += compare([a], [slow], "latency_p50_s").verdict == "higher"
    return [
        Row("A/A pairs called equal, of 20", same, "pairs", ">= 18", EQUALS),
        Row("planted 20 % slowdowns found, of 20", found, "pairs", ">= 20", EQUALS),
    ]


def asleep(bench: Bench, seconds: float, seed: int) -> tuple[Requests, Window]:
    return bench.block(SLEEPER, ClosedLoop(concurrency=4), EQUALS_S, sleep_s=(seconds,), seed=seed)


def rate(bench: Bench, _: Path, __: float) -> list[Row]:
    requests, window = bench.block(NULL, Constant(rate_rps=RATE_RPS), RATE_S)
    found = figures(requests, window)
    off = None if found.sent_rps is None else abs(found.sent_rps / RATE_RPS - 1)
    lag_ms = None if found.send_lag_p99_s is None else 1e3 * found.send_lag_p99_s
    what = f"{RATE_RPS:,.0f} req/s for {RATE_S:.0f} s on the null model"
    return [
        Row(f"rate off by, {what}", off, "", "<= 0.005", 1),
        Row(f"p99 of send lag, {what}", lag_ms, "ms", "<= 2", 1),
        Row(f"lost or failed, {what}", int((requests.outcome != OK).sum()), "requests", "<= 0", 1),
    ]


def soak(bench: Bench, _: Path, seconds: float) -> list[Row]:
    """Every record is there and nothing grows: the memory of client and server, each after the first tenth, as buffers
    are made in the beginning. A line a minute says how far it is."""
    bench.generator.begin(
        Job(1, bench.server.grpc_url, NULL, Workload(arrival=Constant(rate_rps=SOAK_RPS), duration_s=seconds))
    )
    server = bench.server.pid
    assert server is not None
    watched = {"client's": [bench.generator.pids[0]], "server's": [server, *model_processes(server)[NULL.name]]}
    sizes: dict[str, list[int]] = {name: [] for name in watched}
    told = time.monotonic()
    while not (progress := bench.generator.wait(LOOK_S)).done:
        for name, pids in watched.items():
            sizes[name].append(sum(psutil.Process(pid).memory_full_info().pss for pid in pids))
        if time.monotonic() - told >= 60:
            told = time.monotonic()
            mib = ", ".join(f"{name} memory {values[-1] / 2**20:.1f} MiB" for name, values in sizes.items())
            say(f"{progress.finished:,} requests ended, {sum(progress.errors.values())} failed, {mib}")
    rows = read_stream(bench.folder / "requests-0.arrows", REQUESTS)
    kept = Requests.from_table(rows, 1)
    what = f"{SOAK_RPS:.0f} req/s for {seconds / 60:g} min"
    found = figures(kept, Window(int(kept.due_ns.min()), int(kept.due_ns.min()), int(kept.due_ns.max()) + 1))
    lag_ms = None if found.send_lag_p99_s is None else 1e3 * found.send_lag_p99_s
    twice = len(kept) - len(set(rows["request"].to_pylist()))
    flat = {name: values[len(values) // 10 :] or [0] for name, values in sizes.items()}
    return [
        Row(f"records lost, {what}", round(SOAK_RPS * seconds) - len(kept), "requests", "<= 0", 1),
        Row(f"records twice, {what}", twice, "requests", "<= 0", 1),
        Row(f"failed, {what}", sum(progress.errors.values()), "requests", "<= 0", 1),
        Row(f"p99 of send lag, {what}", lag_ms, "ms", None, 1),
        *(
            Row(f"{name} memory moved by, {what}", (max(v) - min(v)) / 2**20, "MiB", "<= 50", len(v))
            for name, v in flat.items()
        ),
    ]


def figures(requests: Requests, window: Window) -> Summary:
    return summarize(requests, window=window, planned=None, slo=None)


def selftest(*_: Any) -> list[Row]:
    from lab.run.selftest import run_selftest

    outcomes = run_selftest(say)
    failed = [outcome.id for outcome in outcomes if not outcome.passed]
    note = f"failed: {', '.join(failed)}" if failed else ""
    return [
        Row("self-tests passed", len(outcomes) - len(failed), f"of {len(outcomes)}", f">= {len(outcomes)}", 1, note)
    ]


def half(bench: Bench, peer: Path, _: float) -> list[Row]:
    """The second part of `peers` alone."""
    return half_of_saturation(bench, peer)


SECTIONS: dict[str, Callable[[Bench, Path, float], list[Row]]] = {
    "peers": peers,
    "half": half,
    "equals": equals,
    "rate": rate,
    "soak": soak,
    "selftest": selftest,
}


def measure(sections: Sequence[str], peer: Path, seconds: float) -> list[Row]:
    installation.fetch()
    rows: list[Row] = []
    for name in sections:
        if name == "selftest":
            rows += selftest()
            continue
        for model in (DIGITS, NULL, SLEEPER):
            weights.prepare(model)
        with own_home() as folder, Server.start(repository=folder / "repository", log=folder / "triton.log") as server:
            for model in (DIGITS, NULL, SLEEPER):
                server.load(model)
            with tempfile.TemporaryDirectory() as records, Generator(Path(records), workers=1) as generator:
                rows += SECTIONS[name](Bench(Path(records), server, generator), peer, seconds)
    return rows


def options() -> argparse.Namespace:
    """Those of this benchmark, taken out of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--section", action="append", choices=list(SECTIONS))
    parser.add_argument("--minutes", type=float, default=SOAK_MINUTES, help="of the soak")
    parser.add_argument("--perf-analyzer", type=Path, default=PEER)
    found, sys.argv[1:] = parser.parse_known_args()
    return found


if __name__ == "__main__":
    asked = options()
    chosen = asked.section or ["peers", "equals", "rate", "soak"]
    sys.exit(main(str(__doc__).splitlines()[0], lambda: measure(chosen, asked.perf_analyzer, 60 * asked.minutes)))
