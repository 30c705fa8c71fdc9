"""Self-tests that compare two instruments on one server: S11 observer cost, S12 second opinion, S13 A/A and a planted
slowdown, S15 memory truth, S16 equality, S18 replay.

Most are on the sleeper, whose service is known and which other work on the machine disturbs least.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from lab.errors import RunError, ServerError
from lab.load.payload import requests_for
from lab.load.targets import Tensors, triton_http
from lab.load.targets.triton_grpc import infer_request
from lab.measure.compare import compare
from lab.measure.leak import Cycle, judge
from lab.measure.records import OK
from lab.run import results
from lab.run.equality import ask, compare_answers
from lab.run.folder import RunFolder
from lab.run.outcome import Outcome
from lab.run.plan import Block
from lab.run.results import BlockResult
from lab.run.second_opinion import Asked, second_opinion
from lab.serve.triton import Server
from lab.spec import Batching, ClosedLoop, Experiment, ModelSpec, Workload, parse
from lab.watch.host import model_processes, resident

PROJECT = Path(__file__).resolve().parents[2]
PAIRS, PAIR_S = 20, 0.8
OPINION_S, OPINION_TURNS = {"grpc": 2.5, "http": 1.0}, 5
"""Seconds of each client in each of its turns; over gRPC long enough together for a p99 of 20 ms sleeps."""
LEAST_EQUAL = 18
SLOWED = 1.2
MIB = 2**20
HELD_MIB = 256
HOLDER = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        mib = int(json.loads(args["model_config"])["parameters"]["mib"]["string_value"])
        self.held = np.ones(mib * 2**20, np.uint8)  # written, so that it is there

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))]) for _ in requests]
"""
HOLDER_CONFIG = """
name: "{name}"
backend: "python"
input [{{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}]
instance_group [{{ count: 1 kind: KIND_CPU }}]
parameters {{ key: "mib" value {{ string_value: "{mib}" }} }}
"""

Measure = Callable[..., BlockResult]


def all_of_them(folder: RunFolder, server: Server, measure: Measure, known: BlockResult) -> Iterator[Outcome]:
    """`measure` is the self-test's own; `known` its block of S1."""
    yield _observer(folder, measure)
    yield _second_opinion(server, measure)
    yield _equals(measure)
    yield _memory(server)
    yield _equality(server)
    yield _replay(folder, known)


def _sleeping(seconds: float, duration_s: float, users: int = 4, seed: int = 7) -> dict[str, Any]:
    arrival = {"kind": "closed", "concurrency": users}
    return {"arrival": arrival, "duration_s": duration_s, "warmup_s": 0.2, "sleep_s": [seconds], "seed": seed}


def _observer(folder: RunFolder, measure: Measure) -> Outcome:
    """Headless against a reader that follows the run as the live page does, twice each, in turns."""
    alone: list[BlockResult] = []
    watched: list[BlockResult] = []
    for turn in (False, True, True, False):
        reader = None
        if turn:
            command = [sys.executable, "-m", "lab.run.served_truths", folder.run_id]
            reader = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            (watched if turn else alone).append(measure(_sleeping(0.010, 4.0), instances=4))
        finally:
            if reader is not None:
                reader.kill()
                reader.wait()
    a, b = ([(x.requests, x.window) for x in side] for side in (alone, watched))
    rate, tail = compare(a, b, "throughput_rps"), compare(a, b, "latency_p99_s")
    if rate.ratio is None or tail.ratio is None:
        raise RunError("self-test: the sleeper answered too few requests to compare")
    # What the interval does not rule out is not held against the lab.
    passed = (rate.ratio >= 0.98 or rate.verdict != "lower") and (tail.ratio <= 1.05 or tail.verdict != "higher")
    text = f"followed by a reader: throughput {rate.ratio:.3f} ×, p99 {tail.ratio:.3f} × of headless"
    return Outcome("S11", passed, rate.ratio, 1.0, "2 % of throughput, 5 % of p99, or no detectable difference", text)


def _second_opinion(server: Server, measure: Measure) -> Outcome:
    """The same server by gRPC's own client and by Python's HTTP client, one request after the other; perf_analyzer's
    opinion is benchmarks/meter.py."""
    request = requests_for(ModelSpec(name="sleeper"), _workload(0.020), 1)[0]
    ask = {"grpc": _by_grpc(server.grpc_url, request), "http": _by_http(server.http_url, request)}
    return second_opinion(
        {
            protocol: [_both(measure, protocol, ask[protocol], seconds) for _ in range(OPINION_TURNS)]
            for protocol, seconds in OPINION_S.items()
        }
    )


def _both(measure: Measure, protocol: str, other: Callable[[float], Asked], seconds: float) -> tuple[Asked, Asked]:
    """The lab's and the other's in turn, so many seconds each."""
    block = measure({**_sleeping(0.020, seconds + 0.2, users=1), "protocol": protocol})
    requests, window = block.requests, block.window
    inside = (requests.outcome == OK) & (requests.due_ns >= window.measured_from_ns)
    took_s = (requests.done_ns - requests.sent_ns)[inside] / 1e9
    return Asked(np.asarray(took_s), (window.end_ns - window.measured_from_ns) / 1e9), other(seconds)


def _by_grpc(url: str, request: Tensors) -> Callable[[float], Asked]:
    message = service_pb2.ModelInferRequest.FromString(infer_request("sleeper", request))

    def ask(seconds: float) -> Asked:
        with grpc.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return _timed(lambda: stub.ModelInfer(message, timeout=10), seconds)

    return ask


def _by_http(url: str, request: Tensors) -> Callable[[float], Asked]:
    headers, body = triton_http.infer_request(request)

    def ask(seconds: float) -> Asked:
        connection = http.client.HTTPConnection(url.partition("://")[2], timeout=10)

        def once() -> None:
            connection.request("POST", "/v2/models/sleeper/infer", body, headers)
            connection.getresponse().read()

        try:
            return _timed(once, seconds)
        finally:
            connection.close()

    return ask


def _timed(once: Callable[[], object], seconds: float) -> Asked:
    took_s: list[float] = []
    began = time.perf_counter()
    while (start := time.perf_counter()) < began + seconds:
        once()
        took_s.append(time.perf_counter() - start)
    return Asked(np.array(took_s), time.perf_counter() - began)


def _equals(measure: Measure) -> Outcome:
    same = found = 0
    for pair in range(PAIRS):
        blocks = [measure(_sleeping(s, PAIR_S, seed=pair), instances=4) for s in (0.010, 0.010, 0.010 * SLOWED)]
        a, b, slow = ([(block.requests, block.window)] for block in blocks)
        same += compare(a, b, "latency_p50_s").verdict == "no detectable difference"
        found += compare(a, slow, "latency_p50_s").verdict == "higher"
    text = f"{same} of {PAIRS} equal pairs are called equal, {found} of {PAIRS} slowdowns by 20 % are found"
    passed = same >= LEAST_EQUAL and found == PAIRS
    return Outcome("S13", passed, float(same), float(PAIRS), f"{LEAST_EQUAL} of {PAIRS}, and all", text)


def _memory(server: Server) -> Outcome:
    """A model that holds 256 MiB beside its twin that holds none; and whether a planted leak is called one."""
    if server.managed is None or server.pid is None:
        raise ServerError("the memory test needs a server that the lab started")
    sizes = []
    for name, mib in (("lab_holder", HELD_MIB), ("lab_twin", 0)):
        version = Path(server.managed.repository) / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version.parent / "config.pbtxt").write_text(HOLDER_CONFIG.format(name=name, mib=mib))
        (version / "model.py").write_text(HOLDER)
        server.client.load_model(name)
        found = resident(model_processes(server.pid).get(name, []))
        sizes.append(None if found is None else found.own_bytes)
        server.unload(name)
        shutil.rmtree(version.parent)
    if sizes[0] is None or sizes[1] is None:
        return Outcome("S15", None, None, None, "5 %", "the memory of processes cannot be read here")
    held = (sizes[0] - sizes[1]) / MIB
    leak = judge([_cycle(n, 20 * MIB) for n in range(6)], {}).verdict
    text = f"a model of {HELD_MIB} MiB takes {held:.1f} MiB more than its twin; 20 MiB a cycle are called {leak}"
    passed = abs(held / HELD_MIB - 1) <= 0.05 and leak == "leak"
    return Outcome("S15", passed, held, float(HELD_MIB), "5 %; found in 5 cycles", text)


def _cycle(number: int, leaked: int) -> Cycle:
    """A made-up cycle of a model of 100 MiB on a server that keeps `leaked` bytes of each."""
    before = {"server": float(500 * MIB + number * leaked)}
    return Cycle(1.0, 1.0, before, {"server": before["server"] + 100 * MIB}, {"server": before["server"] + leaked})


def _equality(server: Server) -> Outcome:
    """The digits model answers alike with batching and without."""
    levels: Sequence[Batching | None] = (None, Batching(max_batch_size=32))
    blocks, answers = [], []
    for level in levels:
        model = ModelSpec(name="digits", batching=level)
        server.load(model)
        block = Block("cell", 0, 0, model, _workload(0.0), None if level is None else level.model_dump(mode="json"))
        blocks.append(block)
        answers.append(ask(server.grpc_url, block))
    server.unload("digits")
    found = compare_answers(blocks, answers, None)
    other = found["levels"][1]
    text = f"{found['requests']} answers with batching on, {other['differing']} of them differ from off"
    return Outcome("S16", bool(other["equal"]), float(other["differing"]), 0.0, f"{found['tolerance']:g}", text)


def _replay(folder: RunFolder, known: BlockResult) -> Outcome:
    """Records that are read back give the very figures again."""
    experiment = parse(Experiment, folder.document["experiment"])
    again = next(b for b in results.block_results(folder, experiment) if b.number == known.number)
    then, now = known.summary.to_dict(), again.summary.to_dict()
    differing = [name for name in then if then[name] != now[name]]
    text = f"{len(then) - len(differing)} of {len(then)} figures of a block are the same from its records"
    return Outcome("S18", not differing, float(len(differing)), 0.0, "exact", text)


def _workload(sleep_s: float) -> Workload:
    return Workload(arrival=ClosedLoop(concurrency=1), duration_s=1.0, sleep_s=(sleep_s,))


def follow(run_id: str) -> None:
    """What the live page does once a second, until somebody ends it."""
    from lab.run.live import Live

    live = Live(RunFolder.open(run_id))
    while True:
        live.update()
        time.sleep(1.0)


if __name__ == "__main__":
    follow(sys.argv[1])
