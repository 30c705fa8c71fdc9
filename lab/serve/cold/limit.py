"""How much memory a worker may take, and who sees to it.

cgroup   a group of its own in the unified hierarchy (v2), where it may be made and has the memory controller: the
         kernel counts everything, and ends the worker that takes more
rlimit   elsewhere: once imports are done, RLIMIT_DATA allows what the process has mapped by then and the rest of
         the limit on top. An allocation beyond that fails, which the worker tells as its last word. What is mapped
         from files is not counted; nor is what was mapped and never touched before.
"""

from __future__ import annotations

import os
import resource
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

GROUPS = Path("/sys/fs/cgroup")
KIB = 1024
Enforcer = Literal["cgroup", "rlimit"]


def enforcer(groups: Path = GROUPS) -> Enforcer:
    """Who enforces a limit on this machine."""
    try:
        usable = "memory" in (groups / "cgroup.subtree_control").read_text().split() and os.access(groups, os.W_OK)
    except OSError:
        return "rlimit"
    return "cgroup" if usable else "rlimit"


def make_group(limit_bytes: int, groups: Path = GROUPS) -> Path:
    """A new cgroup with that limit and no swap, for one worker. OSError when it cannot be made."""
    group = groups / f"serving-lab-{os.getpid()}-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        (group / "memory.max").write_text(str(limit_bytes))
        with suppress(OSError):  # a kernel without swap accounting
            (group / "memory.swap.max").write_text("0")
        (group / "memory.oom.group").write_text("1")
    except OSError:
        remove_group(group)
        raise
    return group


def remove_group(group: Path) -> None:
    """Once its worker is gone."""
    with suppress(OSError):
        group.rmdir()


def was_exceeded(group: Path) -> bool:
    """Whether the kernel ended somebody of this group for its memory."""
    try:
        lines = (group / "memory.events").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("oom_kill ") and int(line.split()[1]) > 0 for line in lines)


def apply(limit_bytes: int | None, group: str | None) -> None:
    """In the worker, after its imports: take part in the group, or take the limit on itself. MemoryError when what
    was imported alone is beyond it."""
    if limit_bytes is None:
        return
    if group is not None:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
        return
    mapped, held = _status("VmData"), _status("RssAnon")
    if held > limit_bytes:
        raise MemoryError(f"the imports alone hold {held:,} bytes of the limit of {limit_bytes:,}")
    allowed = mapped + limit_bytes - held
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def _status(field: str) -> int:
    """A line of /proc/self/status in bytes; 0 where there is none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * KIB
    return 0
