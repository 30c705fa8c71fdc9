"""What a run was taken on: the machine, the versions, the load before it began.

Every figure that is compared with another one must be able to say that both come from the same place.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from lab.watch.gpu import gpu_names, read_gpus

PROJECT = Path(__file__).parents[2]
GIT_LIMIT_S = 5.0
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


def lab_version(project: Path = PROJECT) -> dict[str, Any]:
    """Which code measures: the `commit` of its checkout and whether files of that were changed since (`dirty`); outside
    of one the installed package's `version`. What cannot be read is None."""
    described = _described(project)
    if described is None:
        return {"commit": None, "dirty": None, "version": _version("serving-lab")}
    commit, dash, _ = described.partition("-")
    return {"commit": commit, "dirty": bool(dash), "version": None}


def _described(project: Path) -> str | None:
    """Git's own word for what is checked out there, "0123…" or "0123…-dirty"; None outside of a checkout, or where git
    cannot tell. A repository further up, which this folder only lies in, says nothing of it."""
    git = shutil.which("git")
    if git is None or not (project / ".git").exists():
        return None
    command = [git, "--no-optional-locks", "-C", str(project), "describe"]
    command += ["--always", "--dirty", "--exclude=*", "--abbrev=40"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_LIMIT_S, env=own
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


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
