"""What NVIDIA's GPUs say of themselves, read through NVML: each field a value or the reason for none.

    memory_used_bytes        without what driver and firmware keep, where NVML tells them apart (v2)
    memory_reserved_bytes    kept by driver and firmware; None where only v1 answers, which counts it as in use
    memory_total_bytes
    utilization_fraction     share of NVML's last interval in which some kernel ran; not how much of the GPU was busy
    power_w, temperature_c, clock_hz (of the multiprocessors)
    process_memory_bytes:PID of each process that computes there

Every GPU is its own subject, "gpu:0", "gpu:1", …; nothing is summed or averaged over them. Without a GPU there is one
subject, "gpu:none", whose fields all carry the reason. Knows no model: the sampler tells which process serves which.
Does not look into MIG partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import pynvml

from lab.watch.reading import Reading

_MEMORY_FIELDS = ("memory_used_bytes", "memory_reserved_bytes", "memory_total_bytes")
_PLAIN_FIELDS: tuple[tuple[str, Callable[[Any], float]], ...] = (
    ("utilization_fraction", lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
    ("power_w", lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
    ("temperature_c", lambda gpu: float(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU))),
    ("clock_hz", lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1e6),
)
FIELDS = _MEMORY_FIELDS + tuple(name for name, _ in _PLAIN_FIELDS)

_REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported by this GPU as it is set up (as under WSL or MIG)",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is too old to tell",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to read it",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost (off the bus); see the kernel log",
}


def read_gpus() -> list[Reading]:
    """All fields of all GPUs now. Never raises an NVML error."""
    unavailable = _unavailable()
    if unavailable is not None:
        return _nothing("gpu:none", unavailable)
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return _nothing("gpu:none", _reason(error))
    if count == 0:
        return _nothing("gpu:none", "the NVIDIA driver finds no GPU")
    return [reading for index in range(count) for reading in _read_gpu(index)]


def used_bytes() -> float | None:
    """What all GPUs together have in use; None when one of them does not tell."""
    found = [reading.value for reading in read_gpus() if reading.field == "memory_used_bytes"]
    return None if any(value is None for value in found) else sum(value or 0.0 for value in found)


def gpu_names() -> dict[str, str]:
    """{"gpu:0": "NVIDIA H200"}: what NVML calls each GPU that it can be asked about. Never raises an NVML error."""
    if _unavailable() is not None:
        return {}
    names: dict[str, str] = {}
    with suppress(pynvml.NVMLError):
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):
                names[f"gpu:{index}"] = str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)))
    return names


@cache
def _unavailable() -> str | None:
    """Why NVML cannot be used; None once it is initialised. Asked once a process: a start costs up to a second."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _reason(error)
    return None


def _read_gpu(index: int) -> list[Reading]:
    subject = f"gpu:{index}"
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return _nothing(subject, _reason(error))
    return [
        *_memory(subject, gpu),
        *(_field(subject, name, read, gpu) for name, read in _PLAIN_FIELDS),
        *_processes(subject, gpu),
    ]


def _field(subject: str, name: str, read: Callable[[Any], float], gpu: Any) -> Reading:
    try:
        return Reading(subject, name, read(gpu))
    except pynvml.NVMLError as error:
        return Reading(subject, name, None, _reason(error))


def _memory(subject: str, gpu: Any) -> list[Reading]:
    try:
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
            reserved = Reading(subject, "memory_reserved_bytes", float(memory.reserved))
        except pynvml.NVMLError:
            memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
            reason = "this driver counts reserved memory as in use (NVML memory v1)"
            reserved = Reading(subject, "memory_reserved_bytes", None, reason)
    except pynvml.NVMLError as error:
        return _nothing(subject, _reason(error), _MEMORY_FIELDS)
    return [
        Reading(subject, "memory_used_bytes", float(memory.used)),
        reserved,
        Reading(subject, "memory_total_bytes", float(memory.total)),
    ]


def _processes(subject: str, gpu: Any) -> list[Reading]:
    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    except pynvml.NVMLError as error:
        return [Reading(subject, "process_memory_bytes", None, _reason(error))]
    unknown = "NVML does not tell the memory of single processes here"
    return [
        Reading(subject, f"process_memory_bytes:{process.pid}", float(process.usedGpuMemory))
        if process.usedGpuMemory is not None
        else Reading(subject, f"process_memory_bytes:{process.pid}", None, unknown)
        for process in processes
    ]


def _nothing(subject: str, reason: str, fields: Sequence[str] = FIELDS) -> list[Reading]:
    return [Reading(subject, field, None, reason) for field in fields]


def _reason(error: pynvml.NVMLError) -> str:
    return _REASONS.get(error.value, f"NVML: {error}")
