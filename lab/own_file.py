"""A text file of the user's own: prompts, values, arrival times."""

from __future__ import annotations

from pathlib import Path

from lab.errors import InputError


def read_text(path: Path, what: str, largest_bytes: int) -> str:
    """Its text in UTF-8, without the byte order mark that some editors write. InputError in one line that begins with
    `what` and the path for what cannot be read, is no file (a pipe is read once, a run more often), or too large."""
    where = f"{what} {str(path)!r}"
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{where} is a {'folder' if path.is_dir() else 'pipe or device'}; allowed: a file")
        if (size := path.stat().st_size) > largest_bytes:
            raise InputError(f"{where}: {size:,} bytes; allowed: up to {largest_bytes:,}")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # no UTF-8 is a ValueError, and a NUL within a path
        raise InputError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
