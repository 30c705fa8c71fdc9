"""The load generator beside perf_analyzer: the same server, the same model, the same minute.

    .venv/bin/python benchmarks/load.py [--json] [--perf-analyzer PATH]         about 5 minutes

Closed loop with 1, 8, 16 and 64 requests in flight on the models digits and null, alternating lab, perf_analyzer,
perf_analyzer, lab …; a ratio is the median of the ratios of neighbours, so a machine that slows down meanwhile does
not decide. perf_analyzer is looked for beside the project (../shared/peers/perf_analyzer); without it the ratios are
not measured.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.measuring import Blocks, in_turns, median, own_home, ratio
from benchmarks.table import Row, main, say
from lab import priority
from lab.load.ceiling import ceiling
from lab.load.generator import Generator
from lab.serve import installation, weights
from lab.serve.triton import Server
from lab.spec import Batching, ModelSpec

PEER = Path(__file__).parents[2] / "shared" / "peers" / "perf_analyzer"
IN_FLIGHT = (1, 8, 16, 64)
PAIRS = 6
SECONDS, WARMUP_S = 1.5, 0.3
MODELS = (
    ModelSpec(name="digits", batching=Batching(max_batch_size=32)),
    ModelSpec(name="null", batching=Batching(max_batch_size=32)),
)


@dataclass(frozen=True)
class Figures:
    throughput_rps: float
    p50_s: float


def measure(peer: Path) -> list[Row]:
    installation.fetch()
    for model in MODELS:
        weights.prepare(model)
    rows = []
    with own_home() as folder, Server.start(repository=folder / "repository", log=folder / "triton.log") as server:
        for model in MODELS:
            server.load(model)
        with Generator(folder, workers=1) as generator:
            blocks = Blocks(folder, generator)
            for model in MODELS:
                for in_flight in IN_FLIGHT:
                    rows += rows_for(blocks, server, peer, model, in_flight)
        rate = ceiling(server.grpc_url)
    return [*rows, Row("load generator's ceiling on the null model", rate, "req/s", None, 1)]


def rows_for(blocks: Blocks, server: Server, peer: Path, model: ModelSpec, in_flight: int) -> list[Row]:
    """Throughput of both and its ratio; with one request in flight the ratio of the median latencies too."""
    there = peer.is_file()
    sides: dict[str, Callable[[], Figures]] = {"lab": lambda: of_the_lab(blocks, server, model, in_flight)}
    if there:
        sides["peer"] = lambda: perf_analyzer(peer, server, model, in_flight)
    found = in_turns(sides, PAIRS)
    ours, theirs = found["lab"], found.get("peer", [])
    what = f"{model.name}, {in_flight} in flight"
    say(
        f"{what}: lab {[round(f.throughput_rps) for f in ours]}, peer {[round(f.throughput_rps) for f in theirs]} req/s"
    )
    note = "" if there else f"no perf_analyzer at {peer}"
    rows = [
        Row(f"throughput, {what}", median([f.throughput_rps for f in ours]), "req/s", None, PAIRS),
        Row(
            f"throughput beside perf_analyzer's, {what}",
            ratio([f.throughput_rps for f in ours], [f.throughput_rps for f in theirs]),
            "ratio",
            ">= 0.95",
            len(theirs),
            note,
        ),
    ]
    if in_flight == 1:
        p50 = ratio([f.p50_s for f in ours], [f.p50_s for f in theirs])
        rows.append(Row(f"p50 beside perf_analyzer's, {what}", p50, "ratio", None, len(theirs), note))
        off = None if p50 is None else abs(p50 - 1)
        # The null model answers in less than half a millisecond, of which the clients' own cost is a good part: there
        # the two need not agree, the quicker client just shows less.
        goal = None if model.family == "null" else "<= 0.05"
        rows.append(Row(f"p50 off perf_analyzer's by, {what}", off, "", goal, len(theirs), note))
    return rows


def of_the_lab(blocks: Blocks, server: Server, model: ModelSpec, in_flight: int) -> Figures:
    found = blocks.closed(server.grpc_url, model, in_flight, SECONDS, WARMUP_S)
    return Figures(found.throughput_rps or 0.0, found.latency_p50_s or 0.0)


def perf_analyzer(peer: Path, server: Server, model: ModelSpec, in_flight: int) -> Figures:
    """Three windows of half a second, after its own warm-up."""
    command = [str(peer), "-m", model.name, "-u", server.grpc_url, "-i", "grpc", "-p", "500", "-s", "100"]
    command += ["--concurrency-range", str(in_flight)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    priority.give(process.pid, priority.MEASURED)  # as the lab's own workers get, or the ratio would be unfair
    said, _ = process.communicate(timeout=300)
    throughput = re.search(r"Throughput: ([\d.]+) infer/sec", said)
    p50 = re.search(r"p50 latency: (\d+) usec", said)
    if throughput is None or p50 is None:
        raise SystemExit(f"perf_analyzer gave no figures: {said.strip()[-300:]}")
    return Figures(float(throughput[1]), int(p50[1]) / 1e6)


def peer_option() -> Path:
    """The value of --perf-analyzer, taken out of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--perf-analyzer", type=Path, default=PEER)
    options, sys.argv[1:] = parser.parse_known_args()
    return Path(options.perf_analyzer)


if __name__ == "__main__":
    peer = peer_option()
    sys.exit(main(str(__doc__).splitlines()[0], lambda: measure(peer)))
