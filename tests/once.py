"""What takes seconds to make is made once for all processes that share out the tests (pytest-xdist), not once each."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(names: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` of this run of the tests, which `make` fills in the process that comes first, while the others
    wait. Afterwards nobody writes to it. It is filled under another name, so nothing in it may hold its path."""
    root = names.getbasetemp()
    if root.name.startswith("popen-"):  # a process of xdist has a folder in that of all
        root = root.parent
    place, partial = root / name, root / f"{name}.partial"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            shutil.rmtree(partial, ignore_errors=True)  # of one that failed
            partial.mkdir()
            make(partial)
            partial.rename(place)
    return place
