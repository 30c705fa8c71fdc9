"""What the lab's own dead servers left: processes of their models, and shared-memory regions in /dev/shm.

Every server gets a prefix of its own for its regions, which its models' processes (stubs) have in their command line
too; it is recorded in LAB_HOME/shm beside the server's pid and start time before there are any. What bears a prefix is
a leftover when the prefix is in such a record and the recorded server is gone; a region that a live process other than
such a stub still has mapped stays until that is gone. Other servers' processes and regions, and other people's, match
no record and are never touched.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from lab import atomic
from lab.home import home
from lab.serve.process import is_same

SHM = Path("/dev/shm")  # noqa: S108  the kernel's own name for it
STUB = "triton_python_backend_stub"
END_LIMIT_S = 10.0
"""Until the kernel has taken a killed process away."""


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
    """Kills the stubs of dead servers and removes their regions; (how many regions, bytes). Forgets a dead server once
    it has no region left."""
    count = size_bytes = 0
    dead = _dead_prefixes()
    left_alive = stubs(dead) if dead else []
    for stub in left_alive:
        with suppress(psutil.Error):
            stub.kill()
    psutil.wait_procs(left_alive, timeout=END_LIMIT_S)
    for prefix in dead:
        for left in _regions(prefix):
            left.path.unlink(missing_ok=True)
            count += 1
            size_bytes += left.size_bytes
        if not any(SHM.glob(f"{prefix}*")):
            (_records() / f"{prefix}.json").unlink(missing_ok=True)
    return count, size_bytes


def stubs(prefixes: Collection[str]) -> list[psutil.Process]:
    """The model processes of the servers with these region prefixes, also those that are nobody's children any more
    because their server was killed."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if words and Path(words[0]).name == STUB and any(word.startswith(tuple(prefixes)) for word in words):
                found.append(process)
    return found


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
    left = []
    for path in found:
        with suppress(FileNotFoundError):  # somebody else removes them too
            if str(path) not in mapped:
                left.append(Leftover(path, path.stat().st_size))
    return left


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
