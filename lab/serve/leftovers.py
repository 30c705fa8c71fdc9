"""Shared-memory regions that the lab's own dead servers left in /dev/shm.

Every server gets a prefix of its own for its regions, recorded in LAB_HOME/shm beside its pid and start time before it
starts. A region is a leftover when its prefix is in such a record, the recorded server is gone, and no live process
has it mapped (a stub may outlive its server by seconds). Other servers' regions, and other people's, match no record
and are never touched.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from lab import atomic
from lab.home import home
from lab.serve.process import is_same

SHM = Path("/dev/shm")  # noqa: S108  the kernel's own name for it


@dataclass(frozen=True)
class Leftover:
    path: Path
    size_bytes: int


def new_prefix() -> str:
    """A region prefix that no other server has."""
    return f"servinglab_{secrets.token_hex(6)}_"


def record(prefix: str, pid: int, started: float) -> None:
    """Remembers whose regions `prefix` marks."""
    folder = _records()
    atomic.write(folder / f"{prefix}.json", json.dumps({"prefix": prefix, "pid": pid, "started": started}))


def find() -> list[Leftover]:
    """What `remove` would remove, in order of name."""
    return [left for prefix in _dead_prefixes() for left in _regions(prefix)]


def remove() -> tuple[int, int]:
    """Removes the leftovers; (how many, bytes). Forgets a dead server once it has no region left."""
    count = size_bytes = 0
    for prefix in _dead_prefixes():
        for left in _regions(prefix):
            left.path.unlink(missing_ok=True)
            count += 1
            size_bytes += left.size_bytes
        if not any(SHM.glob(f"{prefix}*")):
            (_records() / f"{prefix}.json").unlink(missing_ok=True)
    return count, size_bytes


def born_since(prefix: str, since: float) -> int:
    """Bytes in /dev/shm that belong to a server or came by it: regions with its prefix, and files made after `since`
    (seconds since the epoch) that bear no server's prefix and that no process maps which is not of that server."""
    own, others = 0, []
    for path in SHM.iterdir():
        try:
            stat = path.stat()
        except OSError:
            continue  # gone meanwhile
        if path.name.startswith(prefix):
            own += stat.st_blocks * 512
        elif stat.st_mtime >= since and not path.name.startswith("servinglab_"):
            others.append((path, stat.st_blocks * 512))
    mapped = _mapped() if others else set()
    return own + sum(size for path, size in others if str(path) not in mapped)


def _records() -> Path:
    folder = home() / "shm"
    folder.mkdir(exist_ok=True)
    return folder


def _dead_prefixes() -> list[str]:
    dead = []
    for path in sorted(_records().glob("servinglab_*.json")):
        try:
            written = json.loads(path.read_text())
            prefix, pid, started = str(written["prefix"]), int(written["pid"]), float(written["started"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not ours to judge: without pid and start time nobody can say that its server is dead
        if prefix == path.stem and not is_same(pid, started):
            dead.append(prefix)
    return dead


def _regions(prefix: str) -> list[Leftover]:
    found = sorted(SHM.glob(f"{prefix}*"))
    mapped = _mapped() if found else set()
    return [Leftover(path, path.stat().st_size) for path in found if str(path) not in mapped]


def _mapped() -> set[str]:
    """Paths below /dev/shm in the memory of any live process that this user may look at."""
    paths: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:
            continue  # gone, or another user's: its regions are not writable for us either
        paths.update(line[line.index(str(SHM)) :] for line in text.splitlines() if str(SHM) in line)
    return paths
