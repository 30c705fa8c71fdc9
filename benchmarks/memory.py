"""Many models behind one budget: is the fit predicted, does memory come back, what does the proxy cost, does it hold?

    .venv/bin/python benchmarks/memory.py [--json]         about 9 minutes

On a Triton of its own. The fit of eight models (digits and embedder in turn) is predicted from one copy of each kind;
the proxy is measured beside Triton itself over HTTP, in alternating blocks; the thousand operations come from eight
clients at random, on six models of which four fit; the adapters are benchmarks/adapters.py's.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np

from benchmarks import adapters
from benchmarks.measuring import Blocks, in_turns, own_home
from benchmarks.table import Row, main, say
from lab.load.generator import Generator
from lab.load.targets.triton_http import infer_request
from lab.measure.footprint import copies, together
from lab.run import leak
from lab.run.equality import ask
from lab.run.gate import Gate, Limits
from lab.run.plan import Block
from lab.serve import installation, leftovers, weights
from lab.serve.eviction import MIB, Refused
from lab.serve.triton import Server
from lab.spec import Batching, ClosedLoop, ModelSpec, Workload

ROOM = 2**62
EIGHT = [ModelSpec(name=f"{kind}_{n}", family=kind) for n, kind in enumerate(["digits", "embedder"] * 4)]
PAIRS, SECONDS, WARMUP_S = 6, 2.0, 0.4
CLIENTS, OPERATIONS = 8, 1000
WORKLOAD = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1)


def measure() -> list[Row]:
    installation.fetch()
    for kind in ("digits", "embedder"):
        weights.prepare(ModelSpec(name=kind))
    with own_home() as folder, Server.start(repository=folder / "repository", log=folder / "triton.log") as server:
        rows = fit(server)
        rows += hit_path(folder, server)
        rows += operations(server)
        rows += adapters.measure(folder / "adapters", server)
    return rows + leaks()


def fit(server: Server) -> list[Row]:
    """Predicted from the first copy of each kind, measured when all eight have answered; then all are unloaded."""
    warm = ModelSpec(name="null")  # what a server sets up once, whoever is served, is nobody's residue
    server.load(warm)
    ask(server.grpc_url, Block("cell", 0, 0, warm, WORKLOAD))
    server.unload(warm.name)
    meter = leak.Meter(server)
    before = meter.settled()
    with Gate(server, EIGHT, ROOM) as gate:
        shelf = gate.shelf
        predicted = 0
        for number, spec in enumerate(EIGHT):
            gate.acquire(spec.name)
            ask(server.grpc_url, Block("cell", 0, 0, spec, WORKLOAD))
            gate.release(spec.name)
            if number == 1:  # one of each kind
                first = [shelf.look(s.name) for s in EIGHT[:2]]
                predicted = together(c for one in first if one is not None for c in copies(one, 4))
        for spec in EIGHT:
            shelf.look(spec.name)
        measured, pss = shelf.measured_bytes(), shelf.pss_bytes()
        for spec in EIGHT:
            gate.unload(spec.name)
    after = meter.settled()
    left = sum(after.values()) - sum(before.values())
    grown = {part: round((after[part] - before[part]) / MIB, 1) for part in after}
    say(f"predicted {predicted / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB, PSS {(pss or 0) / MIB:.0f} MiB")
    off = abs(predicted / measured - 1)
    note = f"{predicted / MIB:.0f} of {measured / MIB:.0f} MiB"
    return [
        Row("predicted fit of 8 models off measured by", off, "", "<= 0.05", 8, note),
        Row("their PSS beside what they take together", (pss or 0) / measured, "ratio", None, 8),
        Row(
            "residue after unloading all 8, of what they took",
            max(left, 0) / measured,
            "",
            "<= 0.05",
            8,
            f"MiB: {grown}",
        ),
    ]


def hit_path(folder: Path, server: Server) -> list[Row]:
    """p50 of a loaded model over HTTP: through the proxy and straight, one user, alternating; and the same with 8."""
    spec = ModelSpec(name="digits", batching=Batching(max_batch_size=32))
    rows = []
    with Gate(server, [spec], ROOM) as gate, Generator(folder, workers=1) as generator:
        gate.acquire(spec.name)
        blocks = Blocks(folder, generator)
        for users in (1, 8):
            ways = {"straight": server.http_url, "proxy": gate.url}
            found = in_turns(
                {
                    way: partial(blocks.closed, url, spec, users, SECONDS, WARMUP_S, protocol="http")
                    for way, url in ways.items()
                },
                PAIRS,
            )
            p50s = {way: [each.latency_p50_s or 0.0 for each in side] for way, side in found.items()}
            rates = {way: [each.throughput_rps or 0.0 for each in side] for way, side in found.items()}
            added = [(a - b) * 1e3 for a, b in zip(p50s["proxy"], p50s["straight"], strict=True)]
            say(f"hit path, {users} in flight: {added} ms, {rates}")
            straight = statistics.median(p50s["straight"]) * 1e3
            goal = "<= 1" if users == 1 else None
            what = f"{users} in flight"
            rows.append(
                Row(
                    f"the hit path adds to p50, {what}",
                    statistics.median(added),
                    "ms",
                    goal,
                    PAIRS,
                    f"to {straight:.2f} ms",
                )
            )
            ratio = statistics.median(a / b for a, b in zip(rates["proxy"], rates["straight"], strict=True))
            rows.append(Row(f"throughput through the proxy, {what}", ratio, "ratio", None, PAIRS))
        gate.release(spec.name)
        gate.unload(spec.name)
    return rows


def operations(server: Server) -> list[Row]:
    """Eight clients, each with a connection of its own, do what comes to their minds; every answer is checked."""
    models = [ModelSpec(name=f"null_{n}", family="null") for n in range(6)]
    lock, endings, wrong = threading.Lock(), [], []
    began = time.monotonic()
    with Gate(server, models, ROOM, limits=Limits(wait_s=60)) as gate:
        for spec in models[:4]:
            gate.acquire(spec.name)
            gate.release(spec.name)
        budget = round(gate.shelf.size_bytes([spec.name for spec in models[:4]]) * 1.02)
        gate.set_budget(budget)

        def client(number: int) -> None:
            pick = random.Random(number)
            own = HTTPConnection(gate.url.removeprefix("http://"), timeout=120)
            for step in range(OPERATIONS // CLIENTS):
                kind = pick.choices(["infer", "unload", "pin", "unpin", "budget"], [92, 3, 1, 2, 2])[0]
                name = f"null_{min(int(pick.paretovariate(1.0)) - 1, 5)}"
                ending = "ok"
                try:
                    if kind == "infer":
                        value = np.array([[1000.0 * number + step]], np.float32)
                        headers, body = infer_request({"INPUT": value})
                        own.request("POST", f"/v2/models/{name}/infer", body, headers)
                        answer = own.getresponse()
                        said = answer.read()
                        if answer.status in (429, 503, 507):
                            ending = f"HTTP {answer.status}"
                        elif answer.status != 200:
                            ending = f"lost: HTTP {answer.status} {said[:200]!r}"
                        elif said[-4:] != value.tobytes():
                            wrong.append((name, value, said))
                    elif kind == "unload":
                        gate.unload(name)
                    elif kind == "budget":
                        gate.set_budget(round(budget * pick.choice([0.8, 1.0])))
                    else:
                        gate.pin(name, kind == "pin")
                except Refused as refusal:
                    ending = refusal.reason
                except OSError as error:
                    ending = f"lost: {error}"
                with lock:
                    endings.append(ending)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))
        counts = dict(gate.residency.counts)
        for spec in models:
            gate.pin(spec.name, False)
            gate.unload(spec.name)
    seconds = time.monotonic() - began
    kinds = {ending: endings.count(ending) for ending in set(endings)}
    say(f"operations: {kinds}, {counts}, {seconds:.0f} s")
    lost = [ending for ending in endings if ending.startswith("lost")]
    return [
        Row(
            "operations of 8 clients that ended in ok or a named refusal",
            float(len(endings) - len(lost)),
            "",
            f">= {OPERATIONS}",
            OPERATIONS,
            f"{seconds:.0f} s, {counts.get('loads', 0)} loads",
        ),
        Row("wrong answers among them", float(len(wrong)), "", "<= 0", OPERATIONS),
        Row("server alive afterwards", float(server.alive()), "", ">= 1", 1),
    ]


def leaks() -> list[Row]:
    """The hunt on a model that leaks 20 MiB of shared memory a cycle, and on one that does not."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        planted = Path(folder) / "planted"
        leak_in_shared_memory(planted)
        found = leak.leak(leak.Folder(planted), 5, report=say)
        rows.append(
            Row(
                "planted leak of 20 MiB a cycle, found in 5 cycles as",
                found.slope.bytes / MIB,
                "MiB",
                ">= 19",
                5,
                found.text,
            )
        )
    found = leak.leak(leak.subject("null"), 5, report=say)
    rows.append(
        Row("slope of the null model, which leaks nothing", found.slope.bytes / MIB, "MiB", "<= 0.5", 5, found.text)
    )
    return rows


def leak_in_shared_memory(place: Path, mib: int = 20) -> None:
    """A model folder whose model leaves a file of that size in /dev/shm at every load."""
    (place / "1").mkdir(parents=True)
    (place / "config.pbtxt").write_text(
        'name: "planted"\nbackend: "python"\nmax_batch_size: 1\n'
        'input { name: "INPUT" data_type: TYPE_FP32 dims: 1 }\noutput { name: "OUTPUT" data_type: TYPE_FP32 dims: 1 }\n'
        "instance_group { count: 1 kind: KIND_CPU }\n"
    )
    (place / "1" / "model.py").write_text(
        "import os, secrets\n"
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        f"        with open('/dev/shm/planted_leak_' + secrets.token_hex(8), 'wb') as file:\n"
        f"            file.write(os.urandom(1024) * {mib * 1024})\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT', "
        "pb_utils.get_input_tensor_by_name(r, 'INPUT').as_numpy())]) for r in requests]\n"
    )


if __name__ == "__main__":
    try:
        status = main(str(__doc__).splitlines()[0], measure)
    finally:
        for left in leftovers.SHM.glob("planted_leak_*"):
            left.unlink(missing_ok=True)
    sys.exit(status)
