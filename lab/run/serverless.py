"""Runs an experiment with a runner that scales to zero: the blocks of every experiment, asked through its proxy.

    before each block   all workers end, so that it begins with nobody there
    the block           requests to the proxy, which starts workers and lets idle ones go
    after it            what a worker holds

The blocks' figures are those of any run. What is the runner's own is in the events: worker_starting, worker_ready,
worker_failed, worker_ended, and `waited` for each request that found no worker free; lab/measure/serverless.py makes
sense of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from lab.errors import RunError
from lab.load.generator import Progress
from lab.run.bench import Bench
from lab.run.cold import held, why_not
from lab.run.folder import RunFolder
from lab.run.plan import cell_blocks, load_label, with_rate
from lab.serve import ports
from lab.serve.cold.starter import Starter
from lab.serve.serverless import OnEvent, Runner
from lab.serve.serverless_proxy import PassedCold, ServerlessProxy
from lab.spec import Experiment, ModelSpec, Serverless

CALL_LIMIT_S = 600.0
CLOSE_LIMIT_S = 30.0

T = TypeVar("T")
Report = Callable[[str], None]
Tick = Callable[[str, str, float], None]


class Front:
    """The runner and its proxy in a thread with an event loop of its own; to the bench, a server that answers at
    `http_url`. `on_event` hears of workers, `on_request` of each request, both in that thread. InputError
    for a port that cannot be had."""

    managed = None
    pid = None
    metrics_url = None

    def __init__(
        self,
        model: ModelSpec,
        how: Serverless,
        *,
        log: Path,
        on_event: OnEvent = lambda kind, fields: None,
        on_request: Callable[[PassedCold], None] = lambda passed: None,
        port: int = 0,
    ) -> None:
        listening = ports.listen(ports.HOST, port)  # before any work: it may be taken
        self.starter = Starter(model, how.start, log=log, memory_limit_bytes=how.memory_limit_bytes)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="serverless", daemon=True)
        try:
            self.starter.prepare()
            self.starter.forget()
            self._thread.start()

            async def open_it() -> tuple[Runner, ServerlessProxy, int]:
                runner = Runner(self.starter, how, on_event=on_event)
                await runner.open()
                proxy = ServerlessProxy(runner, model.name, on_request=on_request)
                return runner, proxy, await proxy.start(listening)

            self.runner, self._proxy, self.port = self.call(open_it())
        except BaseException:
            self._stop_loop()
            self.starter.close()
            listening.close()
            raise
        self.http_url = self.grpc_url = self.called = f"http://127.0.0.1:{self.port}"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_LIMIT_S)

    def version(self) -> str:
        return "the lab's own runner, without Triton"

    def alive(self) -> bool:
        return self._thread.is_alive()

    def died(self) -> str | None:
        return None if self.alive() else "the runner's thread ended"

    def scale_to_zero(self) -> None:
        self.call(self.runner.scale_to_zero())

    def worker_bytes(self) -> int | None:
        """What a worker that is ready holds; None where none is."""
        pids = [slot.worker.pid for slot in self.runner.workers() if slot.worker is not None]
        return held(pids[:1]) if pids else None

    def close(self) -> None:
        try:
            for work in (self._proxy.close(), self.runner.close()):
                with suppress(TimeoutError):
                    asyncio.run_coroutine_threadsafe(work, self._loop).result(CLOSE_LIMIT_S)
        finally:
            self._stop_loop()
            self.starter.close()

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop_loop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_LIMIT_S)


class _Notes:
    """Writes what happens into the run folder; `block` is the one that is asked, None between two."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.block: int | None = None

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        self._folder.event(kind, **fields)

    def request(self, passed: PassedCold) -> None:
        if self.block is not None and (passed.waited_ns or passed.refused):
            told = {"cold": passed.cold, "waited_ns": passed.waited_ns, "refused": passed.refused}
            self._folder.event("waited", block=self.block, request=passed.number, **told)


def measure(
    experiment: Experiment, folder: RunFolder, stopped: Callable[[], bool], report: Report, on_tick: Tick
) -> bool:
    """The whole run; whether a page asked it to stop."""
    how, blocks = experiment.serverless, cell_blocks(experiment)
    assert how is not None  # noqa: S101  it is a serverless cell
    if reason := why_not(experiment.model, how.start):
        raise RunError(f"serverless.start: {reason}")
    report("preparing what a worker starts from")
    notes, log = _Notes(folder), folder.path / "starts.log"
    with Front(experiment.model, how, log=log, on_event=notes.event, on_request=notes.request) as front:
        folder.event(
            "serverless",
            enforced_by=front.starter.enforced_by,
            kept_bytes=front.starter.kept_bytes(),
            refusal=front.runner.refusal or None,
        )
        workers, cells = experiment.workload.workers, len(experiment.cells())
        # To the bench it is one more server that answers by URL.
        with Bench(folder, front, workers=workers, cells=cells, stopped=stopped) as bench:  # type: ignore[arg-type]
            for index, planned in enumerate(blocks):
                if bench.stop_asked or stopped():
                    break
                block, where = with_rate(planned, None), f"block {index + 1} of {len(blocks)}"
                notes.block = None
                front.scale_to_zero()
                notes.block = index
                report(f"{where}: {load_label(block.workload)}")

                def tick(state: str, _: Progress, where: str = where, done: float = index / len(blocks)) -> None:
                    on_tick(state, where, done)

                bench.block(index, block, on_tick=tick)
                if (size := front.worker_bytes()) is not None:
                    folder.event("worker_memory", memory_bytes=size)
            front.scale_to_zero()  # while the block is known: how long its last workers were up
            return bench.stop_asked
