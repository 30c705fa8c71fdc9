"""The runner's side of the load: starts the workers, gives them blocks, and tells how far a block is.

    generator = Generator(folder, workers=2)
    window = generator.begin(Job(block=0, url="127.0.0.1:8001", model=model, workload=workload))
    while not generator.poll().done: …
    generator.close()

The records are in the folder (requests-0.arrows …), not here; Progress is a live count of them. Has no thread: reports
are read when `poll` is called. Knows nothing of what the figures mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from lab import priority
from lab.errors import InputError, RunError
from lab.load.schedule import check_rate
from lab.measure.records import Window
from lab.spec import ClosedLoop, ModelSpec, Steps, Trace, Workload

ROOT = Path(__file__).resolve().parents[2]
PREPARE_LIMIT_S = 120.0
LEAD_S = 0.03
"""Between the order to start and the start: every worker must have read the order by then."""
CHANGE_LEAD_S = 0.01
STOP_LIMIT_S = 30.0
"""For the last records to be written, on a machine that stands still for seconds too."""


@dataclass(frozen=True)
class Job:
    """One block: what is sent where. The arrival's rate is a rate, no longer a fraction of saturation.

    `url` is HOST:PORT; of an OpenAI-compatible server [openai+]http://HOST:PORT. `tokenizer` is the tokenizer.json by
    which a language model's prompts are cut to length; without it their lengths are estimated from words.
    `mix`: models that are asked in place of `model`, each with its share of the requests, in any unit.
    """

    block: int
    url: str
    model: ModelSpec
    workload: Workload
    tokenizer: Path | None = None
    mix: tuple[tuple[ModelSpec, float], ...] = ()


@dataclass(frozen=True)
class Progress:
    """Counts of the block so far, some tenths of a second old. `planned` is the arrivals of the whole block, None
    where users decide; beyond the first million, those not yet drawn are counted as their rate lets expect, and at the
    end it is exact. `errors` counts what ended other than ok, by outcome; `output_tokens` those of answers that ended,
    as far as the server counts them; `cached_tokens` of `prompt_tokens` its prefix cache had, in answers that say so.
    """

    planned: int | None
    sent: int
    finished: int
    in_flight: int
    done: bool
    errors: dict[str, int]
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class _Worker:
    def __init__(self, folder: Path, index: int) -> None:
        self.index = index
        self.reports: list[dict[str, Any]] = []  # not looked at yet
        self.last: dict[str, Any] = {}
        self._stderr = folder / f"worker-{index}.err"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lab.load.worker", str(folder.resolve()), str(index)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # a terminal's Ctrl-C goes to the run, which decides about its workers
            )
        priority.give(self.process.pid, priority.MEASURED)
        self.stdin, self.stdout = cast(IO[bytes], self.process.stdin), cast(IO[bytes], self.process.stdout)
        os.set_blocking(self.stdout.fileno(), False)
        self._rest = b""

    def tell(self, order: dict[str, Any]) -> None:
        try:
            self.stdin.write(json.dumps(order).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            raise RunError(self.obituary()) from None

    def listen(self) -> None:
        """Read what the worker has said; RunError when it is gone."""
        while True:
            try:
                data = os.read(self.stdout.fileno(), 65_536)
            except BlockingIOError:
                return
            if not data:
                raise RunError(self.obituary())
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.reports += [json.loads(line) for line in lines]

    def obituary(self) -> str:
        try:
            status = self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:  # it has stopped talking without ending
            self.process.kill()
            status = self.process.wait()
        lines = self._stderr.read_text(errors="replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        said = f": {lines[-1][:300]}" if lines else ""
        return f"load worker {self.index} (pid {self.process.pid}) died, {how}{said}; see {self._stderr}"


class Generator:
    """Owns `workers` processes, started at once so that they are there when the first block is; close it, or use it
    as a context manager. One block at a time."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._all = [_Worker(folder, index) for index in range(workers)]
        self._workers = self._all  # those that take part in the block
        self._job: Job
        self._window: Window

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._all]

    def begin(self, job: Job) -> Window:
        """Prepare every worker, then start them at one common time, the window's start. InputError when the job
        cannot be done as it is, RunError when a worker is gone."""
        cap = job.workload.max_in_flight
        self._workers = self._all[:cap]  # a worker whose share of the cap is 0 could never send
        self._job = job
        asked = {
            "block": job.block,
            "url": job.url,
            "model": job.model.model_dump(mode="json"),
            "workload": job.workload.model_dump(mode="json"),
            "tokenizer": job.tokenizer and str(job.tokenizer.resolve()),
            "mix": [[model.model_dump(mode="json"), share] for model, share in job.mix],
        }
        for index, worker in enumerate(self._workers):
            worker.last = {}
            worker.reports.clear()
            worker.tell({"order": "prepare", "job": asked, "worker": index, "workers": len(self._workers)})
        deadline = time.monotonic() + PREPARE_LIMIT_S
        answers = [self._answer(worker, deadline) for worker in self._workers]
        for worker, answer in zip(self._workers, answers, strict=True):
            if "input_error" in answer:
                raise InputError(answer["input_error"])
            worker.last = answer
        start_ns = time.perf_counter_ns() + round(LEAD_S * 1e9)
        self._tell({"order": "start", "start_ns": start_ns})
        workload = job.workload
        self._window = Window(
            start_ns,
            measured_from_ns=start_ns + round(workload.warmup_s * 1e9),
            end_ns=start_ns + round(workload.duration_s * 1e9),
        )
        return self._window

    def poll(self) -> Progress:
        """The counts now. InputError when the server refused the first requests as wrong in themselves, RunError when
        a worker died; either way the block is over then, and what was measured is kept."""
        try:
            for worker in self._workers:
                worker.listen()
        except RunError:
            self._end_block()
            raise
        for worker in self._workers:
            worker.last = worker.reports[-1] if worker.reports else worker.last
            worker.reports.clear()
        invalid = next((w.last["invalid"] for w in self._workers if w.last.get("invalid")), None)
        if invalid is not None:
            self._end_block()
            raise InputError(
                f"model {self._job.model.name}: the server refuses the requests as wrong in themselves: {invalid}"
            )
        return self._progress()

    def wait(self, timeout_s: float) -> Progress:
        """Poll until the block is done or `timeout_s` has passed."""
        deadline = time.monotonic() + timeout_s
        while not (progress := self.poll()).done and (left_s := deadline - time.monotonic()) > 0:
            select.select([worker.stdout for worker in self._workers if not worker.last.get("over")], [], [], left_s)
        return progress

    def change(self, rate_rps: float | None = None, concurrency: int | None = None) -> int:
        """Change the running block's rate or concurrency; returns the perf_counter_ns from which it holds. InputError
        when the block has no such thing, or for a rate that nobody can send."""
        arrival = self._job.workload.arrival
        at_ns = time.perf_counter_ns()
        if rate_rps is not None:
            if isinstance(arrival, ClosedLoop | Trace | Steps):
                raise InputError(f"rate_rps {rate_rps:g}: arrival {arrival.kind} has no rate to change")
            check_rate(rate_rps)
            at_ns += round(CHANGE_LEAD_S * 1e9)  # the same moment in every worker
            self._tell({"order": "rate", "rate_rps": rate_rps, "at_ns": at_ns, "end_ns": self._window.end_ns})
        if concurrency is not None:
            if not isinstance(arrival, ClosedLoop):
                raise InputError(f"concurrency {concurrency}: arrival {arrival.kind} has no users; change rate_rps")
            self._tell({"order": "concurrency", "concurrency": concurrency})
        return at_ns

    def cancel(self) -> None:
        """End the block now; unanswered requests become cancelled records. `wait` for it."""
        self._tell({"order": "cancel"})

    def close(self) -> None:
        """End the workers; a running block's unanswered requests become cancelled records."""
        for worker in self._all:
            with contextlib.suppress(BrokenPipeError):  # it is dead already
                worker.stdin.close()
        for worker in self._all:
            try:
                worker.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.stdout.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, order: dict[str, Any]) -> None:
        for worker in self._workers:
            worker.tell(order)

    def _answer(self, worker: _Worker, deadline: float) -> dict[str, Any]:
        while True:
            worker.listen()
            if worker.reports:
                return worker.reports.pop(0)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise RunError(f"load worker {worker.index} was not ready within {PREPARE_LIMIT_S:g} s")
            select.select([worker.stdout], [], [], left_s)

    def _end_block(self) -> None:
        """Stop the workers that are left, and wait until their records are written."""
        deadline = time.monotonic() + STOP_LIMIT_S
        for worker in self._workers:
            try:
                worker.tell({"order": "cancel"})
                while not worker.last.get("over"):
                    worker.last = self._answer(worker, deadline)
            except RunError:
                continue  # the dead one, of which the caller tells

    def _progress(self) -> Progress:
        reports = [worker.last for worker in self._workers if worker.last]
        outcomes: Counter[str] = Counter()
        for report in reports:
            outcomes.update(report["outcomes"])
        planned = [report["planned"] for report in reports if report["planned"] is not None]
        return Progress(
            planned=sum(planned) if planned else None,
            sent=sum(report["sent"] for report in reports),
            finished=outcomes.total(),
            in_flight=sum(report["in_flight"] for report in reports),
            done=len(reports) == len(self._workers) and all(report.get("over") for report in reports),
            errors={outcome: count for outcome, count in outcomes.items() if outcome != "ok"},
            output_tokens=sum(report["output_tokens"] for report in reports),
            prompt_tokens=sum(report["prompt_tokens"] for report in reports),
            cached_tokens=sum(report["cached_tokens"] for report in reports),
        )
