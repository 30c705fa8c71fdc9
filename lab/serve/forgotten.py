"""Model processes that Triton has forgotten: it replaced or unloaded the model, and they live on with all its memory.

Triton 2.51 ends a model's process when the last request to it is let go, and there is a moment in which a request is
never let go: when its client cancels it, by a time limit or by closing the connection, while its answer is on the way
out. So who gives requests up, which a load generator does by the thousand, sooner or later keeps a model for ever.

Such a process does nothing, and nobody will ask it again. One that still computes is another matter: its last answers
are being made.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from lab.serve import health

LOOK_S = 0.5
IDLE_FRACTION = 0.05
"""Of a core: what the threads of an idle language model take is a tenth of it."""
END_LIMIT_S = 5.0
POLL_S = 0.01


def end(server_pid: int, name: str, serving: int) -> int:
    """Kills all idle processes of the model `name` but the `serving` newest; how many. Takes half a second when there
    are others at all."""
    old = health.processes(server_pid).get(name, [])
    idle = _idle(old[: max(0, len(old) - serving)])
    for process in idle:
        with suppress(psutil.Error):
            process.kill()
    until = time.monotonic() + END_LIMIT_S
    while set(idle) & set(health.processes(server_pid).get(name, [])) and time.monotonic() < until:
        time.sleep(POLL_S)  # not for the pid: Triton may leave it a zombie
    return len(idle)


def _idle(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    if not processes:
        return []
    before = [_cpu_s(process) for process in processes]
    time.sleep(LOOK_S)
    spent = [_cpu_s(process) - then for process, then in zip(processes, before, strict=True)]
    return [process for process, cpu_s in zip(processes, spent, strict=True) if cpu_s < IDLE_FRACTION * LOOK_S]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # gone by itself
        return float("inf")
    return float(times.user + times.system)
