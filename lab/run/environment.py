"""What a run was taken on: the machine, the versions, the load before it began.

Every figure that is compared with another one must be able to say that both come from the same place.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from lab.watch.gpu import gpu_names, read_gpus

PROJECT = Path(__file__).parents[2]
GIT_LIMIT_S = 5.0
RUNS = ("lab", "experiments")
"""Where a file that git does not know of yet changes what is measured."""
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
    """Which code measures: the `commit` of its checkout, whether it was changed since (`dirty`: files of that commit,
    or new ones in RUNS), and a hash of those `changes`, by which two runs of a changed checkout can be told apart;
    outside of a checkout the installed package's `version`. What cannot be read, or is not there, is None."""
    commit = _git(project, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "changes": None, "version": _version("serving-lab")}
    tracked = _git(project, "diff", "--name-only", "-z", "--no-renames", "HEAD")
    added = _git(project, "ls-files", "--others", "--exclude-standard", "-z", "--", *RUNS)
    if tracked is None or added is None:
        return {"commit": commit.strip(), "dirty": None, "changes": None, "version": None}
    changed = sorted({name for name in (tracked + added).split("\0") if name})
    changes = _hash(project, changed) if changed else None
    return {"commit": commit.strip(), "dirty": bool(changed), "changes": changes, "version": None}


def _git(project: Path, *words: str) -> str | None:
    """What git prints about this checkout; None outside of one, or where git cannot tell. A repository further up,
    which this folder only lies in, says nothing of it."""
    git = shutil.which("git")
    if git is None or not (project / ".git").exists():
        return None
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            [git, "--no-optional-locks", "-C", str(project), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # the name of a file may be any bytes
            timeout=GIT_LIMIT_S,
            env=own,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _hash(project: Path, names: Sequence[str]) -> str:
    """Of the files' names and what they hold now: equal for equal changes to one commit, wherever the checkout lies."""
    whole = hashlib.sha256()
    for name in names:
        path = project / name
        try:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                kind, held = b"link", hashlib.sha256(os.fsencode(path.readlink()))
            elif stat.S_ISREG(mode):
                with path.open("rb") as file:
                    kind, held = b"file", hashlib.file_digest(file, "sha256")
            else:  # a folder of another repository's, a pipe: nothing to be read
                kind, held = b"other", hashlib.sha256()
        except OSError:  # removed since the commit, or not for us
            kind, held = b"gone", hashlib.sha256()
        whole.update(os.fsencode(name) + b"\0" + kind + b"\0" + held.digest())
    return whole.hexdigest()[:16]


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
