"""What "rollout" must show: a guard that is seldom wrong, a gateway that costs little, a switch that loses nothing.

    .venv/bin/python benchmarks/rollout.py [--json] [--only=guard,cost,streams,idle,vanish,switch,canary]    12 minutes

The guard's rows are simulated (lab/measure/rollout_sim.py), four processes at a time where there are cores; all others
are measured on a real Triton behind a gateway in a process of its own, direct and through it by turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.table import Row, main, say
from lab import priority
from lab.gateway.triton import TritonUpstream
from lab.home import home
from lab.load.generator import Generator, Job
from lab.load.payload import held_out_digits
from lab.measure.guard import Tolerance
from lab.measure.records import REQUESTS, Requests
from lab.measure.rollout_sim import Ending, Story, simulate
from lab.measure.summary import summarize
from lab.serve import weights
from lab.serve.metrics import scrape
from lab.serve.repository import write_model
from lab.serve.triton import Server
from lab.spec import ClosedLoop, ModelSpec, Workload, parse
from lab.stream import read_stream
from lab.track.canary import last_look
from lab.track.rollout import Routes, Version, add_version, begin, move, switch

PROJECT = Path(__file__).parents[1]
DIGITS = ModelSpec(name="digits")
LLM = ModelSpec(name="llm")
ROLLOUTS = 100
STORIES = {
    "an identical v2": Story(),
    "a v2 with 20 % higher p95": Story(slower=1.2),
    "a v2 with 2 % errors": Story(errors=0.02),
    "a v2 with 5 points less quality": Story(worse=0.05),
}
RATE_RPS = 100
PAIRS = 4
IDLE, VANISHING = 200, 50
MIB = 2**20


@dataclass(frozen=True)
class Bench:
    """`url` of the gateway, its process, and the Triton behind it."""

    url: str
    process: psutil.Process
    server: Server


PARTS: dict[str, Callable[[Bench], list[Row]]] = {}


def measure() -> list[Row]:
    only = next((word.partition("=")[2].split(",") for word in ONLY), ["guard", *PARTS])
    rows = guard() if "guard" in only else []
    wanted = [name for name in PARTS if name in only]
    if not wanted:
        return rows
    for spec in (DIGITS, LLM):
        weights.prepare(spec)
    with suppress(OSError):  # the client is measured too
        os.setpriority(os.PRIO_PROCESS, 0, priority.MEASURED)
    with running() as bench:
        for name in wanted:
            say(name)
            rows += PARTS[name](bench)
    return rows


# --- the guard --------------------------------------------------------------------------------------------------------


def guard() -> list[Row]:
    """100 simulated rollouts of each kind, at 100 req/s through 1, 5, 25 and 100 %."""
    rows = []
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for name, story in STORIES.items():
            found = list(pool.map(_rollout, [story] * ROLLOUTS, range(ROLLOUTS), chunksize=5))
            ends = Counter(one.end for one in found)
            say(f"{name}: {dict(ends)}")
            back = [one for one in found if one.end == "rolled_back"]
            alike = story == Story()
            note = f"{dict(ends)}; {_touched(found if alike else back)}"
            goal = "<= 5" if alike else ">= 95"
            rows.append(Row(f"guard: rollbacks of {name}, of {ROLLOUTS}", len(back), "", goal, ROLLOUTS, note))
    return rows


def _rollout(story: Story, seed: int) -> Ending:
    return simulate(story, Tolerance(), seed=seed)


def _touched(found: list[Ending]) -> str:
    if not found:
        return "none"
    touched = np.array([one.touched for one in found])
    harmed, seconds = (statistics.median(getattr(one, name) for one in found) for name in ("harmed", "seconds"))
    low, middle, high = np.percentile(touched, (5, 50, 95))
    return (
        f"v2 had {middle:.0f} requests ({low:.0f} to {high:.0f}) in {seconds:.0f} s (median), "
        f"{harmed:.0f} of them failed or bad"
    )


# --- a gateway --------------------------------------------------------------------------------------------------------


@contextmanager
def running() -> Iterator[Bench]:
    """A LAB_HOME of this benchmark's own, with the downloads and weights of the real one."""
    real = home()
    with tempfile.TemporaryDirectory(prefix="lab-rollout-") as folder:
        for name in ("downloads", "triton", "models"):
            (Path(folder) / name).symlink_to(real / name)
        os.environ["LAB_HOME"] = folder
        command = [sys.executable, "-m", "lab", "gateway", "--model", "llm", "--model", "digits", "--port", "0"]
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, start_new_session=True)
        priority.give(process.pid, priority.MEASURED)
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("gateway on ")), "")
            if not line:
                raise SystemExit(f"the gateway ended with status {process.wait(10)}")
            server = Server.attach()
            assert server is not None
            with server:
                yield Bench(line.split()[2], psutil.Process(process.pid), server)
        finally:
            process.terminate()
            process.wait(60)
            os.environ["LAB_HOME"] = str(real)


def get(bench: Bench, path: str) -> Any:
    with urllib.request.urlopen(f"{bench.url}{path}", timeout=30) as answer:
        return json.load(answer)


def settled(bench: Bench, limit_s: float = 20.0) -> int:
    """Requests still under way after they have had time to end."""
    until_s = time.monotonic() + limit_s
    while (left := int(get(bench, "/routes")["in_flight"])) and time.monotonic() < until_s:
        time.sleep(0.05)
    return left


def cost(bench: Bench) -> list[Row]:
    """p50 of `digits` at 100 req/s, direct over gRPC and through the gateway's JSON, by turns in one process."""
    image = held_out_digits()[:1]
    body = json.dumps({"inputs": {"IMAGE": image.tolist()}}).encode()

    async def both() -> tuple[list[float], list[float]]:
        upstream = TritonUpstream(f"grpc://{bench.server.grpc_url}")
        await upstream.open()
        async with aiohttp.ClientSession() as session:

            async def direct() -> None:
                await upstream.infer("digits", {"IMAGE": image}, "")

            async def through() -> None:
                async with session.post(f"{bench.url}/predict/digits", data=body) as answer:
                    assert answer.status == 200
                    await answer.read()

            found: tuple[list[float], list[float]] = ([], [])
            for turn in range(PAIRS + 1):
                for way in (0, 1) if turn % 2 else (1, 0):
                    times = await paced((direct, through)[way], 5 * RATE_RPS)
                    if turn:  # the first warms up
                        found[way].append(statistics.median(times))
            await upstream.close()
            return found

    direct, through = uvloop.run(both())
    added = [(b - a) * 1e3 for a, b in zip(direct, through, strict=True)]
    say(f"direct {direct}, through {through}")
    note = f"to {statistics.median(direct) * 1e3:.2f} ms; by pair {', '.join(f'{a:.2f}' for a in added)}"
    return [Row("the gateway adds to p50 at 100 req/s", statistics.median(added), "ms", "<= 1.5", PAIRS, note)]


async def paced(call: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each of `count` calls, started at RATE_RPS."""
    times: list[float] = []

    async def one() -> None:
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)

    start, tasks = time.perf_counter(), []
    for n in range(count):
        await asyncio.sleep(max(0.0, start + n / RATE_RPS - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one()))
    await asyncio.gather(*tasks)
    return times


def streams(bench: Bench) -> list[Row]:
    """Output tokens a second at 8 in flight, over gRPC's stream and through the gateway's events, by turns."""
    rates: dict[str, list[float]] = {"grpc": [], "openai": []}
    with tempfile.TemporaryDirectory() as folder, Generator(Path(folder), workers=1) as generator:
        block = 0
        for pair in range(PAIRS):
            for protocol in ("grpc", "openai") if pair % 2 else ("openai", "grpc"):
                block += 1
                url = bench.server.grpc_url if protocol == "grpc" else bench.url
                workload = Workload(
                    arrival=ClosedLoop(concurrency=8),
                    duration_s=12,
                    warmup_s=2,
                    prompt_tokens=32,
                    output_tokens=64,
                    protocol=protocol,
                    timeout_s=60,
                    seed=pair,
                )
                window = generator.begin(Job(block, url, LLM, workload, weights.tokenizer(LLM)))
                generator.wait(120)
                requests = Requests.from_table(read_stream(Path(folder) / "requests-0.arrows", REQUESTS), block)
                summary = summarize(requests, window=window, planned=None, slo=None, closed_loop=True)
                if summary.error_fraction or not summary.output_tokens_per_s:
                    raise SystemExit(f"streams, {protocol}: {summary.problems}")
                rates[protocol].append(summary.output_tokens_per_s)
    say(f"tokens/s: {rates}")
    ratios = [a / b for a, b in zip(rates["openai"], rates["grpc"], strict=True)]
    note = f"{statistics.median(rates['grpc']):.0f} tokens/s direct; by pair {', '.join(f'{r:.3f}' for r in ratios)}"
    return [
        Row("streaming through the gateway, 8 in flight", statistics.median(ratios), "ratio", ">= 0.95", PAIRS, note)
    ]


def idle(bench: Bench) -> list[Row]:
    """What 200 streams take that have begun and wait: most of them for the engine, which works on eight."""
    before = bench.process.memory_info().rss
    body = json.dumps(
        {"model": "llm", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    ).encode()

    async def hold() -> tuple[int, int]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            asked = [asyncio.ensure_future(session.post(f"{bench.url}/v1/completions", data=body)) for _ in range(IDLE)]
            await asyncio.sleep(5)
            held = await asyncio.to_thread(get, bench, "/routes")
            whole = bench.process.memory_info().rss
            for one in asked:
                one.cancel()
            return int(held["in_flight"]), whole

    held, whole = uvloop.run(hold())
    left = settled(bench)
    note = f"{(whole - before) / MIB:.0f} MiB more than before, {held} held"
    return [
        Row("200 idle streams: memory of the gateway's process", whole / MIB, "MiB", "<= 300", held, note),
        Row("… left under way after they went", left, "", "<= 0", IDLE),
    ]


def vanish(bench: Bench) -> list[Row]:
    """Rounds of clients that read three events of a long answer and are gone without a word."""
    host, port = bench.url.removeprefix("http://").split(":")
    body = json.dumps(
        {"model": "llm", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + body)
        for _ in range(3):
            await reader.readuntil(b"\n\n")
        writer.transport.abort()

    async def round_() -> None:
        await asyncio.gather(*(one() for _ in range(8)))

    before = bench.process.num_fds()
    uvloop.run(round_())
    settled(bench)
    tokens = engine(bench, "engine_output_tokens")
    for _ in range(VANISHING):
        uvloop.run(round_())
    left = settled(bench)
    time.sleep(1)
    counts = {field: engine(bench, field) for field in ("engine_running", "engine_waiting", "engine_cache_tokens_used")}
    fds = bench.process.num_fds()
    wrote = (engine(bench, "engine_output_tokens") or 0) - (tokens or 0)
    each = wrote / (8 * VANISHING)
    say(f"left {left}, engine {counts}, {before} to {fds} file descriptors, {each:.1f} tokens each")
    rows = [
        Row("50 rounds of 8 vanishing clients: requests left in the gateway", left, "", "<= 0", 8 * VANISHING),
        Row("… connections left in the gateway", max(fds - before, 0), "", "<= 2", 8 * VANISHING, f"{before} → {fds}"),
    ]
    for field, value in counts.items():
        rows.append(Row(f"… {field}", value, "", "<= 0", 8 * VANISHING))
    return [*rows, Row("… tokens written for a client that read 3 events", each, "tokens", None, 8 * VANISHING)]


def engine(bench: Bench, field: str) -> float | None:
    rows = scrape(bench.server, ["llm"]).to_pylist()
    return next((row["value"] for row in rows if row["field"] == field), None)


def switch_rows(bench: Bench) -> list[Row]:
    """Switch and way back under 200 req/s of predictions and 8 open streams: each request is accounted for."""
    for family in ("digits", "llm"):
        bench.server.load(ModelSpec(name=f"{family}_b", family=family))
    routes = Routes()
    for model in ("digits", "llm"):
        replica = {"url": "lab", "model": f"{model}_b"}
        add_version(routes, model, parse(Version, {"version": "2", "weight": 0, "replicas": [replica]}))
    time.sleep(0.2)
    answers = uvloop.run(under_switch(bench, routes))
    left = settled(bench, 60)
    return [*accounted(answers), Row("… requests left under way", left, "", "<= 0", len(answers))]


@dataclass(frozen=True)
class Answer:
    """`number` is the image's or the user's, `at_s` when it was sent; `version` None: no whole answer. `said`: what
    came, without its id."""

    kind: str
    number: int
    at_s: float
    id: str
    version: str | None
    said: str


async def under_switch(bench: Bench, routes: Routes) -> list[Answer]:
    """12 s of load; to version 2 after 4 s and back after 8 s."""
    images = held_out_digits()[:50]
    bodies = [json.dumps({"inputs": {"IMAGE": image[None].tolist()}}).encode() for image in images]
    question = {"model": "llm", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "stream": True}
    answers: list[Answer] = []
    began = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def predict(n: int) -> None:
            at_s, own = time.perf_counter() - began, f"p{n}"
            try:
                headers = {"X-Request-Id": own}
                async with session.post(f"{bench.url}/predict/digits", data=bodies[n % 50], headers=headers) as answer:
                    told = await answer.json()
                    version = told["version"] if answer.status == 200 else None
                    answers.append(
                        Answer(
                            "predict", n % 50, at_s, told.get("id", own), version, json.dumps(told.get("outputs", told))
                        )
                    )
            except (aiohttp.ClientError, OSError) as error:
                answers.append(Answer("predict", n % 50, at_s, own, None, str(error)))  # fmt: skip

        async def talk(user: int) -> None:
            turn = 0
            while time.perf_counter() - began < 12:
                at_s, own, text, version, whole = time.perf_counter() - began, f"s{user}-{turn}", "", None, False
                turn += 1
                body = json.dumps({**question, "prompt": f"Story {user}:"}).encode()
                async with session.post(
                    f"{bench.url}/v1/completions", data=body, headers={"X-Request-Id": own}
                ) as answer:
                    version = answer.headers["X-Model-Version"]
                    async for line in answer.content:
                        if line.startswith(b"data: {"):
                            choice = json.loads(line[6:]).get("choices")
                            text += choice[0]["text"] if choice else ""
                        whole = whole or line.startswith(b"data: [DONE]")
                answers.append(Answer("stream", user, at_s, own, version if whole else None, text))

        talks = [asyncio.ensure_future(talk(user)) for user in range(8)]
        tasks = []
        done = 0
        for n in range(12 * 200):
            await asyncio.sleep(max(0.0, began + n / 200 - time.perf_counter()))
            if done < 2 and n >= (4 * 200, 8 * 200)[done]:
                done += 1
                for model in ("digits", "llm"):
                    await asyncio.to_thread(switch, routes, model, "2" if done == 1 else "1")
            tasks.append(asyncio.ensure_future(predict(n)))
        await asyncio.gather(*tasks, *talks)
    return answers


def accounted(answers: list[Answer]) -> list[Row]:
    count = len(answers)
    lost = sum(one.version is None for one in answers)
    twice = count - len({(one.kind, one.id) for one in answers})
    versions = Counter((one.kind, one.version) for one in answers)
    firsts = {
        (a.kind, a.number): a.said for a in sorted(answers, key=lambda a: a.at_s) if a.version == "1" and a.at_s < 3.5
    }
    after = [a for a in answers if a.version == "1" and a.at_s > 8.5 and (a.kind, a.number) in firsts]
    other = sum(a.said != firsts[a.kind, a.number] for a in after)
    say(f"switch: {count} requests, by version {dict(versions)}, {len(after)} compared")
    note = ", ".join(f"{kind} by version {version}: {n}" for (kind, version), n in sorted(versions.items(), key=str))
    return [
        Row("switch and back under 200 req/s and 8 streams: lost", lost, "", "<= 0", count, note),
        Row("… answered twice", twice, "", "<= 0", count),
        Row("… answers after the way back unlike those before the switch", other, "", "<= 0", len(after)),
        Row("… answered by version 2", sum(one.version == "2" for one in answers), "", ">= 1", count),
    ]


# --- a real canary ----------------------------------------------------------------------------------------------------

FAULTS = {
    "a v2 in bf16, which is as good": "",
    "a v2 that is slower in one answer of ten": "if random.random() < 0.1: time.sleep(0.05)",
    "a v2 that errs in 2 %": "if random.random() < 0.02: raise RuntimeError('planted')",
    "a v2 that is wrong in 5 % more": "if random.random() < 0.05: values = values[:, ::-1].copy()",
}
"""What is planted into a copy of the model, by name; `values` are its logits."""
CANARY_S = 75.0


def canary(bench: Bench) -> list[Row]:
    """Version 2 with a fault planted into the real model, at 100 req/s whose answers are scored against the labels:
    5 %, 25 %, all. How the rollout stood after CANARY_S at most, and what version 2 had had by then."""
    rows = []
    for number, (name, fault) in enumerate(FAULTS.items()):
        model = f"digits_{number}"
        if fault:
            plant(bench.server, model, fault)
        else:
            bench.server.load(ModelSpec(name=model, family="digits", precision="bf16"))
        routes, version = Routes(), f"canary{number}"
        replica = {"url": "lab", "model": model}
        add_version(routes, "digits", parse(Version, {"version": version, "weight": 0, "replicas": [replica]}))
        begin(routes, "digits", version, steps=(0.05, 0.25, 1.0))
        time.sleep(0.2)
        seconds = uvloop.run(scored(bench, routes))
        routes.refresh()
        state = routes.by_name["digits"].canary
        assert state is not None
        look = last_look(routes, "digits") or {}
        if state.state == "going":
            move(routes, "digits", "roll_back")
        elif state.state == "promoted":
            switch(routes, "digits", "1")
        said = (look.get("verdict") or {}).get("text", "")
        say(f"{name}: {state.state} after {seconds:.0f} s, {look.get('touched')} requests; {said}")
        back = float(state.state == "rolled_back")
        goal = ">= 1" if fault else "<= 0"
        rows.append(
            Row(f"canary: {name}, rolled back", back, "", goal, 1, f"{state.state} after {seconds:.0f} s: {said}")
        )
        rows.append(Row("… requests that it had had", look.get("touched"), "", None, 1))
    return rows


async def scored(bench: Bench, routes: Routes) -> float:
    """Seconds until the rollout ended, at most CANARY_S of them."""
    images, labels = held_out_digits(), held_out_labels()
    bodies = [json.dumps({"inputs": {"IMAGE": image.tolist()}}).encode() for image in images]
    began = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(n: int) -> None:
            async with session.post(f"{bench.url}/predict/digits", data=bodies[n]) as answer:
                if answer.status != 200:
                    return
                told = await answer.json()
            right = float(int(np.argmax(told["outputs"]["LOGITS"])) == labels[n])
            body = json.dumps({"id": told["id"], "score": right}).encode()
            async with session.post(f"{bench.url}/v1/feedback", data=body) as answer:
                await answer.read()

        tasks = []
        for n in range(int(CANARY_S * RATE_RPS)):
            await asyncio.sleep(max(0.0, began + n / RATE_RPS - time.perf_counter()))
            tasks.append(asyncio.ensure_future(one(n % len(bodies))))
            if n % RATE_RPS == 0:
                routes.refresh()
                state = routes.by_name["digits"].canary
                if state is None or state.state != "going":
                    break
        await asyncio.gather(*tasks)
    return time.perf_counter() - began


def held_out_labels() -> np.ndarray:
    """Of payload.held_out_digits, row by row."""
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().target[3::4])


def plant(server: Server, name: str, fault: str) -> None:
    """A copy of the digits model that does `fault` before it answers."""
    assert server.managed is not None
    write_model(ModelSpec(name=name, family="digits"), Path(server.managed.repository))
    place = Path(server.managed.repository) / name / "1"
    (place / "good.py").write_bytes((place / "model.py").read_bytes())
    (place / "model.py").write_text(
        "import random, time\n"
        "import triton_python_backend_utils as pb_utils\n"
        "from .good import TritonPythonModel as Good\n"
        "class TritonPythonModel(Good):\n"
        "    def execute(self, requests):\n"
        "        answers = []\n"
        "        for answer in super().execute(requests):\n"
        "            values = answer.output_tensors()[0].as_numpy()\n"
        "            try:\n"
        f"                {fault}\n"
        "                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('LOGITS', values)]))\n"
        "            except RuntimeError as error:\n"
        "                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))\n"
        "        return answers\n"
    )
    server.client.load_model(name)


PARTS |= {"cost": cost, "streams": streams, "idle": idle, "vanish": vanish, "switch": switch_rows, "canary": canary}
ONLY = [word for word in sys.argv[1:] if word.startswith("--only=")]

if __name__ == "__main__":
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in ONLY]
    sys.exit(main(str(__doc__).splitlines()[0], measure))
