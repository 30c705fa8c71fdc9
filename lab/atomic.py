"""A file that is there whole or not at all.

Whoever reads, at any moment or after a crash, finds what was there before or what is new, never a part of it: the new
content is written under a hidden name in the same folder and renamed to its own, which is one step for every reader.
A write that fails takes its hidden file with it; one that is killed leaves it to `sweep`. Of several writers at once
the last one's content stays; who reads, changes and writes takes a lock beside (`home.locked`).

Knows neither formats nor the words in which a caller tells of a full disk: an OSError comes as it is.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HIDDEN = re.compile(r"\..+\.new-[0-9a-f]{8}")


def write(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """`content`, text as UTF-8, in the place of what `path` held; a file that was there keeps its permissions. For
    `durable` see `replacing`."""
    with replacing(path, durable=durable) as new, new.open("xb") as file:
        if (mode := _mode(path)) is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A free name beside `path`, at which the block makes a file or a link; it takes the place of `path`, also of a
    link, at the block's end, and is removed when the block fails. `durable`: it outlives a power cut once the block
    has ended, at the price of waiting for the disk."""
    new = path.with_name(f".{path.name}.new-{secrets.token_hex(4)}")
    try:
        yield new
        if durable:
            sync(new)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)  # the name is the folder's content


def sweep(folder: Path) -> None:
    """Remove what killed writers left; for the one who alone writes into `folder`."""
    for path in folder.iterdir():
        if _HIDDEN.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _mode(path: Path) -> int | None:
    """The permissions of a file; None for what is none, or is not there."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found) if stat.S_ISREG(found) else None


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
