"""A meter that engineers trust: beside perf_analyzer and AIPerf, against equals and a planted slowdown, and over time.

    .venv/bin/python benchmarks/meter.py [--json] [--section NAME]…            about 10 minutes without the self-test
    .venv/bin/python benchmarks/meter.py --section soak --minutes 60           an hour at 500 req/s
    .venv/bin/python benchmarks/meter.py --section selftest                    about three minutes

peers      throughput at 1, 8, 16 and 64 in flight, p50 and p99 at half of saturation, in alternating turns; needs
           perf_analyzer beside the project (../shared/peers/perf_analyzer)
half       the latency part of peers alone. Judged is an open loop of Poisson arrivals from one trace for both meters,
           latency from the send, where both read one server in one state: on a server that waits in place of computing,
           in turns, and on digits with both clients at once. Digits in turns is reported and not judged: on shared
           cores a client's own work slows the server, so each turn has a server of its own, whose mean service time by
           its own counters stands beside it (peer_latency.py)
equals     20 A/A pairs must be called equal, 20 pairs with a planted 20 % slowdown must not: the sleeper asked for
           12 ms in place of 10 ms
rate       2,000 req/s on the null model for a minute
soak       500 req/s on the null model: no record lost or twice, memory of client and server flat; 2 minutes unless
           told otherwise
ceilings   what the load generator itself can send and read here: requests a second on the null model, chunks a second
           of a null streaming server by protocol; reported, about a minute
selftest   every self-test of the lab

TTFT and ITL beside AIPerf's are measured by `benchmarks/decode.py --section timetable --section aiperf`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import load, peer_latency
from benchmarks.load import PEER
from benchmarks.measuring import Blocks, own_home
from benchmarks.table import Row, main, say
from lab.load.ceiling import ceiling, stream_ceiling
from lab.load.generator import Generator, Job
from lab.measure.compare import compare
from lab.measure.records import OK, REQUESTS, Requests, Window
from lab.measure.server import server_delta
from lab.measure.summary import Summary, summarize
from lab.serve import installation, weights
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.spec import Arrival, Batching, ClosedLoop, Constant, ModelSpec, Protocol, Workload
from lab.stream import read_stream
from lab.watch.host import model_processes

PAIRS = 4
EQUALS, EQUALS_S = 20, 1.5
SLOWED = 1.2
RATE_RPS, RATE_S = 2_000.0, 60.0
SOAK_RPS, SOAK_MINUTES, LOOK_S, TOLD_S = 500.0, 2.0, 5.0, 30.0
COUNT_LIMIT_S = 5.0
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
    """Three views of both meters at half of what the server can (peer_latency.py)."""
    if not peer.is_file():
        return peer_latency.not_measured(peer)
    rate_rps = load.of_the_lab(bench.blocks, bench.server, DIGITS, 16).throughput_rps / 2
    meters = peer_latency.Meters(bench.folder, bench.server, bench.generator, bench.blocks, peer)
    return [
        *peer_latency.on_the_sleeper(meters, SLEEPER),
        *peer_latency.both_at_once(meters, DIGITS, rate_rps),
        *peer_latency.in_turns_on(meters, DIGITS, rate_rps),
    ]


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
    are made in the beginning. Triton's own count of answers is the second witness. Now and then a line says how far
    it is, so that one which ends early has its figures too."""
    generator, server = bench.generator, bench.server
    before = scrape(server, [NULL.name])
    # As long as a busy machine may need: this is about what gets lost and what grows, not about time.
    workload = Workload(arrival=Constant(rate_rps=SOAK_RPS), duration_s=seconds, timeout_s=60)
    generator.begin(Job(1, server.grpc_url, NULL, workload))
    pid = server.pid
    assert pid is not None
    watched = {"client's": generator.pids, "server's": [pid, *model_processes(pid)[NULL.name]]}
    sizes: dict[str, list[int]] = {name: [] for name in watched}
    began = told = time.monotonic()
    while not (progress := generator.wait(LOOK_S)).done:
        for name, pids in watched.items():
            # Their own pages: what they share with others (libraries) weighs more as soon as others end.
            sizes[name].append(sum(psutil.Process(pid).memory_full_info().uss for pid in pids))
        if time.monotonic() - told >= TOLD_S:
            told = time.monotonic()
            mib = ", ".join(f"{name} memory {values[-1] / 2**20:.2f} MiB" for name, values in sizes.items())
            ended = f"{progress.finished:,} of {progress.sent:,} sent requests ended"
            say(f"{(told - began) / 60:.1f} min: {ended}, {sum(progress.errors.values())} failed, {mib}")
    rows = read_stream(bench.folder / "requests-0.arrows", REQUESTS)
    kept = Requests.from_table(rows, 1)
    what = f"{SOAK_RPS:.0f} req/s for {seconds / 60:g} min"
    found = figures(kept, Window(int(kept.due_ns.min()), int(kept.due_ns.min()), int(kept.due_ns.max()) + 1))
    ok = int((kept.outcome == OK).sum())
    counted = answers_counted(server, before, ok)
    flat = {name: values[len(values) // 10 :] or [0] for name, values in sizes.items()}
    return [
        Row(f"records lost, {what}", round(SOAK_RPS * seconds) - len(kept), "requests", "<= 0", 1),
        Row(f"records twice, {what}", len(kept) - len(pc.unique(rows["request"])), "requests", "<= 0", 1),
        Row(f"failed, {what}", len(kept) - ok, "requests", "<= 0", 1),
        Row(f"answers that Triton counted otherwise, {what}", abs(counted - ok), "requests", "<= 0", 1),
        *(
            Row(f"p99 of {name}, {what}", None if value is None else 1e3 * value, "ms", None, 1)
            for name, value in (("send lag", found.send_lag_p99_s), ("latency", found.latency_p99_s))
        ),
        *(
            Row(f"{name} memory moved by, {what}", (max(v) - min(v)) / 2**20, "MiB", "<= 50", len(v))
            for name, v in flat.items()
        ),
        *(
            Row(f"{name} memory at the end more than after a tenth, {what}", (v[-1] - v[0]) / 2**20, "MiB", None, 2)
            for name, v in flat.items()
        ),
    ]


def answers_counted(server: Server, before: pa.Table, at_least: int) -> int:
    """Successes of the null model that Triton has counted since the scrape `before`; it counts an answer a moment after
    it was given."""
    deadline = time.monotonic() + COUNT_LIMIT_S
    while True:
        found = server_delta(
            pa.concat_tables([before, scrape(server, [NULL.name])]), NULL.name, 0, time.perf_counter_ns()
        )
        counted = 0 if found is None else found.success_count or 0
        if counted >= at_least or time.monotonic() > deadline:
            return counted
        time.sleep(0.05)


def figures(requests: Requests, window: Window) -> Summary:
    return summarize(requests, window=window, planned=None, slo=None)


def ceilings(bench: Bench, _: Path, __: float) -> list[Row]:
    sent = Row("load generator's ceiling, null model", ceiling(bench.server.grpc_url), "req/s", None, 1)
    streams: dict[str, Protocol] = {"gRPC stream": "grpc", "/generate_stream": "http", "OpenAI's SSE": "openai"}
    read = {name: stream_ceiling(protocol=protocol) for name, protocol in streams.items()}
    rows = [Row(f"load generator's ceiling, {name}", rate, "chunks/s", None, 1) for name, rate in read.items()]
    return [sent, *rows]


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
    "ceilings": ceilings,
    "selftest": selftest,
}
ASKED = {"equals": (SLEEPER,), "rate": (NULL,), "soak": (NULL,), "ceilings": (NULL,)}
"""The models that a section asks, where it does not ask all."""


def measure(sections: Sequence[str], peer: Path, seconds: float) -> list[Row]:
    installation.fetch()
    rows: list[Row] = []
    for name in sections:
        if name == "selftest":
            rows += selftest()
            continue
        asked = ASKED.get(name, (DIGITS, NULL, SLEEPER))
        for model in asked:
            weights.prepare(model)
        with own_home() as folder, Server.start(repository=folder / "repository", log=folder / "triton.log") as server:
            for model in asked:
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
