"""The same start inside Triton: a server is launched, the model loaded into it, and its process tells its stages.

    server     from the launch until Triton listens, and from the model's last word until Triton calls it ready
    process    from the load until the model's process runs its first line
    then the stages of models.py, told by marked.py, which stands in front of the model's own code

Only what a model of the lab does in `initialize` is taken apart; the stub's own set-up lies between the stages.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from lab import home, stopping
from lab.serve import health, installation, launch, repository, scratch, weights
from lab.serve.cold import page_cache
from lab.serve.cold.line import Failed, Line, Listener
from lab.serve.cold.models import TORCH
from lab.serve.cold.started import Stage
from lab.serve.cold.starter import START_LIMIT_S, Starter, filled
from lab.serve.record import ServerRecord
from lab.spec import ModelSpec, Start

MARKED = Path(__file__).with_name("marked.py")
COMPILED = ("bf16", "int8", "int8_weight", "int4")


class InTriton:
    """A server with one model that is ready. `stop` ends both."""

    def __init__(self, managed: ServerRecord, stages: Sequence[Stage], asked_ns: int) -> None:
        self.pid, self.port, self.stages, self.asked_ns = managed.pid, managed.http_port, tuple(stages), asked_ns
        self.ready_ns = time.perf_counter_ns()
        self._managed = managed

    @property
    def pids(self) -> list[int]:
        found = [self.pid]
        with suppress(psutil.Error):
            found += [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        return found

    def stop(self) -> None:
        launch.end(self._managed)


class TritonStarter:
    """As Starter, with Triton around it."""

    def __init__(self, spec: ModelSpec, start: Start, *, log: Path) -> None:
        self.spec, self.how, self._log = spec, start, log
        self._files = Starter(spec, start, log=log)  # which files there are, and their page cache
        self._scratch = scratch.make("lab-cold-")
        self.zygote_pid = None

    def prepare(self, progress: home.Progress | None = None) -> None:
        installation.fetch(progress)
        weights.prepare(self.spec, progress)
        if self.how.compile_cache and not self._filled.is_file():
            self.start().stop()
            self._kept.mkdir(parents=True, exist_ok=True)  # of a model that compiles nothing
            self._filled.touch()

    def forget(self) -> None:
        if not self.how.compile_cache:
            shutil.rmtree(self._kept, ignore_errors=True)
        (page_cache.drop if self.how.page_cache == "cold" else page_cache.warm)(self.files())

    def files(self) -> list[Path]:
        kept = [path for path in self._kept.rglob("*") if path.is_file()] if self.how.compile_cache else []
        return [*self._files.weight_files(), *kept]

    @property
    def weight_bytes(self) -> int:
        return self._files.weight_bytes

    def kept_bytes(self) -> dict[str, int]:
        if not self.how.compile_cache:
            return {}
        return {"compile_cache": sum(path.stat().st_size for path in self._kept.rglob("*") if path.is_file())}

    def start(self, limit_s: float = START_LIMIT_S) -> InTriton:
        """A server and its model, ready. Failed when either does not come up."""
        place = self._scratch / f"repository-{time.perf_counter_ns()}"
        folder = repository.write_model(self.spec, place) / "1"
        shutil.move(folder / "model.py", folder / "served.py")
        shutil.copy2(MARKED, folder / "model.py")
        address = str(self._scratch / f"{time.perf_counter_ns()}.sock")
        marks = {
            "report": address,
            "files": [str(path) for path in self._files.weight_files()],
            "torch": self.spec.family in TORCH,
            "compiled": self.spec.family == "llm" and self.spec.precision in COMPILED,
        }
        (folder / "marks.json").write_text(json.dumps(marks))
        asked_ns = time.perf_counter_ns()
        _, managed = launch.launch(place, self._log, environment={"NUMBA_CACHE_DIR": str(self._kept)})
        stages = [Stage("server", asked_ns, time.perf_counter_ns())]
        try:
            with Listener(address) as listener:
                stages += self._loaded(managed, listener, limit_s)
        except BaseException:
            launch.end(managed)
            raise
        return InTriton(managed, stages, asked_ns)

    def _loaded(self, managed: ServerRecord, listener: Listener, limit_s: float) -> list[Stage]:
        client: Any = triton.InferenceServerClient(f"127.0.0.1:{managed.grpc_port}")
        began_ns = time.perf_counter_ns()
        try:
            stopping.heeded(lambda: client.load_model(self.spec.name, client_timeout=limit_s))
        except InferenceServerException as error:
            why = health.why_in_log(self.spec.name, self._log) or str(error.message())
            raise Failed(f"{self.spec.name} did not come up in Triton: {why}") from None
        finally:
            client.close()
        ready_ns = time.perf_counter_ns()
        line = listener.accept_waiting()
        if line is None:
            raise Failed(f"{self.spec.name} came up in Triton without telling its stages")
        return _stages(line, began_ns, ready_ns)

    @property
    def _kept(self) -> Path:
        return home.home() / "cold" / "compiled-in-triton" if self.how.compile_cache else self._scratch / "numba"

    @property
    def _filled(self) -> Path:
        return home.home() / "cold" / "compiled-in-triton" / filled(self.spec)

    def close(self) -> None:
        self._files.close()
        scratch.remove(self._scratch)

    def __enter__(self) -> TritonStarter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stages(line: Line, began_ns: int, ready_ns: int) -> list[Stage]:
    """What the model told while it was loaded; all of it is there by now."""
    stages = []
    while (message := line.read(time.monotonic() + 1.0)) is not None:
        if message["stage"] == "initialized":
            stages.append(Stage("server", message["end_ns"], ready_ns))
            break
        begin_ns = began_ns if message["begin_ns"] is None else message["begin_ns"]
        stages.append(Stage(message["stage"], begin_ns, message["end_ns"]))
    line.close()
    ends = [stage.end_ns for stage in stages if stage.name == "compile"]
    if ends and stages[-1].name == "server":  # tokenizer, cache and engine come between
        stages.insert(-1, Stage("runtime", ends[-1], stages[-1].begin_ns))
    return stages
