"""A load worker: one process that sends its share of each block.

    python -m lab.load.worker FOLDER K        appends to FOLDER/requests-K.arrows

Orders come as JSON lines on stdin, reports go out as JSON lines on stdout (generator.py is the other end):

    {"order": "prepare", "job": {…}, "worker": k, "workers": n}       → a first report
    {"order": "start", "start_ns": …}                                 → a report every REPORT_S, the last with "over"
    {"order": "rate", "rate_rps": …, "at_ns": …} | {"order": "concurrency", "concurrency": …} | {"order": "cancel"}

A closed stdin means that the run is gone: what is unanswered is recorded as cancelled, and the worker ends. While a
block runs the garbage collector is off, and everything that was there before it is frozen. Imports neither torch nor
Streamlit.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from lab.errors import InputError, LabError
from lab.load.driver import ClosedLoop, Driver, OpenLoop
from lab.load.payload import addressed, pool, requests_for
from lab.load.recorder import LONGEST_DETAIL, Recorder
from lab.load.schedule import chunks, share
from lab.load.targets import Done, Target
from lab.load.targets.generate_stream import GenerateStream
from lab.load.targets.openai import OpenAI
from lab.load.targets.replicate import Replicate
from lab.load.targets.tensors import Sequenced
from lab.load.targets.torchserve import TorchServe
from lab.load.targets.triton_grpc import TracedGrpc, TritonGrpc
from lab.load.targets.triton_http import TritonHttp
from lab.load.targets.triton_stream import TritonStream
from lab.spec import ClosedLoop as Users
from lab.spec import ModelSpec, Steps, Trace, Workload

REPORT_S = 0.25
"""Rows are flushed and counts reported this often."""
OTHER_FILES = 64
"""What a worker may have open beside its connections."""
PAYLOAD_FIELDS = {
    "protocol",
    "served_model",
    "seed",
    "sleep_s",
    "prompt_tokens",
    "output_tokens",
    "stream",
    "prompts",
    "given",
    "trace",
}
"""What requests are made of; workloads that are equal in these share them."""

TARGETS: dict[str, Callable[[str, Done], Target]] = {"grpc": TritonGrpc, "http": TritonHttp, "torchserve": TorchServe}
STREAMING: dict[str, Callable[[str, Done], Target]] = {
    "grpc": TritonStream,
    "http": GenerateStream,
    "openai": OpenAI,
    "torchserve": TorchServe,
    "replicate": Replicate,
}
"""By protocol; a language model's answers are always read as a stream, even of one chunk."""


class Worker:
    """Obeys one order after the other."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made_for: Any = None  # what `_messages` were made for; the cells of an experiment share them
        self._messages: list[Any] = []
        self._sequences: list[int] = []  # of each message, where it belongs to one
        self._worker, self._workers = 0, 1
        self._workload: Workload
        self._target: Target
        self._driver: Driver | None = None
        self._changes = 0
        self._block: asyncio.Task[None] | None = None

    async def obey(self, order: dict[str, Any]) -> None:
        kind, driver = order["order"], self._driver
        if kind == "prepare":
            try:
                tell(self._report(await self._prepare(order)))
            except InputError as error:
                tell({"input_error": str(error)})
        elif driver is None:
            return
        elif kind == "start":
            driver.start(self._target, order["start_ns"])  # now: the next order may be here already
            self._block = asyncio.create_task(self._run(driver))
        elif kind == "rate" and isinstance(driver, OpenLoop):
            self._change_rate(driver, order["rate_rps"], order["at_ns"], order["end_ns"])
        elif kind == "concurrency" and isinstance(driver, ClosedLoop):
            driver.change_users(share(order["concurrency"], self._worker, self._workers))
        elif kind == "cancel":
            driver.cancel()

    async def end(self) -> None:
        """The run is gone: give up what is in flight."""
        if self._block is not None and self._driver is not None:
            self._driver.cancel()
            await self._block
        self._recorder.close()

    async def _prepare(self, order: dict[str, Any]) -> Driver:
        job, self._worker, self._workers = order["job"], order["worker"], order["workers"]
        self._workload = workload = Workload.model_validate(job["workload"])
        self._changes = 0
        self._driver = driver = self._driver_for(workload)
        model = ModelSpec.model_validate(job["model"])
        target, done = target_for(model, workload), driver.done
        if workload.trace and target is TritonGrpc:
            target = TracedGrpc
        if model.family != "llm" and target in STREAMING.values():
            done = lambda *end: driver.done(*end[:4])  # noqa: E731  what comes in parts is no text here
        self._target = target(job["url"], done)
        mix = [(ModelSpec.model_validate(asked), share) for asked, share in job["mix"]] or [(model, 1.0)]
        self._prepare_messages(job["url"], mix, workload, job["tokenizer"])
        self._recorder.begin(job["block"])
        await self._target.open()
        gc.unfreeze()  # what the last block left
        gc.collect()
        gc.freeze()
        gc.disable()
        return driver

    def _driver_for(self, workload: Workload) -> Driver:
        common: dict[str, Any] = {
            "duration_s": workload.duration_s,
            "timeout_s": workload.timeout_s,
            "messages": self._messages,
            "sequences": self._sequences,
            "recorder": self._recorder,
            "worker": self._worker,
            "workers": self._workers,
        }
        arrival = workload.arrival
        if isinstance(arrival, Users):
            users = share(arrival.concurrency, self._worker, self._workers)
            check_connections(workload, users)
            return ClosedLoop(users=users, think_s=arrival.think_s, **common)
        cap = workload.max_in_flight
        return OpenLoop(
            schedule=chunks(arrival, workload.duration_s, workload.seed),
            rate_rps=0.0 if isinstance(arrival, Trace | Steps) else arrival.rate_rps or 0.0,
            max_in_flight=None if cap is None else share(cap, self._worker, self._workers),
            **common,
        )

    def _prepare_messages(
        self, url: str, mix: list[tuple[ModelSpec, float]], workload: Workload, tokenizer: str | None
    ) -> None:
        made_of = workload.model_dump(include=PAYLOAD_FIELDS)
        asked = [(model.name, model.family, model.adapters, model.merge_adapters, share) for model, share in mix]
        made_for = (url, asked, made_of, tokenizer, self._workers)
        if made_for == self._made_for:
            return
        count = min(pool(model, workload) for model, _ in mix) // self._workers * self._workers
        to = addressed([share for _, share in mix], workload.seed, count)[self._worker :: self._workers]
        messages: list[Any] = [None] * len(to)
        made: dict[str, Any] = {}  # requests by family
        for position, (model, _) in enumerate(mix):
            if model.family not in made:
                path = None if tokenizer is None else Path(tokenizer)
                made[model.family] = requests_for(model, workload, count, path)[self._worker :: self._workers]
            own = [n for n, chosen in enumerate(to) if chosen == position]
            requests = [made[model.family][n] for n in own]
            name = workload.served_model or model.name
            for n, message in zip(own, self._target.prepare(name, requests), strict=True):
                messages[n] = message
        self._messages[:] = messages  # in place: the driver holds these lists already
        self._sequences[:] = [own.parameters["sequence_id"] for own in requests if isinstance(own, Sequenced)]
        self._made_for = made_for

    async def _run(self, driver: Driver) -> None:
        while not driver.over.done():
            await asyncio.wait([driver.over], timeout=REPORT_S)
            self._recorder.flush()
            tell(self._report(driver))
        gc.enable()
        await self._target.close()
        while not tell(self._report(driver) | {"over": True}):  # the last word must arrive
            await asyncio.sleep(REPORT_S)

    def _report(self, driver: Driver) -> dict[str, Any]:
        never_sent, outcomes = self._recorder.counts()
        in_flight = driver.in_flight
        return {
            "planned": driver.planned,
            "sent": sum(outcomes.values()) - never_sent + in_flight,
            "in_flight": in_flight,
            "outcomes": outcomes,
            "output_tokens": self._recorder.output_tokens,
            "prompt_tokens": self._recorder.prompt_tokens,
            "cached_tokens": self._recorder.cached_tokens,
            "invalid": driver.invalid and driver.invalid[:LONGEST_DETAIL],
        }

    def _change_rate(self, driver: OpenLoop, rate_rps: float, at_ns: int, end_ns: int) -> None:
        # Each change draws from a seed of its own, the same one in every worker.
        self._changes += 1
        arrival = self._workload.arrival.model_copy(update={"rate_rps": rate_rps})
        left_s = max(end_ns - at_ns, 0) / 1e9
        seed = self._workload.seed + 1_000_003 * self._changes
        driver.change_schedule(at_ns, chunks(arrival, left_s, seed), rate_rps)


def check_connections(workload: Workload, users: int) -> None:
    """InputError where a worker could not hold a connection for each of its users: over HTTP/1.1 every request in
    flight has one of its own, over gRPC all share one."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES
    if workload.protocol != "grpc" and users > most:
        raise InputError(
            f"workload.arrival.concurrency: {users:,} users of one load worker, and over {workload.protocol} each "
            f"has a connection; a process here may have {most:,} (ulimit -n); allowed: no more than that, more "
            "workers, or grpc"
        )


def target_for(model: ModelSpec, workload: Workload) -> Callable[[str, Done], Target]:
    """InputError where the protocol has no such model."""
    given = workload.given
    targets = STREAMING if model.family == "llm" or (given is not None and given.decoupled) else TARGETS
    if workload.protocol not in targets:
        raise InputError(
            f"workload.protocol {workload.protocol!r} for family {model.family}; allowed: {', '.join(targets)}"
        )
    return targets[workload.protocol]


def tell(report: dict[str, Any]) -> bool:
    """Write one line to stdout; False when the reader is behind and the line was left out. A line is shorter than
    PIPE_BUF, so it goes whole or not at all, and a reader that sleeps never stops the load."""
    try:
        os.write(1, json.dumps(report).encode() + b"\n")
    except BlockingIOError:
        return False
    except BrokenPipeError:
        pass  # the run is gone; the closed stdin says so too
    return True


async def serve(folder: Path, index: int) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_die)
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    os.set_blocking(1, False)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a shell's own limit is often 1,024
    worker = Worker(Recorder(folder / f"requests-{index}.arrows"))
    while line := await orders.readline():
        await worker.obey(json.loads(line))
    await worker.end()


def _die(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A fault in a callback: better no worker than one that goes on with wrong counts."""
    error = context.get("exception")
    if isinstance(error, LabError):
        print(error, file=sys.stderr)
    elif error is not None:
        traceback.print_exception(error)
    else:
        print(context["message"], file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
