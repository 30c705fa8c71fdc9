"""Runs an experiment with a start: the model comes up from nothing, answers once, and is ended, again and again.

    for each model, each repeat, and each way to start, these in alternating order:
        forget      files cold or warm in the page cache, compiled code gone unless it is kept
        start       a process, or a Triton, up to "ready"; its stages are its own stamps
        first       one request to its end; then some more, for what is usual
        end

Each start is an event (`cold_start`), and what a cell's remedies keep is one before its first (`cold_cell`);
lab/measure/cold.py makes sense of them. No load generator takes part: one request is asked at a time.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from lab.errors import LabError, RunError
from lab.load.payload import requests_for
from lab.load.targets.generate_stream import GenerateStream
from lab.load.targets.triton_http import TritonHttp
from lab.measure.cold import model_label
from lab.measure.start_words import start_label
from lab.run.control import Inbox
from lab.run.folder import RunFolder
from lab.run.plan import cell_blocks
from lab.serve import weights
from lab.serve.cold import page_cache
from lab.serve.cold.in_triton import InTriton, TritonStarter
from lab.serve.cold.line import Failed
from lab.serve.cold.started import Worker
from lab.serve.cold.starter import Starter
from lab.spec import Cell, ClosedLoop, Experiment, ModelSpec, Start, Workload
from lab.watch import smaps

PROMPT_TOKENS, ANSWER_TOKENS = 32, 8
STEADY_ANSWERS = 5
ANSWER_LIMIT_S = 120.0
COMPILABLE = ("digits", "network", "embedder")
"""Families whose network torch computes, and torch.compile may."""

Report = Callable[[str], None]
Tick = Callable[[str, str, float], None]
AnyStarter = Starter | TritonStarter


@dataclass(frozen=True)
class Answered:
    """Stamps of one answer; `first_ns` of the first byte of its body."""

    begin_ns: int
    first_ns: int
    end_ns: int


def measure(
    experiment: Experiment, folder: RunFolder, stopped: Callable[[], bool], report: Report, on_tick: Tick
) -> bool:
    """The whole run; whether a page asked it to stop. RunError when no start succeeded."""
    # All starts of a model before the next one's: each way that forks has a parent, which holds memory until its last.
    blocks, cells = cell_blocks(experiment, whole_groups=True), experiment.cells()
    inbox, asked, ok = Inbox(folder.path), False, 0
    left = {index: sum(block.cell == index for block in blocks) for index in range(len(cells))}
    last = ""
    with ExitStack() as stack:
        ready: dict[int, Ready | None] = {}
        for number, block in enumerate(blocks):
            asked = asked or any("stop" in change for change in inbox.new())
            if asked or stopped():
                return asked
            cell, where = cells[block.cell], f"start {number + 1} of {len(blocks)}"
            on_tick("running", where, number / len(blocks))
            report(f"{where}: {_said(cell)}")
            if block.cell not in ready:
                ready[block.cell] = _prepared(stack, folder, block.cell, cell)
            made = ready[block.cell]
            if made is None:
                continue
            try:
                folder.event("cold_start", cell=block.cell, repeat=block.repeat, **one(made))
                ok += 1
            except Failed as error:
                last = str(error)
                folder.event("cold_start", cell=block.cell, repeat=block.repeat, error=last, failed=error.kind)
                report(last)
            left[block.cell] -= 1
            if not left[block.cell]:
                made.close()  # a parent that waits holds memory
    if not ok:
        raise RunError(f"no start succeeded{f': {last}' if last else ''}")
    return asked


class Ready:
    """A cell whose remedies are in place; `warm` is the process that is never let go, of a cell that keeps one."""

    def __init__(self, starter: AnyStarter, model: ModelSpec) -> None:
        self.starter = starter
        self.warm: Worker | InTriton | None = None
        self.path, self.headers, self.body = request(model)

    def parent_bytes(self) -> int | None:
        """What the parent that forks holds; None where there is none."""
        return None if self.starter.zygote_pid is None else held([self.starter.zygote_pid])

    def close(self) -> None:
        if self.warm is not None:
            self.warm.stop()
            self.warm = None
        self.starter.close()


def _prepared(stack: ExitStack, folder: RunFolder, number: int, cell: Cell) -> Ready | None:
    """None, and told, for a cell that cannot be: a remedy that this model has not."""
    assert cell.start is not None  # noqa: S101  it is a cell of starts
    model, how = cell.model, cell.start
    if reason := why_not(model, how):
        folder.event("cold_cell", cell=number, not_measured=reason)
        return None
    log = folder.path / "starts.log"
    starter: AnyStarter = (TritonStarter if how.runtime == "triton" else Starter)(model, how, log=log)
    made = stack.enter_context(closing(Ready(starter, model)))
    try:
        starter.prepare()
        if how.keep_warm:
            made.warm = starter.start()
            ask(made.warm.port, made)
    except LabError as error:
        folder.event("cold_cell", cell=number, not_measured=str(error).rstrip("."))
        return None
    folder.event(
        "cold_cell",
        cell=number,
        weight_bytes=starter.weight_bytes,
        kept_bytes=starter.kept_bytes(),
        parent_bytes=made.parent_bytes(),
    )
    return made


def why_not(model: ModelSpec, how: Start) -> str:
    """What this model has not of the start; "" when all fits."""
    if how.torch_compile and model.family not in COMPILABLE:
        return f"{model.family} is no network of torch's that torch.compile could take"
    if how.mapped_weights and not _maps(model):
        return f"{model.family} in {model.precision} has no packed weights that could be mapped"
    return ""


def _maps(model: ModelSpec) -> bool:
    return (model.family == "llm" and model.precision not in ("fp32", "fp16")) or model.family in ("digits", "embedder")


def one(made: Ready) -> dict[str, Any]:
    """One start as the fields of its event. Failed when it does not come up."""
    if made.warm is not None:
        first = ask(made.warm.port, made)
        stages = [{"name": "first_answer", "begin_ns": first.begin_ns, "end_ns": first.end_ns}]
        return _told(made, made.warm, first.begin_ns, first, stages, None)
    made.starter.forget()
    files = made.starter.files()
    there, size = page_cache.resident_bytes(files), sum(path.stat().st_size for path in files)
    resident = None if there is None or not size else there / size
    worker = made.starter.start()
    try:
        first = ask(worker.port, made)
        stages = [asdict(stage) for stage in worker.stages]
        stages.append({"name": "first_answer", "begin_ns": first.begin_ns, "end_ns": first.end_ns})
        return _told(made, worker, worker.asked_ns, first, stages, resident)
    finally:
        worker.stop()


def _told(
    made: Ready,
    worker: Worker | InTriton,
    asked_ns: int,
    first: Answered,
    stages: list[dict[str, Any]],
    resident: float | None,
) -> dict[str, Any]:
    later = [ask(worker.port, made) for _ in range(STEADY_ANSWERS)]
    return {
        "asked_ns": asked_ns,
        "answered_ns": first.end_ns,
        "first_token_ns": first.first_ns,
        "stages": stages,
        "steady_s": [(answer.end_ns - answer.begin_ns) / 1e9 for answer in later],
        "memory_bytes": held(worker.pids),
        "resident_fraction": resident,
    }


def held(pids: list[int]) -> int | None:
    """Bytes that these processes hold when nothing else runs; None where it could not be read."""
    found = smaps.footprint(pids)
    return None if found is None else found.alone_bytes


def request(model: ModelSpec) -> tuple[str, dict[str, str], bytes]:
    """The one request of all starts: path, headers, body."""
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1)
    if model.family == "llm":
        lengths = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": ANSWER_TOKENS}
        workload = workload.model_copy(update=lengths)
    (tensors,) = requests_for(model, workload, 1, weights.tokenizer(model))
    if model.family == "llm":
        url, body = GenerateStream("127.0.0.1:1", _nobody).prepare(model.name, [tensors])[0]
        return urlsplit(url).path, {"Content-Type": "application/json"}, body
    url, headers, body = TritonHttp("127.0.0.1:1", _nobody).prepare(model.name, [tensors])[0]
    return urlsplit(url).path, headers, body


def _nobody(*_: object) -> None:
    """Whom to tell of an answer: these targets only make messages here."""


def ask(port: int, made: Ready) -> Answered:
    """Failed when the answer is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT_S)
    begin_ns = time.perf_counter_ns()
    try:
        connection.request("POST", made.path, made.body, made.headers)
        answer = connection.getresponse()
        said = answer.read(1)
        first_ns = time.perf_counter_ns()
        said += answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"the first request was not answered: {type(error).__name__} {error}") from None
    finally:
        connection.close()
    end_ns = time.perf_counter_ns()
    if answer.status != 200 or b'"error"' in said:
        raise Failed(f"the first request was answered {answer.status}: {_error(said)}")
    return Answered(begin_ns, first_ns, end_ns)


def _error(said: bytes) -> str:
    try:
        return str(json.loads(said.removeprefix(b"data: "))["error"])
    except (ValueError, KeyError, TypeError):
        return said[:200].decode(errors="replace")


def _said(cell: Cell) -> str:
    assert cell.start is not None  # noqa: S101  it is a cell of starts
    return f"{model_label(cell.model.model_dump())}, {start_label(cell.start.model_dump())}"
