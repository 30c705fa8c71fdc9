"""Paths that Triton's Python backend can be given. It starts each model by a line for a shell in which they stand
unquoted, so a space in one of them hangs the load.

Whatever holds more than letters, digits and a few signs is reached through a link in a temporary folder of this
process, which goes with it (lab/serve/scratch.py).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from lab.errors import ServerError
from lab.serve import scratch

PLAIN = re.compile(r"[A-Za-z0-9_./+,@%=-]+")


def of(path: Path) -> Path:
    """`path` itself where it is plain, else a link to it that is. ServerError when no temporary folder is plain."""
    if PLAIN.fullmatch(str(path)):
        return path
    link = _folder(os.getpid()) / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    with suppress(FileExistsError):  # of an earlier server, or by another thread
        link.symlink_to(path)
    return link


@cache
def _folder(pid: int) -> Path:
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108  the folder in it is new and our own
        if PLAIN.fullmatch(place) and os.access(place, os.W_OK):
            folder = scratch.make("lab-path-", Path(place))
            atexit.register(_remove, folder, pid)
            return folder
    raise ServerError(
        f"TMPDIR {tempfile.gettempdir()!r}: Triton's Python backend takes no path with a space or the like, and there "
        "is no folder for a link; allowed: a TMPDIR of letters, digits and _./+,@%=- that can be written"
    )


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        scratch.remove(folder)
