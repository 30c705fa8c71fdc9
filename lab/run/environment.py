"""What a run was taken on: the machine, the versions, the load before it began.

Every figure that is compared with another one must be able to say that both come from the same place.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from lab.watch.gpu import gpu_names, read_gpus

PACKAGES = ("torch", "tritonclient", "grpcio", "numpy", "pyarrow", "streamlit", "scikit-learn")


def environment() -> dict[str, Any]:
    """Plain values for run.json. A field that could not be read is None; `gpus` holds what was found or the reason
    for none. The server's version is an event: it is known once there is one."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "gpus": _gpus(),
        "load_average_before": os.getloadavg()[0],
    }


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpus() -> dict[str, Any]:
    readings = read_gpus()
    found = {r.subject: r.value for r in readings if r.field == "memory_total_bytes" and r.value is not None}
    if found:
        return {"found": found, "names": gpu_names(), "reason": None}
    return {"found": {}, "names": {}, "reason": next((r.reason for r in readings if r.reason), "no GPU")}
