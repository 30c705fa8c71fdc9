"""An autoscaler at work on the lab's own Triton: instances of a model come and go while requests arrive.

What it decides by is seen at the door, as Knative's queue proxy sees it: requests that were sent and have no answer
yet. A change is made by a thread, since the load goes on meanwhile; until it is in force no other is begun. It is a
load of the model with another count: the new instances get what comes once they are ready, the old ones finish what
waits for them and go. (Triton can also change the count in place, but only in a moment in which nothing is asked, and
a crowded model has none.) Each change is an event "scaled": when it was decided, when it was in force, how many
instances before and after.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lab.errors import LabError
from lab.load.generator import Progress
from lab.measure.autoscale import Autoscaler, Sample
from lab.run.folder import RunFolder
from lab.serve.triton import Server
from lab.spec import ModelSpec


@dataclass
class _Change:
    before: int
    after: int
    asked_ns: int
    done_ns: int = 0
    error: str = ""


class Scaler:
    """Scales `model` on `server`. `tick` about ten times a second; `close` waits for a change that is under way."""

    def __init__(self, server: Server, model: ModelSpec, folder: RunFolder, block: int) -> None:
        assert model.scaling is not None  # noqa: S101  it is scaled
        self._server, self._model, self._folder, self._block = server, model, folder, block
        self._scaler = Autoscaler(model.scaling)
        self._instances = model.instances
        self._origin_ns = time.perf_counter_ns()
        self._next_s = 0.0
        self._change: _Change | None = None
        self._thread: threading.Thread | None = None

    def begin(self, start_ns: int) -> None:
        """The load begins then, and the rules' clock with it: a decision every tick from there on, without drift, as
        the simulator has it. When it falls beside a step of the load moves a tail more than the rules do."""
        self._origin_ns = start_ns

    def tick(self, progress: Progress) -> None:
        now_s = (time.perf_counter_ns() - self._origin_ns) / 1e9
        if now_s < 0:
            return
        self._note()
        waiting = max(0, progress.in_flight - self._instances)
        self._scaler.observe(Sample(now_s, progress.in_flight, waiting, progress.sent))
        if now_s < self._next_s or self._change is not None or progress.done:
            return
        tick_s = self._scaler.rules.tick_s
        self._next_s = (now_s // tick_s + 1) * tick_s
        wanted = self._scaler.decide(now_s, self._instances)
        if wanted != self._instances:
            self._change = _Change(self._instances, wanted, time.perf_counter_ns())
            self._thread = threading.Thread(target=self._make, args=(self._change,), daemon=True)
            self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._note()

    def _make(self, change: _Change) -> None:
        try:
            self._server.load(self._model.model_copy(update={"instances": change.after, "scaling": None}))
        except LabError as error:
            change.error = str(error)
        change.done_ns = time.perf_counter_ns()

    def _note(self) -> None:
        change = self._change
        if change is None or not change.done_ns:
            return
        self._change = None
        if change.error:
            self._folder.event("problem", text=f"Scaling to {change.after} instances failed: {change.error}")
            return
        self._instances = change.after
        self._folder.event(
            "scaled",
            block=self._block,
            model=self._model.name,
            before=change.before,
            after=change.after,
            asked_ns=change.asked_ns,
            done_ns=change.done_ns,
        )


@contextmanager
def scaling(server: object, model: ModelSpec, folder: RunFolder, block: int) -> Iterator[Scaler | None]:
    """Who scales during the block; None for a model without rules, or on a server of others'."""
    if model.scaling is None or not isinstance(server, Server) or server.managed is None:
        yield None
        return
    scaler = Scaler(server, model, folder, block)
    try:
        yield scaler
    finally:
        scaler.close()
