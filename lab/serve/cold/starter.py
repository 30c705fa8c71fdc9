"""The owner's side of a cold start: what remedies keep is prepared once, then workers are started, each stage heard.

    with Starter(spec, start, log=path) as starter:
        starter.prepare()
        starter.forget()                  # the page cache, and what is not to be kept
        worker = starter.start()          # worker.stages, worker.port
        worker.stop()

A worker that was started by this process ends with it: the Unix socket between the two is closed then. A stage's begin
and end are the worker's own stamps, so the sum of all stages is no tautology: what lies between them is missing in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from lab import home, priority
from lab.serve import job, repository, scratch, weights
from lab.serve.cold import limit, packed, page_cache, task
from lab.serve.cold.line import Failed, Line, Listener, ending
from lab.serve.cold.started import STOP_LIMIT_S, Stage, Worker
from lab.serve.cold.task import Task
from lab.spec import ModelSpec, Start

START_LIMIT_S = 300.0
"""A limit, not an expectation: a compile of all kernels takes half a minute on two cores."""

WISHES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""As Triton's processes have them (lab/serve/installation.py)."""

MODELS = Path(__file__).parents[1] / "models"
PROJECT = Path(__file__).parents[3]


class Starter:
    """Starts workers of `spec`, as `start` says. Use as a context manager: a zygote and temporary folders are its."""

    def __init__(self, spec: ModelSpec, start: Start, *, log: Path, memory_limit_bytes: int | None = None) -> None:
        self.spec, self.how, self._log = spec, start, log
        self._limit_bytes = memory_limit_bytes
        self._scratch = scratch.make("lab-cold-")
        self._zygote: tuple[subprocess.Popen[bytes], Line] | None = None
        self._asking = threading.Lock()  # a zygote reads one job a line
        self._count = 0
        self.enforced_by = None if memory_limit_bytes is None else limit.enforcer()

    # --- what is there before a start -----------------------------------------------------------------------------

    def prepare(self, progress: home.Progress | None = None) -> None:
        """Everything that a start may find: weights, the model's folder, what remedies keep, the zygote. Failed, or
        the errors of weights.prepare, when that cannot be had."""
        spec, how = self.spec, self.how
        weights.prepare(spec, progress)
        repository.write_model(spec, self._place)
        if how.mapped_weights and self._packed is not None and not packed.is_kept(self._packed):
            asked = {"folder": str(weights.folder(spec)), "packed": str(self._packed)}
            try:
                job.do("lab.serve.cold.packed", asked, progress or home.steps)
            except job.Failed as error:
                raise Failed(f"{spec.name}: its weights could not be packed: {error}") from None
        if how.compile_cache:
            with home.locked(home.home() / "cold" / f"{self._kept.name}.lock"):
                mark = self._kept / filled(spec)
                if not mark.is_file():  # one start that nobody measures or limits fills it: a compiler takes its own
                    self._exec(self._job(limited=False), START_LIMIT_S).stop()
                    self._kept.mkdir(parents=True, exist_ok=True)  # of a model that compiles nothing
                    mark.touch()
        if how.zygote:
            self._zygote = self._hatch()

    def forget(self) -> None:
        """Before each start: files cold or warm in the page cache as `start` says, and no compiled code of an earlier
        start where none is to be kept."""
        if not self.how.compile_cache:
            for folder in (self._scratch / "numba", self._scratch / "inductor"):
                shutil.rmtree(folder, ignore_errors=True)
        (page_cache.drop if self.how.page_cache == "cold" else page_cache.warm)(self.files())

    def files(self) -> list[Path]:
        """What a start reads of its own: the weights as it wants them, and the code that was kept."""
        kept = [path for path in self._kept.rglob("*") if path.is_file()] if self.how.compile_cache else []
        return [*self.weight_files(), *kept]

    def weight_files(self) -> list[Path]:
        if self.how.mapped_weights and self._packed is not None:
            return packed.files(self._packed)
        return self._stored()

    @property
    def weight_bytes(self) -> int:
        """Of the files; what a worker must hold at least, unless it maps them."""
        return sum(path.stat().st_size for path in self._stored())

    @property
    def zygote_pid(self) -> int | None:
        return None if self._zygote is None else self._zygote[0].pid

    def kept_bytes(self) -> dict[str, int]:
        """{remedy: bytes on disk} of what is kept for the next start."""
        found = {}
        if self.how.mapped_weights and self._packed is not None:
            found["mapped_weights"] = sum(path.stat().st_size for path in packed.files(self._packed))
        if self.how.compile_cache:
            found["compile_cache"] = sum(path.stat().st_size for path in self._kept.rglob("*") if path.is_file())
        return found

    # --- a start --------------------------------------------------------------------------------------------------

    def start(self, limit_s: float = START_LIMIT_S) -> Worker:
        """A new worker, ready. Failed when it ends before that, or takes longer than `limit_s`. Stopped when a stop is
        asked for meanwhile. Threads may start several at a time."""
        asked = self._job()
        if self._zygote is None:
            return self._exec(asked, limit_s)
        return self._fork(asked, limit_s)

    def _exec(self, asked: Task, limit_s: float) -> Worker:
        with Listener(self._new_address()) as listener:
            asked = replace(asked, report=listener.address, asked_ns=time.perf_counter_ns())
            process = self._popen("lab.serve.cold.worker", asked)
            try:
                line = listener.accept(time.monotonic() + limit_s, process)
                return self._heard(line, asked, time.monotonic() + limit_s, process)
            except BaseException:
                process.kill()
                process.wait()
                _leave(asked)
                raise

    def _fork(self, asked: Task, limit_s: float) -> Worker:
        assert self._zygote is not None  # noqa: S101  started above
        parent, ask = self._zygote
        with Listener(self._new_address()) as listener:
            asked = replace(asked, report=listener.address, asked_ns=time.perf_counter_ns())
            with self._asking:
                ask.send(asdict(asked))
            line = listener.accept(time.monotonic() + limit_s, parent)
            try:
                return self._heard(line, asked, time.monotonic() + limit_s, None)
            except BaseException:
                line.close()  # which ends the child
                _leave(asked)
                raise

    def _heard(self, line: Line, asked: Task, deadline: float, process: subprocess.Popen[bytes] | None) -> Worker:
        stages: list[Stage] = []
        pid = 0
        group = None if asked.cgroup is None else Path(asked.cgroup)
        while True:
            message = line.read(deadline)
            if message is None:
                kind, why = self._why(line, process, group)
                raise Failed(f"{self.spec.name} did not come up: {why}{_after(stages)}", kind)
            if "failed" in message:
                raise Failed(f"{self.spec.name} did not come up: {message['failed']}{_after(stages)}", message["kind"])
            if "ready" in message:
                return Worker(line, pid, message["ready"], stages, asked.asked_ns, process, group)
            pid = message.get("pid", pid)
            stages.append(Stage(message["stage"], message["begin_ns"], message["end_ns"]))

    def _why(self, line: Line, process: subprocess.Popen[bytes] | None, group: Path | None) -> tuple[str, str]:
        """Of a worker that is gone without a word."""
        if not line.ended():
            return "error", "it took too long"
        status = None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(STOP_LIMIT_S)
        how = "it ended" if status is None else f"it ended ({ending(status)})"
        if group is not None and limit.was_exceeded(group):
            return "memory", "the kernel ended it for its memory"
        if self._limit_bytes is not None and status in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL):
            return "memory", f"{how} under a limit of {self._limit_bytes:,} bytes"
        return "error", how

    # --- inside ---------------------------------------------------------------------------------------------------

    def _hatch(self) -> tuple[subprocess.Popen[bytes], Line]:
        with Listener(self._new_address()) as listener:
            process = self._popen("lab.serve.cold.zygote", replace(self._job(limited=False), report=listener.address))
            deadline = time.monotonic() + START_LIMIT_S
            line = listener.accept(deadline, process)
            if line.read(deadline) is None:
                raise Failed(f"{self.spec.name}: the parent that forks did not come up; see {self._log}")
            return process, line

    def _popen(self, module: str, asked: Task) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, json.dumps(asdict(asked))]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=PROJECT,
                env={**WISHES, **os.environ, **asked.environment},
            )
        priority.give(process.pid, priority.MEASURED)
        return process

    def _job(self, *, limited: bool = True) -> Task:
        """`limited`: with the memory limit, where there is one, and a group of its own where the kernel sees to it."""
        spec, how = self.spec, self.how
        most = self._limit_bytes if limited else None
        group = None
        if most is not None and self.enforced_by == "cgroup":
            group = str(limit.make_group(most))
        return task.of(
            spec,
            how,
            folder=self._place / spec.name,
            files=self._stored(),
            packed=self._packed,
            environment=self._environment(),
            memory_limit_bytes=most,
            cgroup=group,
        )

    def _environment(self) -> dict[str, str]:
        base = self._kept if self.how.compile_cache else self._scratch
        return {"NUMBA_CACHE_DIR": str(base / "numba"), "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor")}

    @property
    def _kept(self) -> Path:
        """Where compiled code is kept, by model: one kind of model compiles other code than another."""
        return home.home() / "cold" / f"compiled-{self.spec.family}-{int(self.how.torch_compile)}"

    @property
    def _place(self) -> Path:
        """A folder of its own for each kind of weights: starts of several may alternate."""
        return home.home() / "cold" / "repository" / _digest([self.spec.family, weights.folder(self.spec)])

    @property
    def _packed(self) -> Path | None:
        folder = weights.folder(self.spec)
        compiled = self.spec.family == "llm" and self.spec.precision != "fp32"
        return packed.place(folder) if compiled and folder is not None and folder.is_dir() else None

    def _stored(self) -> list[Path]:
        folder = weights.folder(self.spec)
        return [] if folder is None else sorted(path.resolve() for path in folder.glob("*.safetensors"))

    def _new_address(self) -> str:
        self._count += 1
        return str(self._scratch / f"{self._count}-{time.perf_counter_ns()}.sock")

    def close(self) -> None:
        if self._zygote is not None:
            process, line = self._zygote
            line.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
            process.kill()
            process.wait()
            self._zygote = None
        scratch.remove(self._scratch)

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def filled(spec: ModelSpec) -> str:
    """The name of the file that says: what a start of this model compiles, by the code as it is now, is kept."""
    code = _digest([path.read_bytes() for path in sorted(MODELS.glob("*.py"))])
    return f"filled-{spec.family}-{spec.precision}-{code}"


def _leave(asked: Task) -> None:
    """Of a start that failed: its group goes, too."""
    if asked.cgroup is not None:
        limit.remove_group(Path(asked.cgroup))


def _digest(parts: Sequence[object]) -> str:
    joined = b"\0".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return hashlib.sha256(joined).hexdigest()[:16]


def _after(stages: Sequence[Stage]) -> str:
    return f", after {stages[-1].name}" if stages else ""
