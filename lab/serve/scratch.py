"""Temporary folders whose owner is on record, so that those of a process that was killed can be told and removed.

Each has a record in LAB_HOME/scratch with its owner's pid and start time, written before anything is in it. A folder is
a leftover when its record's owner is gone. Folders without a record, whatever their name, and those of live owners are
never touched.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import atomic
from lab.home import home
from lab.serve.process import born, is_same


def make(prefix: str, place: Path | None = None) -> Path:
    """An empty folder of this process, in `place` or beside the system's other temporary ones; what dead owners left
    goes first."""
    sweep()
    name = f"{prefix}{secrets.token_hex(4)}"
    path = (place or Path(tempfile.gettempdir())) / name
    owner = {"path": str(path), "pid": os.getpid(), "started": born(os.getpid())}
    atomic.write(_record(name), json.dumps(owner))
    path.mkdir(mode=0o700)
    return path


def remove(path: Path) -> None:
    """Gone with all that is in it, if it is there; forgotten once it is."""
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        _record(path.name).unlink(missing_ok=True)


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    path = make(prefix)
    try:
        yield path
    finally:
        remove(path)


def find() -> list[Path]:
    """Folders of dead owners, in order of name."""
    return [path for path in _dead() if path.is_dir()]


def sweep() -> None:
    """Removes what `find` finds."""
    for path in _dead():
        remove(path)


def _record(name: str) -> Path:
    records = home() / "scratch"
    records.mkdir(exist_ok=True)
    return records / f"{name}.json"


def _dead() -> list[Path]:
    found = []
    for record in sorted((home() / "scratch").glob("*.json")):
        try:
            written = json.loads(record.read_text())
            path, pid, started = Path(written["path"]), int(written["pid"]), float(written["started"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # nobody can say whose it is
        if path.name == record.stem and not path.is_symlink() and not is_same(pid, started):
            found.append(path)
    return found
