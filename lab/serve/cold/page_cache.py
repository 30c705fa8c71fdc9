"""What the operating system keeps of files in memory, and dropping it: a cold start reads its weights from the disk.

`drop` asks with POSIX_FADV_DONTNEED, which is advice: pages that somebody maps, or that are not written back yet, stay.
So it is checked with mincore(2), and who could not be shown a cold file is told so. A container's overlay and a
network disk may keep caches of their own below, of which nothing shows here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

PAGE = mmap.PAGESIZE


def drop(paths: Iterable[Path]) -> None:
    """Ask that nothing of these files stays in memory."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)  # what is not on the disk yet cannot be dropped
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def warm(paths: Iterable[Path]) -> None:
    """Read them, so that they are in memory."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def resident_bytes(paths: Iterable[Path]) -> int | None:
    """How much of these files is in memory, in whole pages; None where the kernel does not say."""
    total = 0
    for path in paths:
        found = _resident_pages(path)
        if found is None:
            return None
        total += min(found * PAGE, path.stat().st_size)
    return total


def _resident_pages(path: Path) -> int | None:
    size = path.stat().st_size
    if size == 0:
        return 0
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped,
        ):
            pages = -(-size // PAGE)
            vector = (ctypes.c_ubyte * pages)()
            start = ctypes.c_char.from_buffer(mapped)
            libc = ctypes.CDLL(None, use_errno=True)
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), vector)
            del start  # the map cannot be closed while somebody points into it
            return None if failed else sum(page & 1 for page in vector)
    except (OSError, AttributeError, BufferError):
        return None
