"""Writing tokens: the lab's engine beside vLLM on the CPU, beside memory's speed, and beside its own switches.

    .venv/bin/python benchmarks/decode.py [--json] [--vllm-cpu PATH] [--section NAME]     about 14 minutes

SmolLM2-135M in bf16, the same prompts as token ids, greedy, without an end before the last token. The lab's engine runs
in this process (EngineThread, as behind Triton), vLLM as its own HTTP server, not streaming; one after the other, each
alone, and what counts is the median of three repeats: tokens of all requests ÷ the time until the last is through.
vLLM is looked for beside the project (../shared/peers/vllm-cpu); without it the ratios are not measured.

A section is a function that gives rows; SECTIONS lists them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import bandwidth, served, timed_server
from benchmarks.measuring import median
from benchmarks.table import Row, main, say
from lab import priority
from lab.serve import llama_weights
from lab.serve.ports import pick as pick_ports

PEER = Path(__file__).parents[2] / "shared" / "peers" / "vllm-cpu"
IN_FLIGHT = (1, 4, 8, 16)
NEW_TOKENS = 64
REPEATS = 3
THREADS = 2
PROMPT_TOKENS = 32
START_LIMIT_S = 600.0  # vLLM's first start installs it
MIXED = (8, 128)
"""Output lengths of the saturation test, drawn evenly."""


@dataclass(frozen=True)
class Setting:
    decoder: Any
    tokenizer: Any
    prompts: list[list[int]]  # token ids, PROMPT_TOKENS each
    weights: Path
    peer: Path

    def greedy(self, max_tokens: int) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}


def measure(peer: Path, sections: Sequence[str]) -> list[Row]:
    import torch

    from lab.serve.models.decoder import load

    weights = llama_weights.prepare()
    prompts, tokenizer = prompts_of(weights)
    setting = Setting(load(weights, torch.bfloat16, "cpu", THREADS), tokenizer, prompts, weights, peer)
    return [row for name in sections for row in SECTIONS[name](setting)]


def prompts_of(weights: Path) -> tuple[list[list[int]], Any]:
    """(token ids of as many prompts as are ever in flight, the tokenizer)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    texts = [tokenizer.encode(text).ids for _, text in sorted(topics.items())]
    return [ids[:PROMPT_TOKENS] for ids in texts if len(ids) >= PROMPT_TOKENS][: max(IN_FLIGHT)], tokenizer


# --- sections -----------------------------------------------------------------------------------------------------


def beside_vllm(setting: Setting) -> list[Row]:
    ours = {n: repeated(lambda n=n: lab_rate(setting, [NEW_TOKENS] * n, max_batch_size=n)) for n in IN_FLIGHT}
    theirs: dict[int, list[float]] = {n: [] for n in IN_FLIGHT}
    note = "" if setting.peer.is_file() else f"no vLLM at {setting.peer}"
    if not note:
        with vllm(setting) as url:
            vllm_rate(setting, url, max(IN_FLIGHT))  # its first requests are slower
            theirs = {n: repeated(lambda n=n: vllm_rate(setting, url, n)) for n in IN_FLIGHT}
    rows = []
    for n in IN_FLIGHT:
        mine, other = median(ours[n]), median(theirs[n])
        ratio = mine / other if mine and other else None
        say(f"{n} in flight: lab {rounded(ours[n])}, vLLM {rounded(theirs[n])} tokens/s")
        rows += [
            Row(f"output tokens/s, {n} in flight", mine, "tokens/s", None, REPEATS),
            Row(f"output tokens/s of vLLM, {n} in flight", other, "tokens/s", None, len(theirs[n]), note),
            Row(f"output tokens/s beside vLLM's, {n} in flight", ratio, "ratio", ">= 1.0", len(theirs[n]), note),
        ]
    return rows


def beside_memory(setting: Setting) -> list[Row]:
    memory = bandwidth.Memory(THREADS)
    found = bandwidth.moments(memory, lambda: token_gap_s(setting), bytes_of_step(setting))
    name, n = "time between tokens, 1 in flight", len(found.gaps_s)
    return [Row(name, found.gap_s * 1e3, "ms", None, n), *found.rows("1 in flight", ">= 0.60")]


def token_gap_s(setting: Setting) -> float:
    """Seconds between two tokens of one answer."""
    stamps = lab_stamps(setting, [NEW_TOKENS], max_batch_size=1)
    return float(statistics.median(np.diff([stamp for stamp, _ in stamps])))


def bytes_of_step(setting: Setting) -> float:
    """All weights, and the cache of one sequence half way through its answer."""
    cache_bytes = setting.decoder.cache(1, 32).bytes / 32 * (PROMPT_TOKENS + NEW_TOKENS / 2)
    return float(setting.decoder.weight_bytes + cache_bytes)


def cache_on_and_off(setting: Setting) -> list[Row]:
    new = 256
    rates = {
        on: repeated(lambda on=on: lab_rate(setting, [new], kv_cache=on, max_batch_size=1)) for on in (True, False)
    }
    say(f"KV cache on {rounded(rates[True])}, off {rounded(rates[False])} tokens/s")
    on, off = median(rates[True]), median(rates[False])
    return [
        Row(f"output tokens/s, KV cache on, {new} new tokens", on, "tokens/s", None, REPEATS),
        Row(f"output tokens/s, KV cache off, {new} new tokens", off, "tokens/s", None, REPEATS),
        Row(f"KV cache on beside off, {new} new tokens", on / off if on and off else None, "ratio", ">= 5", REPEATS),
    ]


def continuous_and_static(setting: Setting) -> list[Row]:
    """64 requests that all wait from the start, 8 places: what counts is who fills a place that becomes free."""
    low, high = MIXED
    lengths = np.random.default_rng(3).integers(low, high, 64, endpoint=True).tolist()
    rates = {
        scheduler: repeated(lambda s=scheduler: lab_rate(setting, lengths, scheduler=s, max_batch_size=8))
        for scheduler in ("continuous", "static")
    }
    say(f"continuous {rounded(rates['continuous'])}, static {rounded(rates['static'])} tokens/s")
    continuous, static = median(rates["continuous"]), median(rates["static"])
    ratio = continuous / static if continuous and static else None
    what = f"output lengths {low}-{high}, 8 places"
    return [
        Row(f"output tokens/s, continuous, {what}", continuous, "tokens/s", None, REPEATS),
        Row(f"output tokens/s, static, {what}", static, "tokens/s", None, REPEATS),
        Row(f"continuous beside static, {what}", ratio, "ratio", ">= 1.3", REPEATS),
    ]


def beside_aiperf(setting: Setting) -> list[Row]:
    if not setting.peer.is_file():
        return [Row("TTFT and ITL beside AIPerf's", None, "ratio", None, 0, f"no vLLM at {setting.peer}")]
    with vllm(setting) as url:
        vllm_rate(setting, url, max(IN_FLIGHT))
        return served.beside_aiperf(url, setting.weights, "vLLM")


def beside_a_timetable(setting: Setting) -> list[Row]:
    """Both meters on a server whose times are known, and that nobody slows."""
    (port,), _ = pick_ports(count=1)
    command = [sys.executable, timed_server.__file__, str(port)]
    with running("the timed server", command, f"http://127.0.0.1:{port}", niceness=priority.MEASURED) as url:
        truth_s = timed_server.TTFT_S, timed_server.ITL_S
        return served.beside_aiperf(url, setting.weights, "a timed server", truth_s)


SECTIONS: dict[str, Callable[[Setting], list[Row]]] = {
    "memory": beside_memory,
    "vllm": beside_vllm,
    "cache": cache_on_and_off,
    "schedulers": continuous_and_static,
    "streaming": lambda _: served.through_triton(),
    "aiperf": beside_aiperf,
    "timetable": beside_a_timetable,
}


# --- the lab's engine ---------------------------------------------------------------------------------------------


def lab_rate(setting: Setting, lengths: Sequence[int], **options: Any) -> float:
    """Output tokens a second of requests that are sent at once, one a length."""
    began = time.perf_counter()
    stamps = lab_stamps(setting, lengths, **options)
    return sum(lengths) / (max(stamp for stamp, _ in stamps) - began)


def lab_stamps(setting: Setting, lengths: Sequence[int], **options: Any) -> list[tuple[float, str]]:
    """(seconds, request) of every token, as its receiver gets it."""
    from lab.serve.models.engine import Engine, Options
    from lab.serve.models.engine_thread import EngineThread

    longest = PROMPT_TOKENS + max(lengths)
    engine = EngineThread(Engine(setting.decoder, setting.tokenizer, Options(max_request_tokens=longest, **options)))
    stamps: list[tuple[float, str]] = []
    running, done = len(lengths), threading.Event()

    def receive(output: Any) -> None:
        nonlocal running
        stamps.append((time.perf_counter(), output.id))
        if output.finish_reason is not None:
            running -= 1
            if not running:
                done.set()

    for i, length in enumerate(lengths):
        engine.submit(setting.prompts[i % len(setting.prompts)], setting.greedy(length), receive)
    done.wait()
    engine.close()
    if len(stamps) != sum(lengths):
        raise SystemExit(f"{len(stamps)} tokens came of {sum(lengths)}")
    return stamps


# --- vLLM ---------------------------------------------------------------------------------------------------------


@contextmanager
def vllm(setting: Setting) -> Iterator[str]:
    """The URL of a vLLM server of our own."""
    (port,), _ = pick_ports(count=1)
    command = [str(setting.peer), str(setting.weights), str(port)]
    # By itself vLLM leaves a core free, and is a fifth slower for it on a machine of two.
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}"}
    with running("vLLM", command, f"http://127.0.0.1:{port}", environment=environment) as url:
        yield url


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    url: str,
    niceness: int = 0,
    environment: dict[str, str] | None = None,
    asked: str = "/health",
) -> Iterator[str]:
    """`url` while the server of `command` says at `asked` that it is well, in a session of its own that ends with the
    block."""
    say(f"starting {name}")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        priority.give(process.pid, niceness)
        try:
            limit = time.monotonic() + START_LIMIT_S
            while not _answers(url + asked):
                if process.poll() is not None or time.monotonic() > limit:
                    log.seek(0)
                    raise SystemExit(f"{name} did not come up: {log.read().strip()[-500:]}")
                time.sleep(0.2)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def vllm_rate(setting: Setting, url: str, in_flight: int) -> float:
    tokens: list[int] = []

    def ask(prompt: list[int]) -> None:
        question = {"model": setting.weights.name, "prompt": prompt, **setting.greedy(NEW_TOKENS)}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(question).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            tokens.append(json.load(answer)["usage"]["completion_tokens"])

    askers = [threading.Thread(target=ask, args=(setting.prompts[i],)) for i in range(in_flight)]
    began = time.perf_counter()
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    took_s = time.perf_counter() - began
    if tokens != [NEW_TOKENS] * in_flight:
        raise SystemExit(f"vLLM wrote {tokens} tokens; asked for {NEW_TOKENS} each")
    return sum(tokens) / took_s


# --- figures ------------------------------------------------------------------------------------------------------


def repeated(rate: Callable[[], float]) -> list[float]:
    return [rate() for _ in range(REPEATS)]


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 1) for value in values]


def options() -> argparse.Namespace:
    """Those of this file, taken out of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--vllm-cpu", type=Path, default=PEER)
    parser.add_argument("--section", action="append", choices=SECTIONS, help="only this one; may be given again")
    given, sys.argv[1:] = parser.parse_known_args()
    return given


if __name__ == "__main__":
    given = options()
    sys.exit(main(str(__doc__).splitlines()[0], lambda: measure(given.vllm_cpu, given.section or list(SECTIONS))))
