"""Reads the instruments while a run goes on, in a thread of the runner, and appends what they say.

    subject        fields
    model:<name>   memory_bytes (PSS), cpu_fraction (of one core), gpu_memory_bytes:<gpu index>
    server         memory_bytes, cpu_fraction: Triton's own process, without the models
    <extra>        cpu_fraction of processes that the caller names, such as "client", the load workers
    host           memory_bytes, cpu_fraction (of all cores): the machine, whoever uses it
    gpu:<index>    see lab/watch/gpu.py; "gpu:none" with the reason when there is none
    sampler        cpu_fraction: what this watching itself costs

A row is a value or the reason for none. Readings that are expensive are made less often, so that watching stays below
1 % of a core; then there is no row, which is not the same as a row without a value. The sampler never raises and is
never waited for longer than STOP_S: a run must not fail, or hang, because an instrument does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import psutil
import pyarrow as pa

from lab.watch import host
from lab.watch.gpu import read_gpus
from lab.watch.reading import Reading, table

STOP_S = 1.0
MEMORY_SHARE, GPU_SHARE, SEARCH_SHARE = 0.005, 0.002, 0.001
"""Of one core: for the memory of processes (see lab/watch/host.py), for GPUs, for finding the models' processes."""
LONGEST_PAUSE_S = 10.0
"""However expensive a reading is, it is made again after this."""


class Appends(Protocol):
    """Where readings go: a RunFolder, which this layer does not know."""

    def append(self, name: str, rows: pa.Table) -> None: ...


class Sampler:
    """Watches from `start` to `stop`; also a context manager. `extra_pids` may change while it runs; `server_pid` is
    None when the server is not the lab's own. `problem` is the first error that kept readings from being written."""

    def __init__(
        self,
        folder: Appends,
        server_pid: int | None,
        period_s: float = 0.5,
        extra_pids: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.problem: str | None = None
        self._folder = folder
        self._server_pid = server_pid
        self._period_s = period_s
        self._extra_pids = extra_pids or {}
        self._cpu = host.CpuMeter()
        self._models: dict[str, list[int]] = {}
        self._memory_turn = _Turn(MEMORY_SHARE)
        self._search_turn = _Turn(SEARCH_SHARE)
        self._gpu_turn = _Turn(GPU_SHARE)
        self._last_own: tuple[float, float] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watching. An instrument that hangs is left behind and writes nothing more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def look(self) -> None:
        """Read memory at the next tick, however dear that is: something begins that may end before its turn comes."""
        self._memory_turn.now()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self) -> None:
        due = time.perf_counter()
        while not self._stopping.is_set():
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001  the one boundary: an instrument's failure is no failure of the run
                self.problem = self.problem or f"{type(error).__name__}: {error}"
            due = max(due + self._period_s, time.perf_counter())  # a slow tick delays the next, it makes no burst
            self._stopping.wait(due - time.perf_counter())

    def _tick(self) -> None:
        readings = [*self._of_processes(), self._cpu.host(), host.host_memory(), self._own_cost()]
        if self._gpu_turn.come():
            with self._gpu_turn:
                readings += self._of_gpus()
        if not self._stopping.is_set():
            self._folder.append("telemetry", table(readings, time.perf_counter_ns()))

    def _of_processes(self) -> list[Reading]:
        if self._server_pid is None:
            reason = "the server is not the lab's own, so its processes are not known"
            serving = {}
            readings = [Reading("server", field, None, reason) for field in ("memory_bytes", "cpu_fraction")]
        else:
            serving = {f"model:{name}": pids for name, pids in self._find_models(self._server_pid).items()}
            serving["server"] = [self._server_pid]
            readings = []
        readings += [self._cpu.read(subject, pids) for subject, pids in serving.items()]
        readings += [self._cpu.read(subject, pids) for subject, pids in self._extra_pids.items() if pids]
        if self._memory_turn.come():
            with self._memory_turn:
                readings += [host.memory(subject, pids) for subject, pids in serving.items()]
        return readings

    def _find_models(self, server_pid: int) -> dict[str, list[int]]:
        known = [pid for pids in self._models.values() for pid in pids]
        if self._search_turn.come() or not all(map(psutil.pid_exists, known)):  # a model was reloaded, or died
            with self._search_turn:
                self._models = host.model_processes(server_pid)
        return self._models

    def _of_gpus(self) -> list[Reading]:
        """GPU readings, with the memory of the processes that serve a model summed under that model's name."""
        serves = {f"process_memory_bytes:{pid}": name for name, pids in self._models.items() for pid in pids}
        rest = []
        own: dict[tuple[str, str], list[Reading]] = {}
        for reading in read_gpus():
            if reading.field in serves:
                gpu = reading.subject.partition(":")[2]
                own.setdefault((f"model:{serves[reading.field]}", f"gpu_memory_bytes:{gpu}"), []).append(reading)
            else:
                rest.append(reading)
        for (subject, field), parts in own.items():
            reason = next((part.reason for part in parts if part.reason), None)
            value = None if reason else sum(part.value or 0.0 for part in parts)
            rest.append(Reading(subject, field, value, reason))
        return rest

    def _own_cost(self) -> Reading:
        now = (time.perf_counter(), time.thread_time())
        last, self._last_own = self._last_own, now
        if last is None:
            return Reading("sampler", "cpu_fraction", None, "needs two looks")
        return Reading("sampler", "cpu_fraction", (now[1] - last[1]) / (now[0] - last[0]))


class _Turn:
    """Lets something expensive happen just often enough to stay within `share` of one core."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._due = 0.0
        self._began = 0.0

    def come(self) -> bool:
        return time.perf_counter() >= self._due

    def now(self) -> None:
        self._due = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        pause_s = (time.thread_time() - self._began) / self._share
        self._due = time.perf_counter() + min(pause_s, LONGEST_PAUSE_S)
