"""Serving patterns: a batch job beside online serving and the engine's ceiling, a million rows, twenty kills, scaling.

    .venv/bin/python benchmarks/patterns.py [--json] [--section NAME]…            about 20 minutes; a section under 8

On a Triton of its own. A section is a function that gives rows; SECTIONS lists them. `batch`: the same 192 prompts of
mixed lengths (8 to 200 tokens, answers up to 64, each ending where the model ends it) one at a time, by as many users
as the server's batch has places, as a `lab batch` job, and in the engine alone (engine_ceiling.py), in turns.
`million`: rows of a small network, the whole command in a process of its own; memory is the most that it held, and what
the server's processes grew. `kills`: the command is killed at a random moment, twenty times. `scaling`: the experiment
`autoscaling`, its quick day under all of its rules; the simulator never saw a latency. `cold`: cold_start_rows.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import cold_start_rows
from benchmarks.engine_ceiling import Ceiling
from benchmarks.measuring import own_home
from benchmarks.table import Row, main, say
from experiments import autoscaling
from lab.batch import job as batch
from lab.gateway.triton import TritonUpstream
from lab.load.payload import held_out_digits, held_out_table
from lab.measure.words import plural
from lab.serve import installation, llama_weights, weights
from lab.serve.eviction import MIB
from lab.serve.triton import Server
from lab.spec import Batching, ModelSpec

PROJECT = Path(__file__).parents[1]
PROMPTS, LENGTHS, ANSWER_TOKENS, PLACES = 192, (8, 200), 64, 32
SINGLE = 24
"""Of the prompts, those asked one at a time: its rate does not depend on how many there are."""
REPEATS = 3
LLM = ModelSpec(name="llm", max_batch_size=PLACES)
SAMPLING = {"max_tokens": ANSWER_TOKENS, "temperature": 0.0, "seed": 0}
MILLION = 1_000_000
KILLS, KILLED_ROWS, LATEST_KILL_S = 20, 150_000, 6.0
SCALED_WITHIN = 0.15


# --- a batch job beside online ------------------------------------------------------------------------------------


def beside_online(folder: Path) -> list[Row]:
    weights.prepare(LLM)
    prompts = prompts_of()
    source = folder / "prompts.jsonl"
    source.write_text("".join(json.dumps({"id": n, "prompt": text}) + "\n" for n, text in enumerate(prompts)))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("single", "online", "engine", "batch")}
    with (
        Ceiling(LLM, SAMPLING) as engine,
        Server.start(repository=folder / "repository", log=folder / "triton.log") as server,
    ):
        server.load(LLM)
        engine(prompts[:PLACES])  # warm
        asyncio.run(asked(server, prompts[:PLACES], PLACES))  # warm

        def as_batch(repeat: int) -> tuple[float, float]:
            out = folder / f"answers-{repeat}.jsonl"
            began = time.perf_counter()
            result = batch.run(batch.Job(LLM, source, out, sampling=SAMPLING), lambda progress: None)
            seconds = time.perf_counter() - began
            if result.errors:
                raise SystemExit(f"batch: {result.errors} rows have no answer")
            tokens = sum(json.loads(line)["output_tokens"] for line in out.read_text().splitlines())
            return result.rows / seconds, tokens / seconds

        for repeat in range(REPEATS):
            ways: list[tuple[str, Callable[[], tuple[float, float]]]] = [
                ("single", lambda: asyncio.run(asked(server, prompts[:SINGLE], 1))),
                ("online", lambda: asyncio.run(asked(server, prompts, PLACES))),
                ("engine", lambda: engine(prompts)),
                ("batch", lambda repeat=repeat: as_batch(repeat)),  # type: ignore[misc]
            ]
            for name, measured in ways if repeat % 2 else ways[::-1]:
                found[name].append(measured())
        server.unload(LLM.name)
    say(f"(items/s, tokens/s): {found}")
    items = {name: statistics.median(one for one, _ in values) for name, values in found.items()}
    tokens = {name: statistics.median(one for _, one in values) for name, values in found.items()}

    def beside(other: str, unit: int) -> float:
        """Of neighbours in time, so that a machine that slows down does not decide."""
        return statistics.median(a[unit] / b[unit] for a, b in zip(found["batch"], found[other], strict=True))

    what = f"prompts of {LENGTHS[0]} to {LENGTHS[1]} tokens, answers up to {ANSWER_TOKENS}"
    note = f"{what}; {items['batch']:.2f} of {items['single']:.2f} items/s"
    users = f"{PLACES} users at a time, streamed"
    full = f"{items['batch']:.2f} of {items['online']:.2f} items/s: both keep the engine's batch full"
    whole = f"{tokens['batch']:.0f} of {tokens['engine']:.0f}; reading, Triton and writing included"
    return [
        Row(f"batch job beside {name}", value, "ratio", goal, REPEATS, told)
        for name, value, goal, told in (
            ("single requests: items/s", beside("single", 0), ">= 2", note),
            (f"online at saturation ({users})", beside("online", 0), None, full),
            ("the engine's own ceiling: tokens/s", beside("engine", 1), ">= 0.9", whole),
        )
    ]


def prompts_of() -> list[str]:
    """Prose cut to lengths drawn evenly, no two alike."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(llama_weights.folder() / "tokenizer.json"))
    pool = [ids for _, text in sorted(topics.items()) if len(ids := tokenizer.encode(text).ids) >= LENGTHS[1]]
    lengths = np.random.default_rng(7).integers(*LENGTHS, PROMPTS, endpoint=True)
    return [tokenizer.decode(pool[n % len(pool)][n // len(pool) :][:length]) for n, length in enumerate(lengths)]


async def asked(server: Server, prompts: Sequence[str], users: int) -> tuple[float, float]:
    """(answers, tokens) a second of so many users, each of whom asks the next prompt when its answer has come."""
    upstream = TritonUpstream(f"grpc://{server.grpc_url}")
    await upstream.open()
    left = iter(prompts)
    tokens = 0

    async def user() -> None:
        nonlocal tokens
        for prompt in left:
            answer = upstream.generate(LLM.name, prompt, SAMPLING, stream=True, echo=False, request_id="")
            while await answer.next() is not None:
                pass
            tokens += answer.tokens

    began = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    seconds = time.perf_counter() - began
    await upstream.close()
    return len(prompts) / seconds, tokens / seconds


# --- a million rows -----------------------------------------------------------------------------------------------


def million(folder: Path) -> list[Row]:
    spec = ModelSpec(name="network", batching=Batching(max_batch_size=1024))
    source, out = folder / "rows.jsonl", folder / "rows.parquet"
    table = [json.dumps(row) for row in held_out_table().round(2).tolist()]
    with source.open("w") as file:
        for n in range(MILLION):
            file.write(f'{{"id": "{n}", "features": {table[n % len(table)]}}}\n')
    with Server.start(repository=folder / "repository", log=folder / "triton.log", models=[spec]) as server:
        assert server.pid is not None
        settings = "--set", 'model.batching={"max_batch_size": 1024}'
        command = lab("batch", "--model", "network", *settings, "--in", str(source), "--out", str(out), "--json")
        before = held(server.pid)
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        own = grown = 0
        while process.poll() is None:
            own, grown = max(own, held(process.pid)), max(grown, held(server.pid) - before)
            time.sleep(0.25)
        seconds = time.perf_counter() - began
    if process.returncode or process.stdout is None:
        raise SystemExit(f"million: exit status {process.returncode}")
    told = json.loads(process.stdout.read())
    if (told["rows"], told["errors"]) != (MILLION, 0):
        raise SystemExit(f"million: {told}")
    note = f"{own / MIB:.0f} MiB the job, {grown / MIB:.0f} MiB more in the server; {MILLION / seconds:,.0f} rows/s"
    return [Row("1,000,000 short rows: memory above the model", (own + grown) / 1e9, "GB", "<= 1", MILLION, note)]


def held(pid: int) -> int:
    """Bytes resident in a process and all that it started."""
    total = 0
    try:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_info().rss
    except psutil.Error:
        return total
    return total


# --- kills --------------------------------------------------------------------------------------------------------


def kills(folder: Path) -> list[Row]:
    spec = ModelSpec(name="digits", batching=Batching(max_batch_size=64))
    weights.prepare(spec)
    source = folder / "digits.jsonl"
    images = [json.dumps(image.tolist()) for image in held_out_digits()]
    with source.open("w") as file:
        for n in range(KILLED_ROWS):
            file.write("{broken\n" if n % 9973 == 5 else f'{{"id": "{n}", "image": {images[n % len(images)]}}}\n')
    pick = random.Random(20)
    killed = begun = differing = 0
    with Server.start(repository=folder / "repository", log=folder / "triton.log", models=[spec]):
        straight = folder / "straight.jsonl"
        subprocess.run(job_on_digits(source, straight), cwd=PROJECT, check=True, capture_output=True)
        whole = straight.read_bytes()
        rows = [json.loads(line)["row"] for line in whole.splitlines()]
        if rows != list(range(KILLED_ROWS)):
            raise SystemExit("the straight run's rows are not in order")
        while killed < KILLS:
            begun += 1
            out = folder / f"killed-{begun}.jsonl"
            while True:
                process = subprocess.Popen(
                    job_on_digits(source, out), cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                if killed < KILLS:
                    try:
                        process.wait(pick.uniform(0.2, LATEST_KILL_S))
                    except subprocess.TimeoutExpired:
                        process.send_signal(signal.SIGKILL)
                        killed += 1
                if process.wait() == 0:
                    break
            differing += out.read_bytes() != whole
            differing += out.with_name(f"{out.name}.errors.jsonl").read_bytes() != (
                straight.with_name(f"{straight.name}.errors.jsonl").read_bytes()
            )
    note = f"{plural(begun, 'job')} of {KILLED_ROWS:,} rows, complete, in order, each row once"
    return [Row(f"{killed} random kill -9: outputs that differ in a byte", float(differing), "", "<= 0", killed, note)]


def job_on_digits(source: Path, out: Path) -> list[str]:
    return lab("batch", "--model", "digits", "--in", str(source), "--out", str(out))


def lab(*words: str) -> list[str]:
    return [sys.executable, "-m", "lab", *words]


# --- the rest -----------------------------------------------------------------------------------------------------


def scaling(folder: Path) -> list[Row]:
    rules = (autoscaling.KNATIVE, autoscaling.KUBERNETES, autoscaling.QUEUE)
    levels = json.dumps([autoscaling.ALWAYS, *map(autoscaling.scaled, rules)])
    command = lab("run", "autoscaling", "--quick", "--json", "--set", f"model={levels}")
    done = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    blocks = [block for block in json.loads(done.stdout)["autoscaling"]["blocks"] if block["scales"]]
    rows = []
    for block in blocks:
        measured, modelled = block["measured"]["p95_s"], block["simulated"]["p95_s"]
        off = None if block["off_p95"] is None else abs(block["off_p95"])
        note = "too few answers" if off is None else f"{measured * 1e3:.0f} ms, modelled {modelled * 1e3:.0f} ms"
        name = f"p95 by the simulator off, {block['label']}"
        rows.append(Row(name, off, "", f"<= {SCALED_WITHIN}", block["requests"], note))
    return rows


SECTIONS: dict[str, Callable[[Path], list[Row]]] = {
    "batch": beside_online,
    "million": million,
    "kills": kills,
    "scaling": scaling,
    "cold": cold_start_rows.measure,
}


def measure(sections: Sequence[str]) -> list[Row]:
    installation.fetch()
    rows = []
    for name in sections:
        with own_home() as folder:
            rows += SECTIONS[name](folder)
    return rows


def options() -> list[str]:
    """Those of this file, taken out of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--section", action="append", choices=SECTIONS, help="only this one; may be given again")
    given, sys.argv[1:] = parser.parse_known_args()
    return given.section or list(SECTIONS)


if __name__ == "__main__":
    chosen = options()
    sys.exit(main(str(__doc__).splitlines()[0], lambda: measure(chosen)))
