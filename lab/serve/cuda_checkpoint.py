"""A process's GPU memory moved to host memory and back by NVIDIA's driver: a model is evicted without being ended.

    to_host(pids)       all that these processes hold on GPUs is copied to host memory, and the GPUs let it go
    to_device(pids)     the way back, to the same addresses; the processes never notice

The driver's own checkpoint does it (cuCheckpointProcess…, since driver 570; x86_64), so no model takes part, and its
CUDA context goes as well, which a model that moved its weights by itself would keep. Meanwhile the process lives, and a
call of its to the GPU waits until it is back. Only for processes of the same user. What the driver cannot move (memory
that processes share over CUDA IPC, for one) it refuses, an error with the driver's name of it: then nothing moved.
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html

Looks after no budget and knows no model. Nothing here makes a CUDA context in the process that calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from lab.errors import ModelError

LIBRARY = "libcuda.so.1"
LOCK_LIMIT_MS = 10_000
"""The longest that work under way on the GPU is waited for."""

RUNNING, LOCKED, CHECKPOINTED = range(3)
"""CUprocessState. A running process is locked before it is checkpointed, and is locked again once it is restored."""


class _LockArgs(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


def unavailable() -> str | None:
    """Why GPU memory can't be moved to the host on this machine; None where it can."""
    found = _driver()
    return found if isinstance(found, str) else None


def to_host(pids: Sequence[int]) -> None:
    """ModelError where one of them can't be moved; then all of them are on the GPU as before."""
    try:
        for pid in pids:
            _call("Lock", pid, ctypes.byref(_LockArgs(timeout_ms=LOCK_LIMIT_MS)))
        for pid in pids:
            _call("Checkpoint", pid)
    except ModelError:
        for pid in pids:
            with suppress(ModelError):
                to_device([pid])
        raise


def to_device(pids: Sequence[int]) -> None:
    """Nothing to do for one that is there already. ModelError when the GPU has no room, or the process is gone."""
    for pid in pids:
        if _state(pid) == CHECKPOINTED:
            _call("Restore", pid)
        if _state(pid) == LOCKED:
            _call("Unlock", pid)


def _state(pid: int) -> int:
    state = ctypes.c_int(-1)
    _call("GetState", pid, ctypes.byref(state))
    return state.value


def _call(what: str, pid: int, argument: Any = None) -> None:
    """One of cuCheckpointProcess…; ModelError with the driver's name of what went wrong."""
    driver = _driver()
    if isinstance(driver, str):
        raise ModelError(f"GPU memory cannot be moved to the host: {driver}")
    status = getattr(driver, f"cuCheckpointProcess{what}")(ctypes.c_int(pid), argument)
    if status:
        raise ModelError(f"GPU memory of process {pid}, {what.lower()}: {_name(driver, status)}")


@cache
def _driver() -> ctypes.CDLL | str:
    """The driver's library, initialised; or why there is none that can do it."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return f"no NVIDIA driver on this machine ({LIBRARY} not found)"
    if not hasattr(library, "cuCheckpointProcessCheckpoint"):
        return "the NVIDIA driver is too old; allowed: 570 or newer"
    status = library.cuInit(0)
    return f"the NVIDIA driver does not start: {_name(library, status)}" if status else library


def _name(library: ctypes.CDLL, status: int) -> str:
    """ "CUDA_ERROR_NOT_SUPPORTED"."""
    name = ctypes.c_char_p()
    library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(name))
    return f"CUDA error {status}" if name.value is None else name.value.decode()
