"""What serving costs the machine besides its GPUs: memory and CPU, by process.

Memory is PSS (proportional set size): a page that n processes share counts 1/n in each, so the figures of several
models add up; RSS would count the shared libraries once per model. Reading it makes the kernel walk the page tables
(about 6 ms for 300 MB, 37 ms for 4 GB here), so the sampler reads it no more often than it can afford.

Which process serves which model is read off the command line of Triton's stubs. Knows no GPU and nothing of control
groups: a container's own limit is not looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from lab.watch.reading import Reading

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def model_processes(server_pid: int) -> dict[str, list[int]]:
    """Pids by model name of the stub processes below `server_pid`, one for each instance of a Python-backend model.
    A stub's command line carries <repository>/<model>/<version>/model.py. Empty when the server is gone."""
    found: dict[str, list[int]] = {}
    try:
        children = psutil.Process(server_pid).children(recursive=True)
    except psutil.Error:
        return found
    for child in children:
        try:
            name = _model_of(child.cmdline())
        except psutil.Error:  # ended since it was listed
            continue
        if name is not None:
            found.setdefault(name, []).append(child.pid)
    return {name: sorted(found[name]) for name in sorted(found)}


def born_of(mark: str) -> list[int]:
    """Pids of all processes that have LAB_TRITON=`mark` in their environment: a server that was started with it, its
    models, and whatever these started, also when who started it is gone."""
    wanted = f"LAB_TRITON={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # ended, or another user's
            continue
    return sorted(found)


def _model_of(command: Sequence[str]) -> str | None:
    for argument in command[1:]:
        parts = PurePosixPath(argument).parts
        if len(parts) >= 3 and parts[-1] == "model.py" and parts[-2].isdecimal():
            return parts[-3]
    return None


def memory(subject: str, pids: Iterable[int]) -> Reading:
    """memory_bytes: PSS of the processes together, or the reason when any of them cannot be read: a part is not the
    whole."""
    try:
        return Reading(subject, "memory_bytes", float(sum(_pss_bytes(pid) for pid in pids)))
    except _Unreadable as error:
        return Reading(subject, "memory_bytes", None, str(error))


@dataclass(frozen=True)
class Resident:
    """What of processes is in memory. `own_bytes`: what they wrote and no file holds, their weights and all that they
    compute; `file_bytes`: pages of files, mostly of libraries, whole although other processes may have them too."""

    own_bytes: int
    file_bytes: int


def resident(pids: Iterable[int]) -> Resident | None:
    """Of the processes together; None when there are none or one cannot be read. Other processes that come and go
    change a PSS, this they do not."""
    own = whole = 0
    pids = list(pids)
    try:
        for pid in pids:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
            # A map that children would inherit counts as shared memory even where there are none.
            own, whole = own + sizes["Anonymous"] + sizes["Pss_Shmem"], whole + sizes["Rss"]
    except (OSError, KeyError):
        return None
    return Resident(own, whole - own) if pids else None


class _Unreadable(Exception):
    pass


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        raise _Unreadable(f"no permission to read the memory of process {pid}; run as its user") from None
    except (FileNotFoundError, ProcessLookupError):
        if psutil.pid_exists(pid) and not Path("/proc/self/smaps_rollup").exists():
            raise _Unreadable("this kernel does not tell PSS (no /proc/PID/smaps_rollup)") from None
    except OSError as error:
        raise _Unreadable(f"memory of process {pid}: {error.strerror}") from None
    raise _Unreadable(f"process {pid} is gone")


class CpuMeter:
    """CPU time between two looks, so the first look at a process has no value yet."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, int, float]] = {}  # by pid: when, start of the process, CPU seconds
        self._last_host: tuple[float, float] | None = None

    def read(self, subject: str, pids: Iterable[int]) -> Reading:
        """cpu_fraction of one core, of the processes together since the last look: 1.5 is one and a half cores."""
        fractions = []
        reason = None
        for pid in pids:
            fraction, why = self._of_process(pid)
            fractions.append(fraction or 0.0)
            reason = reason or why
        if reason is not None:
            return Reading(subject, "cpu_fraction", None, reason)
        return Reading(subject, "cpu_fraction", sum(fractions))

    def host(self) -> Reading:
        """cpu_fraction of *all* cores of the machine since the last look: 1 is every core busy."""
        times = psutil.cpu_times()
        total = sum(times) - times.guest - times.guest_nice  # Linux counts guest time in user time as well
        idle = times.idle + times.iowait
        last, self._last_host = self._last_host, (total, idle)
        if last is None or total <= last[0]:
            return Reading("host", "cpu_fraction", None, "needs two looks")
        return Reading("host", "cpu_fraction", 1 - max(0.0, idle - last[1]) / (total - last[0]))

    def _of_process(self, pid: int) -> tuple[float | None, str | None]:
        now, found = time.perf_counter(), _stat(pid)
        if found is None:
            self._last.pop(pid, None)
            return None, f"process {pid} is gone"
        last, self._last[pid] = self._last.get(pid), (now, *found)
        # A pid is used again: one that started at another time is another process.
        if last is None or last[1] != found[0] or now <= last[0]:
            return None, "needs two looks"
        return (found[1] - last[2]) / (now - last[0]), None


def _stat(pid: int) -> tuple[int, float] | None:
    """(start in clock ticks since boot, CPU seconds in user and kernel) of a process; None when it is gone, or is a
    zombie. One small read: psutil's way to both takes ten times as long, twice a second for every process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *numbers = stat[stat.rindex(b")") + 2 :].split()  # the name in parentheses may hold anything
    if state in (b"Z", b"X"):
        return None
    return int(numbers[18]), (int(numbers[10]) + int(numbers[11])) / _TICKS_PER_S


def host_memory() -> Reading:
    """memory_bytes of the whole machine that is in use and could not be freed at once."""
    found = psutil.virtual_memory()
    return Reading("host", "memory_bytes", float(found.total - found.available))
