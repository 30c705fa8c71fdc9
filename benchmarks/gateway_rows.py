"""What the gateway costs and leaves behind, as rows of benchmarks/rollout.py: beside direct gRPC, 200 idle streams,
clients that vanish. A real Triton behind a gateway in a process of its own, direct and through it by turns."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

from benchmarks.table import Row, say
from lab import priority
from lab.gateway.triton import TritonUpstream
from lab.home import home
from lab.load.generator import Generator, Job
from lab.load.payload import held_out_digits
from lab.measure.records import REQUESTS, Requests
from lab.measure.summary import summarize
from lab.serve import weights
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.spec import ClosedLoop, ModelSpec, Workload
from lab.stream import read_stream

PROJECT = Path(__file__).parents[1]
DIGITS = ModelSpec(name="digits")
LLM = ModelSpec(name="llm")
RATE_RPS = 100
PAIRS = 4
IDLE, VANISHING, CANCELLED = 200, 50, 20
MIB = 2**20


@dataclass(frozen=True)
class Bench:
    """`url` of the gateway, its process, and the Triton behind it."""

    url: str
    process: psutil.Process
    server: Server


@contextmanager
def own_home() -> Iterator[None]:
    """A LAB_HOME of this benchmark's own, with the downloads and weights of the real one."""
    real = home()
    with tempfile.TemporaryDirectory(prefix="lab-rollout-") as folder:
        for name in ("downloads", "triton", "models"):
            (Path(folder) / name).symlink_to(real / name)
        os.environ["LAB_HOME"] = folder
        try:
            yield
        finally:
            os.environ["LAB_HOME"] = str(real)


@contextmanager
def running() -> Iterator[Bench]:
    """A gateway with both models, as its command starts it."""
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
    note = f"{(whole - before) / MIB:.0f} MiB more than before"
    return [
        Row("200 idle streams: held by the gateway", held, "", f">= {IDLE}", IDLE),
        Row("… memory of its process then", whole / MIB, "MiB", "<= 300", held, note),
        Row("… left under way after they went", left, "", "<= 0", IDLE),
    ]


def cancel(bench: Bench) -> list[Row]:
    """What the engine still writes for a client that reads ten events and closes, one client at a time: its own count
    less what was said in the last event that the client read."""
    host, port = bench.url.removeprefix("http://").split(":")
    counted = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"model": "llm", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    body = json.dumps({**asked, "stream_options": counted}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def one() -> int:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + body)
        said = 0
        for _ in range(10):
            event = await reader.readuntil(b"\n\n")
            if b"data: {" in event:
                said = int(json.loads(event[event.index(b"data: ") + 6 :])["usage"]["completion_tokens"])
        writer.transport.abort()
        return said

    uvloop.run(one())
    settled(bench)
    time.sleep(1.5)  # the engine's figures are told twice a second
    before, read = engine(bench, "engine_output_tokens"), 0
    for _ in range(CANCELLED):
        read += uvloop.run(one())
        settled(bench)
    time.sleep(1.5)
    wrote = engine(bench, "engine_output_tokens") - before
    note = f"{wrote:.0f} written, {read} read"
    return [Row("tokens written after a client closed", (wrote - read) / CANCELLED, "tokens", "<= 2", CANCELLED, note)]


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
    each = (engine(bench, "engine_output_tokens") - tokens) / (8 * VANISHING)
    say(f"left {left}, engine {counts}, {before} to {fds} file descriptors, {each:.1f} tokens each")
    rows = [
        Row("50 rounds of 8 vanishing clients: requests left in the gateway", left, "", "<= 0", 8 * VANISHING),
        Row("… connections left in the gateway", max(fds - before, 0), "", "<= 2", 8 * VANISHING, f"{before} → {fds}"),
    ]
    for field, value in counts.items():
        rows.append(Row(f"… {field}", value, "", "<= 0", 8 * VANISHING))
    return [*rows, Row("… tokens written for a client that read 3 events", each, "tokens", None, 8 * VANISHING)]


def engine(bench: Bench, field: str) -> float:
    """The engine's own figure, without which there is nothing to say."""
    rows = scrape(bench.server, ["llm"]).to_pylist()
    value = next((row["value"] for row in rows if row["field"] == field), None)
    if value is None:
        raise SystemExit(f"the engine did not tell {field}")
    return float(value)


PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "cost": cost,
    "streams": streams,
    "idle": idle,
    "cancel": cancel,
    "vanish": vanish,
}
