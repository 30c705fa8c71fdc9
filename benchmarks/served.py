"""Sections of benchmarks/decode.py that need a server: what Triton costs, and what AIPerf says of the same server.

    .venv/bin/python benchmarks/served.py PLACES SECONDS      the engine alone in a process of its own: tokens a second

Each pair is measured side by side in alternating order, in closed loops of equal width, and a ratio is the median of
the ratios of neighbours. The engine alone gets the priority that Triton has: else Triton would look free.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.measuring import Blocks, in_turns
from benchmarks.table import Row, say
from lab import priority
from lab.load.generator import Generator
from lab.measure.summary import Summary
from lab.serve import llama_weights
from lab.serve.triton import Server
from lab.spec import ClosedLoop, ModelSpec, Workload
from lab.watch.host import model_processes

AIPERF = Path(__file__).parents[2] / "shared" / "peers" / "aiperf"
PAIRS = 6
PLACES = 8
SECONDS, WARMUP_S = 6.0, 2.0
NEW_TOKENS, PROMPT_TOKENS = 64, 32
NAMES = ("TTFT", "ITL")
COMPUTING = 2
AIPERF_PAIRS, AIPERF_REQUESTS, AIPERF_IN_FLIGHT = 3, 48, 4


def through_triton() -> list[Row]:
    """Tokens a second of 8 users who each ask again once answered: of the engine alone, and through Triton's stream."""
    model = ModelSpec(name="llm", max_batch_size=PLACES, max_request_tokens=2 * (PROMPT_TOKENS + NEW_TOKENS))
    with tempfile.TemporaryDirectory() as folder, Generator(Path(folder), workers=1) as generator:
        lab = Asker(Path(folder), generator, model)
        with Server.start(repository=Path(folder) / "repository", log=Path(folder) / "triton.log") as server:
            server.load(model)

            def through() -> float:
                return lab.ask(server.grpc_url, "grpc", PLACES, SECONDS).output_tokens_per_s or 0.0

            found = in_turns({"alone": engine_alone, "served": through}, PAIRS)
            assert server.pid is not None
            spent = lab.spent(server.grpc_url, server.pid, PLACES, SECONDS)
    alone, served = found["alone"], found["served"]
    say(f"alone {[round(rate) for rate in alone]}, through Triton {[round(rate) for rate in served]} tokens/s")
    cost = float(np.median([1 - b / a for a, b in zip(alone, served, strict=True)]))
    what = f"{PLACES} in flight"
    return [
        Row(f"output tokens/s, engine alone, {what}", float(np.median(alone)), "tokens/s", None, PAIRS),
        Row(f"output tokens/s, through Triton, {what}", float(np.median(served)), "tokens/s", None, PAIRS),
        Row(f"streaming through Triton costs, {what}", cost, "", "<= 0.10", PAIRS),
        *(Row(f"CPU a response, {who}, {what}", us, "µs", None, 1) for who, us in spent.items()),
    ]


def beside_aiperf(url: str, weights: Path, server: str, truth_s: tuple[float, float] | None = None) -> list[Row]:
    """TTFT and ITL of one OpenAI-compatible server, by the lab and by AIPerf in turns; `truth_s` where it is known.

    Only such a server is the same for both. One that computes shares two cores with whoever asks it, and AIPerf's
    processes take so much of them that it measures another server than the lab does: no goal is set there."""
    if not AIPERF.is_file():
        note = f"no AIPerf at {AIPERF}"
        return [Row(f"mean {name} of {server} off AIPerf's by", None, "", "<= 0.05", 0, note) for name in NAMES]
    model = ModelSpec(name="llm", weights=str(weights))
    with tempfile.TemporaryDirectory() as folder, Generator(Path(folder), workers=1) as generator:
        lab = Asker(Path(folder), generator, model, served_model=weights.name)

        def mine() -> tuple[float, float]:
            found = lab.ask(url, "openai", AIPERF_IN_FLIGHT, 12.0)
            return found.ttft_mean_s or np.nan, found.itl_mean_s or np.nan

        sides = in_turns({"lab": mine, "AIPerf": lambda: aiperf(url, weights)}, AIPERF_PAIRS)
    ours, theirs = sides["lab"], sides["AIPerf"]
    rows = []
    for i, name in enumerate(NAMES):
        ratio = float(np.median([a[i] / b[i] for a, b in zip(ours, theirs, strict=True)]))
        shown = [[round(figures[i] * 1e3, 1) for figures in side] for side in (ours, theirs)]
        say(f"{server}, mean {name}, ms: lab {shown[0]}, AIPerf {shown[1]}")
        what = f"mean {name} of {server}, {AIPERF_IN_FLIGHT} in flight,"
        rows.append(Row(f"{what} beside AIPerf's", ratio, "ratio", None, AIPERF_PAIRS))
        goal = None if truth_s is None else "<= 0.05"
        rows.append(Row(f"{what} off AIPerf's by", abs(ratio - 1), "", goal, AIPERF_PAIRS))
        if truth_s is not None:
            for who, side in (("lab", ours), ("AIPerf", theirs)):
                off = float(np.median([figures[i] for figures in side])) / truth_s[i] - 1
                rows.append(Row(f"{what} by the {who}, off the truth by", off, "", None, AIPERF_PAIRS))
    return rows


class Asker:
    """The lab's own load generator on a language model, a block at a time."""

    def __init__(self, folder: Path, generator: Generator, model: ModelSpec, served_model: str | None = None) -> None:
        self._blocks, self._model, self._served_model = Blocks(folder, generator), model, served_model

    def ask(self, url: str, protocol: Any, in_flight: int, seconds: float) -> Summary:
        return self._blocks.closed(
            url,
            self._model,
            in_flight,
            seconds,
            WARMUP_S,
            tokenizer=llama_weights.folder(self._model.weights) / "tokenizer.json",
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=NEW_TOKENS,
            protocol=protocol,
            served_model=self._served_model,
            timeout_s=60,
        )

    def spent(self, url: str, server_pid: int, in_flight: int, seconds: float) -> dict[str, float | None]:
        """µs of CPU a response over `seconds`: of Triton, of the client that reads it, and of the model's process
        besides its COMPUTING busiest threads, which are the engine."""
        workload = Workload(
            arrival=ClosedLoop(concurrency=in_flight),
            duration_s=seconds + WARMUP_S,
            warmup_s=WARMUP_S,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=NEW_TOKENS,
            timeout_s=60,
        )
        readings: list[tuple[int, list[dict[int, float]]]] = []

        def read(at_ns: int) -> None:
            time.sleep(max(0.0, (at_ns - time.perf_counter_ns()) / 1e9))
            stub = model_processes(server_pid)[self._model.name][0]
            groups = [[server_pid], self._blocks.generator.pids, [stub]]
            readings.append((time.perf_counter_ns(), [threads_s(pids) for pids in groups]))

        requests, _ = self._blocks.run(
            url,
            self._model,
            workload,
            llama_weights.folder(self._model.weights) / "tokenizer.json",
            during=lambda window: [read(at) for at in (window.measured_from_ns, window.end_ns)],
        )
        (from_ns, first), (to_ns, last) = readings
        if requests.streams is None:
            return {}
        t_ns = requests.streams.t_ns
        responses = int(((t_ns >= from_ns) & (t_ns < to_ns)).sum())
        names = ("Triton", "client", "model's process besides the engine")
        of_each = [used(a, b, but=COMPUTING if n == 2 else 0) for n, (a, b) in enumerate(zip(first, last, strict=True))]
        return {who: 1e6 * s / responses if responses else None for who, s in zip(names, of_each, strict=True)}


def threads_s(pids: Sequence[int]) -> dict[int, float]:
    """CPU seconds so far of every thread of these processes, from /proc/PID/task/TID/stat."""
    found = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            with suppress(OSError):  # ended since it was listed
                after_name = path.read_text().rpartition(")")[2].split()
                found[int(path.parent.name)] = (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
    return found


def used(first: Mapping[int, float], last: Mapping[int, float], but: int = 0) -> float:
    """CPU seconds between two readings, without those of the `but` busiest threads."""
    grown = sorted(seconds - first.get(thread, 0.0) for thread, seconds in last.items())
    return sum(grown[: len(grown) - but])


def aiperf(url: str, weights: Path) -> tuple[float, float]:
    """(mean TTFT, mean ITL) in seconds, as AIPerf exports them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(AIPERF), "profile", "-m", weights.name, "--url", url, "--endpoint-type", "completions"]
        command += ["--streaming", "--tokenizer", str(weights), "--concurrency", str(AIPERF_IN_FLIGHT)]
        command += ["--request-count", str(AIPERF_REQUESTS), "--warmup-request-count", str(AIPERF_IN_FLIGHT)]
        command += ["--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--synthetic-input-tokens-stddev", "0"]
        command += ["--output-tokens-mean", str(NEW_TOKENS), "--output-tokens-stddev", "0"]
        command += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", folder]
        command += ["--workers-max", "1", "--record-processors", "1", "--no-gpu-telemetry", "--no-server-metrics"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        exports = list(Path(folder).rglob("profile_export_aiperf.json"))
        if done.returncode or not exports:
            raise SystemExit(f"aiperf failed: {(done.stderr or done.stdout).strip()[-500:]}")
        found = json.loads(exports[0].read_text())
    return tuple(_seconds(found[name]) for name in ("time_to_first_token", "inter_token_latency"))


def _seconds(metric: dict[str, Any]) -> float:
    return float(metric["avg"]) / {"ms": 1e3, "s": 1.0, "us": 1e6, "ns": 1e9}[metric["unit"]]


def engine_alone() -> float:
    """Output tokens a second of the engine in a process of its own, with nothing between it and its users."""
    command = [sys.executable, __file__, str(PLACES), str(SECONDS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    priority.give(process.pid, priority.MEASURED)
    told, _ = process.communicate()
    if process.returncode:
        raise SystemExit("the engine alone did not run")
    return float(told)


def run_alone(places: int, seconds: float) -> float:
    import torch
    from tokenizers import Tokenizer

    from lab.load.payload import requests_for
    from lab.serve.models.decoder import load
    from lab.serve.models.engine import Engine, Options
    from lab.serve.models.engine_thread import EngineThread

    weights = llama_weights.prepare()
    tokenizer_file = weights / "tokenizer.json"
    workload = Workload(
        arrival=ClosedLoop(concurrency=places),
        duration_s=seconds,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=NEW_TOKENS,
        seed=os.getpid(),
    )
    asked = requests_for(ModelSpec(name="llm"), workload, 256, tokenizer_file)
    prompts = [request["text_input"][0].decode() for request in asked]
    options = Options(max_batch_size=places, max_request_tokens=2 * (PROMPT_TOKENS + NEW_TOKENS))
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    engine = EngineThread(Engine(load(weights, torch.bfloat16, "cpu", 2), tokenizer, options))
    parameters = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    from_s = time.perf_counter() + WARMUP_S
    until_s = from_s + seconds
    tokens, sent, over = 0, 0, threading.Event()

    def ask() -> None:
        nonlocal sent
        sent += 1
        engine.submit(prompts[sent % len(prompts)], parameters, receive)

    def receive(output: Any) -> None:
        nonlocal tokens
        now_s = time.perf_counter()
        tokens += from_s <= now_s < until_s
        if now_s >= until_s:
            over.set()
        elif output.finish_reason is not None:
            ask()

    for _ in range(places):
        ask()
    over.wait()
    engine.close()
    return tokens / seconds


if __name__ == "__main__":
    print(run_alone(int(sys.argv[1]), float(sys.argv[2])))
