"""What sixteen LoRA adapters of rank 8 add to one base: memory in a served process, tokens a second of its engine.

Random adapters on what PEFT changes in a Llama unless told otherwise (q_proj, v_proj), and on every projection. Memory
is the Triton process's own pages, before and after the adapters came while it served and each had answered. Speed is
the engine's, in this process: eight requests in flight, each by an adapter of its own, beside the same eight by the
base, in alternating order; so the ratio is of the same minutes. One adapter is also merged into a copy of the base, and
asked beside itself unmerged.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.measuring import in_turns
from benchmarks.table import Row, say
from lab.load.payload import requests_for
from lab.run.conversation import stream
from lab.serve import adapters, compiled, llama_weights
from lab.serve.eviction import MIB
from lab.serve.lora.merge import merge
from lab.serve.models.adapter_folder import PROJECTIONS, Adapter, LowRank, shapes, write
from lab.serve.models.decoder import decoder_of
from lab.serve.models.engine import Engine, Options, run_to_end
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.triton import Server
from lab.spec import ClosedLoop, ModelSpec, Workload, set_path
from lab.watch import smaps
from lab.watch.host import model_processes

COUNT, RANK, IN_FLIGHT = 16, 8, 8
TOKENS, PAIRS = 48, 6
USUAL = ("q_proj", "v_proj")


def measure(folder: Path, server: Server) -> list[Row]:
    base = llama_weights.prepare()
    config = LlamaConfig.read(base)
    usual = {f"u{n}": made(folder / f"u{n}", config, USUAL, n) for n in range(COUNT)}
    every = {f"e{n}": made(folder / f"e{n}", config, tuple(PROJECTIONS), n) for n in range(COUNT)}
    return [*memory(server, usual, every), *speed(base, usual, every), *merged(base, usual["u0"], folder / "merged")]


def made(place: Path, config: LlamaConfig, targets: tuple[str, ...], seed: int) -> Path:
    """A random adapter, in PEFT's layout."""
    random = np.random.default_rng(seed)
    changes = {}
    for layer in range(config.layers):
        for name in targets:
            out, columns = shapes(config)[name]
            a, b = random.normal(0, 0.01, (RANK, columns)), random.normal(0, 0.01, (out, RANK))
            changes[layer, name] = LowRank(a.astype(np.float32), b.astype(np.float32), 2.0)
    write(place, Adapter(changes), alpha=2 * RANK)
    return place


def memory(server: Server, usual: dict[str, Path], every: dict[str, Path]) -> list[Row]:
    spec = ModelSpec(name="llm", max_request_tokens=256)
    compiled.load(server, spec)
    rows = []
    answer(server, spec)
    alone = taken(server)
    for what, places in (("on q and v", usual), ("on every projection", every)):
        with_all = set_path(spec, "adapters", [f"{name}={place}" for name, place in places.items()])
        told = adapters.update(server, with_all)
        answer(server, with_all)
        added, held = taken(server) - alone, sum(told["loaded"].values())
        note = f"{added / MIB:.1f} of {alone / MIB:.0f} MiB; the adapters themselves {held / MIB:.1f} MiB"
        goal = "<= 0.10" if places is usual else None
        rows.append(
            Row(f"{COUNT} adapters of rank {RANK} {what} add to the base's memory", added / alone, "", goal, 1, note)
        )
        rows.append(Row(f"the same of its weights alone, {what}", held / weight_bytes(), "", None, COUNT))
        slowest = statistics.median(told["load_s"].values())
        rows.append(Row(f"one of them loaded while the model serves, {what}", slowest * 1e3, "ms", None, COUNT))
    adapters.update(server, spec)
    answer(server, spec)
    left = taken(server) - alone
    note = f"{left / MIB:.1f} MiB"
    rows.append(Row("left of that when all are unloaded", max(left, 0) / alone, "", None, 1, note))
    server.unload(spec.name)
    return rows


def weight_bytes() -> int:
    return sum(path.stat().st_size for path in llama_weights.folder().glob("*.safetensors"))


def answer(server: Server, spec: ModelSpec) -> None:
    """One answer by each adapter, or by the base, so that what is used is in memory."""
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, prompt_tokens=32, output_tokens=16)
    for own in spec.adapters or ("",):
        asked = spec if not own else set_path(spec, "adapters", [own])
        (request,) = requests_for(asked, workload, 1, llama_weights.folder() / "tokenizer.json")
        list(stream(server.grpc_url, spec.name, request))


def taken(server: Server) -> int:
    assert server.pid is not None
    return smaps.footprint(model_processes(server.pid)["llm"]).alone_bytes


def speed(base: Path, usual: dict[str, Path], every: dict[str, Path]) -> list[Row]:
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    rows = []
    decoder = decoder_of(base, "bf16", threads=2)
    engine = Engine(decoder, tokenizer, Options(max_batch_size=IN_FLIGHT, max_request_tokens=128))
    for name, place in (usual | every).items():
        engine.adapters.load(name, place)
    for what, names in (("on q and v", list(usual)), ("on every projection", list(every))):
        rates: dict[str, list[float]] = {"base": [], "adapters": []}
        one(engine, names)  # warm
        for pair in range(PAIRS):
            for way in ("base", "adapters") if pair % 2 else ("adapters", "base"):
                rates[way].append(one(engine, names if way == "adapters" else []))
        ratios = [a / b for a, b in zip(rates["adapters"], rates["base"], strict=True)]
        say(f"{what}: {[round(r, 3) for r in ratios]} of {[round(r) for r in rates['base']]} tok/s")
        lost = 1 - statistics.median(ratios)
        goal = "<= 0.15" if names == list(usual) else None
        note = f"{min(ratios):.2f} to {max(ratios):.2f} of {statistics.median(rates['base']):.0f} tok/s"
        called = f"tokens/s lost, {IN_FLIGHT} in flight by {IN_FLIGHT} adapters {what}"
        rows.append(Row(called, lost, "", goal, PAIRS, note))
    return rows


def merged(base: Path, adapter: Path, copy: Path) -> list[Row]:
    """One fine-tune for all eight in flight: kept apart, and folded into a copy of the base, in alternating order."""
    copy.mkdir()
    merge(base, adapter, copy, lambda label, done, total: None)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    engines = {
        name: Engine(
            decoder_of(place, "bf16", threads=2), tokenizer, Options(max_batch_size=IN_FLIGHT, max_request_tokens=128)
        )
        for name, place in (("apart", base), ("merged", copy))
    }
    engines["apart"].adapters.load("own", adapter)
    asked: dict[str, list[str]] = {"apart": ["own"] * IN_FLIGHT, "merged": []}
    for name, engine in engines.items():
        one(engine, asked[name])  # warm
    found = in_turns({name: partial(one, engine, asked[name]) for name, engine in engines.items()}, PAIRS)
    ratios = [a / b for a, b in zip(found["merged"], found["apart"], strict=True)]
    note = f"{min(ratios):.2f} to {max(ratios):.2f} of {statistics.median(found['apart']):.0f} tok/s"
    called = f"one adapter on q and v, tokens/s merged beside unmerged, {IN_FLIGHT} in flight"
    return [Row(called, statistics.median(ratios), "ratio", None, PAIRS, note)]


def one(engine: Engine, names: list[str]) -> float:
    """Tokens a second of eight answers, each by its own of `names`; [] for the base."""
    wish = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
    requests = [
        engine.request(str(n), [5 + n] * 8, {**wish, **({"lora_name": names[n]} if names else {})})
        for n in range(IN_FLIGHT)
    ]
    began = time.perf_counter()
    outputs = run_to_end(engine, requests)
    took_s = time.perf_counter() - began
    return sum(len(own) for own in outputs.values()) / took_s
