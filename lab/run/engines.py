"""Runs an experiment whose cells ask several engines the same: the lab's own in Triton, and others by their URLs.

The engines are up together and asked in turns, each repeat with one seed for all, so the same prompts and lengths.
Then each is asked the same questions greedily, and what it writes is kept beside its speed (lab/run/beside.py). One
that fails is left out from there on, and told; the others are measured.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import numpy as np

from lab import credentials
from lab.errors import InputError, LabError, RunError, ServerError
from lab.load.generator import Progress
from lab.load.payload import requests_for
from lab.load.targets.openai import CHAT, endpoint
from lab.measure.words import engine_label
from lab.run import conversation, formats, gauge, given
from lab.run.bench import Bench
from lab.run.folder import RunFolder
from lab.run.plan import Block, cell_blocks, with_rate
from lab.run.serving import AnyServer, at, managed
from lab.serve import direct, weights
from lab.serve.address import address
from lab.serve.triton import LOOPBACK, Server
from lab.spec import ClosedLoop, Experiment, ModelSpec, Workload

Report = Callable[[str], None]
Tick = Callable[[str, str, float], None]

QUESTIONS, ANSWER_TOKENS, ANSWER_LIMIT_S = 8, 32, 120.0
SHARED = (
    "Engines on this machine are up together: what one takes while it is not asked, the others lack, and only the "
    "lab's own runs at the priority of what is measured."
)


@dataclass(frozen=True)
class Engine:
    """`url` None is the lab's own; `model` is what the engine calls it."""

    url: str | None
    model: str

    @classmethod
    def read(cls, text: str) -> Engine:
        """From "URL=MODEL"; InputError for anything else."""
        url, equals, model = text.rpartition("=")
        if not equals or not url or not model:
            raise InputError(f"--engine {text!r}: allowed is URL=MODEL, such as openai+http://127.0.0.1:8100=NAME")
        address(url)
        return cls(url, model)

    def check(self) -> None:
        """InputError or ServerError in one line when it can't be asked: nobody there, another protocol, no such
        model."""
        if self.url is not None:
            plan = given.of_url(self.url, self.model, given.Wishes())
            if plan.given is not None:
                raise InputError(f"--engine {self.url}={self.model}: the model there is no language model")

    def level(self) -> dict[str, Any]:
        """The level of the factor "workload" that asks it."""
        if self.url is None:
            return {"url": None}
        scheme = address(self.url).scheme.partition("+")[0]
        return {"url": self.url, "protocol": scheme, "served_model": self.model}


OWN = Engine(None, "llm")


def are_asked(experiment: Experiment) -> bool:
    return any(cell.workload.url is not None for cell in experiment.cells())


def measure(
    experiment: Experiment, folder: RunFolder, stopped: Callable[[], bool], report: Report, on_tick: Tick
) -> bool:
    """The whole run; whether a page asked it to stop. `on_tick(state, phase, progress)` keeps the status. RunError when
    no engine can be asked."""
    cells = experiment.cells()
    workloads = {number: cell.workload for number, cell in enumerate(cells)}
    names = {number: engine_label(workload.model_dump()) for number, workload in workloads.items()}
    failed: dict[int, str] = {}

    def fail(number: int, error: LabError) -> None:
        failed[number] = str(error)
        folder.event("engine_failed", cell=number, text=str(error))
        report(f"  {names[number]}: {error}")
        if len(failed) == len(cells):
            raise RunError(f"no engine can be asked; {names[number]}: {error}") from error

    with _servers(workloads, folder, fail) as servers:
        own = next((server for number, server in servers.items() if workloads[number].url is None), None)
        if own is not None:
            formats.prepare(folder, experiment, report)
        if any(w.url is not None and address(w.url).host in LOOPBACK for w in workloads.values()):
            folder.event("assumed", text=SHARED)
        first = next(iter(servers.values())) if own is None else own
        version = None if own is None else own.version()
        folder.event("serving", triton=version, grpc_url=first.grpc_url, managed=own is not None)
        workers = experiment.workload.workers
        blocks = cell_blocks(experiment)
        total_s = sum(block.workload.duration_s for block in blocks)
        gauge.streams(folder, {workload.protocol for workload in workloads.values()}, workers, total_s, report)
        with Bench(folder, first, workers=workers, cells=len(cells), stopped=stopped) as bench:
            for index, planned in enumerate(blocks):
                if planned.cell in failed:
                    continue
                report(f"block {index + 1} of {len(blocks)}: {names[planned.cell]}")
                try:
                    _block(bench, servers[planned.cell], index, planned, len(blocks), on_tick)
                except LabError as error:
                    fail(planned.cell, error)
                if bench.stop_asked or stopped():
                    return True
            on_tick("running", "the same questions to each", 1.0)
            _ask_all(experiment, servers, failed, names, folder, report)
            return bench.stop_asked


def _block(bench: Bench, server: AnyServer, index: int, planned: Block, of: int, on_tick: Tick) -> None:
    def tick(phase: str, _: Progress) -> None:
        on_tick(phase, f"block {index + 1} of {of}", index / of)

    block = with_rate(planned, None)
    if planned.workload.url is None:
        bench.block(index, block, on_tick=tick)
    else:
        with bench.elsewhere(server):
            bench.block(index, block, on_tick=tick)


@contextmanager
def _servers(
    workloads: Mapping[int, Workload], folder: RunFolder, fail: Callable[[int, LabError], None]
) -> Iterator[dict[int, AnyServer]]:
    """Those that can be reached, by cell; the lab's own is started where it is asked and none runs."""
    found: dict[int, AnyServer] = {}
    own = next((number for number, workload in workloads.items() if workload.url is None), None)
    try:
        for number, workload in workloads.items():
            if workload.url is not None:
                try:
                    found[number] = at(workload.url)
                except LabError as error:
                    fail(number, error)
        if own is None:
            yield found
        else:
            with managed(folder) as server:
                yield {own: server, **found}
    finally:
        for other in found.values():
            other.__exit__(None, None, None)


# --- the same questions to each ------------------------------------------------------------------------------------


def questions(workload: Workload) -> list[dict[str, Any]]:
    """What each engine is asked greedily: the load's own prompts, cut to answers of ANSWER_TOKENS."""
    asked = workload.model_copy(
        update={"output_tokens": ANSWER_TOKENS, "arrival": ClosedLoop(concurrency=1), "stream": False}
    )
    place = weights.tokenizer(ModelSpec(name="llm"))
    here = place if place is not None and place.is_file() else None
    found = requests_for(ModelSpec(name="llm"), asked, QUESTIONS, here)
    for request in found:  # a file of prompts may want longer answers
        wish = json.loads(request["sampling_parameters"].item()) | {"max_tokens": ANSWER_TOKENS}
        request["sampling_parameters"] = np.array([json.dumps(wish).encode()], dtype=object)
    return found


def _ask_all(
    experiment: Experiment,
    servers: Mapping[int, AnyServer],
    failed: Mapping[int, str],
    names: Mapping[int, str],
    folder: RunFolder,
    report: Report,
) -> None:
    asked = questions(experiment.workload)
    folder.event("questions", texts=[question["text_input"].item().decode() for question in asked])
    for number, server in servers.items():
        if number in failed:
            continue
        report(f"{names[number]}: {len(asked)} answers")
        cell = experiment.cells()[number]
        try:
            texts = answers(server, cell.workload, cell.workload.served_model or cell.model.name, asked)
            folder.event("words", cell=number, texts=texts)
        except LabError as error:
            folder.event("engine_failed", cell=number, text=str(error))
            report(f"  {error}")


def answers(server: AnyServer, workload: Workload, model: str, asked: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the engine writes to each question, greedily. ServerError when it does not answer."""
    if isinstance(server, Server):
        return ["".join(piece.text for piece in conversation.stream(server.grpc_url, model, each)) for each in asked]
    return [_of_http(server.http_url, workload.protocol, model, each) for each in asked]


def one_answer(url: str, model: str, *, seed: int = 0, prompts: str | None = None) -> tuple[str, str, float]:
    """(prompt, answer, seconds) of one greedy answer of ANSWER_TOKENS, whole: what a load will ask, before it does.
    InputError or ServerError in one line where there is none."""
    plan = given.of_url(url, model, given.Wishes())
    if plan.given is not None or plan.workload["protocol"] == "replicate":
        raise InputError(f"url {url!r}: one answer in words comes from openai+http:// and torchserve+http:// alone")
    fields: dict[str, Any] = {"arrival": ClosedLoop(concurrency=1), "duration_s": 1, "seed": seed, "prompts": prompts}
    workload = Workload(**{**fields, **plan.workload})
    question = questions(workload)[0]
    with at(url) as server:
        began = time.perf_counter()
        (text,) = answers(server, workload, model, [question])
        return question["text_input"].item().decode(), text, time.perf_counter() - began


def _of_http(base: str, protocol: str, model: str, question: Mapping[str, Any]) -> str:
    text = question["text_input"].item().decode()
    fields = json.loads(question["sampling_parameters"].item())
    if protocol == "torchserve":
        return _post(f"{base}/predictions/{model}", {"prompt": text, **fields}).decode(errors="replace")
    url = endpoint(base)
    body = {"model": model, **fields}
    body |= {"messages": [{"role": "user", "content": text}]} if url.endswith(CHAT) else {"prompt": text}
    try:
        choice = json.loads(_post(url, body))["choices"][0]
        said = choice["message"]["content"] if "message" in choice else choice["text"]
        return "" if said is None else str(said)  # null: a model that only reasons, or calls a tool
    except (ValueError, KeyError, IndexError, TypeError):
        raise ServerError(f"{url} gave an answer that is not OpenAI's") from None


def _post(url: str, body: Mapping[str, Any]) -> bytes:
    opener = direct.opener()
    headers = {"Content-Type": "application/json", **credentials.headers()}
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with opener.open(asked, timeout=ANSWER_LIMIT_S) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url} answered {error.code}: {error.read()[:200].decode(errors='replace')}") from None
    except (OSError, HTTPException) as error:
        raise ServerError(f"{url}: {getattr(error, 'reason', error)}") from None
