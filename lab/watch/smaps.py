"""The memory of a process page by page, from /proc/PID/smaps: what is its own, and what of which file.

Makes the kernel walk the page tables, as PSS does, and reads a few hundred kilobytes of text (20 ms for a process with
torch in it): for the moment after a load, not for a sampler.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lab.measure.footprint import Footprint, merged

REGIONS = ("/dev/shm/", "/memfd:", "/SYSV")  # noqa: S108  the kernel's own names
NO_FILE = "/dev/zero"
"""How the kernel calls shared memory that no file holds: of a process and its children, and each map another one."""
KIB = 1024


def footprint(pids: Iterable[int]) -> Footprint | None:
    """Of the processes together; None when one of them is gone or may not be read: a part is not the whole."""
    try:
        return merged([parse(Path(f"/proc/{pid}/smaps").read_bytes()) for pid in pids])
    except OSError:
        return None


def parse(text: bytes) -> Footprint:
    """The text of a smaps file. A mapping begins with a line `address permissions offset device inode path`; of the
    lines below it Rss is all of it that is in memory and Anonymous the part that is the process's own copy."""
    own = 0
    files: dict[str, int] = {}
    regions: dict[str, int] = {}
    path, resident = "", 0
    for line in text.splitlines():
        if line.startswith(b"Rss:"):
            resident = int(line.split()[1]) * KIB
        elif line.startswith(b"Anonymous:"):
            anonymous = int(line.split()[1]) * KIB
            own += anonymous
            rest = resident - anonymous
            if rest > 0:
                if not path.startswith("/") or path.startswith(NO_FILE):  # [vdso] and the like
                    own += rest
                else:
                    into = regions if path.startswith(REGIONS) else files
                    into[path] = into.get(path, 0) + rest
        elif line[:1].isdigit() or line[:1] in b"abcdef":
            words = line.split(None, 5)
            if len(words) >= 5 and b"-" in words[0]:
                path = words[5].decode(errors="replace") if len(words) > 5 else ""
                resident = 0
    return Footprint(own, files, regions)
