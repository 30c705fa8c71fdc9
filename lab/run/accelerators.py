"""The accelerators that plans ask about: the rows that come with the lab, or the user's own file in their place.

lab/run/accelerators.csv      facts with source and date, as of the lab's release
LAB_HOME/accelerators.csv     the whole catalogue as the user has it, in the same format
"""

from __future__ import annotations

from pathlib import Path

from lab.errors import FolderError, InputError
from lab.home import place
from lab.measure.planner import accelerators
from lab.measure.planner.accelerators import Accelerator

SHIPPED = Path(__file__).parent / "accelerators.csv"
MOST_BYTES = 1 << 20


def own() -> Path:
    """Where the user's catalogue is, if there is one."""
    return place() / "accelerators.csv"


def catalogue() -> tuple[Accelerator, ...]:
    """The rows in force. InputError when the user's file does not fit, naming it."""
    path = own() if own().is_file() else SHIPPED
    try:
        data = path.read_bytes()
        if len(data) > MOST_BYTES:
            raise InputError(f"accelerators: {len(data):,} bytes; allowed: up to {MOST_BYTES:,}")
        return accelerators.read(data.decode("utf-8-sig"))
    except (InputError, UnicodeDecodeError) as error:
        if path == SHIPPED:
            raise
        what = "not a text file in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path}: {what}; mend the file, or delete it for the lab's own rows") from None
    except OSError as error:
        raise FolderError(f"{path}: cannot be read: {error.strerror}") from None


def find(name: str) -> Accelerator:
    """The accelerator of that name; InputError with the nearest one when there is none."""
    return accelerators.find(catalogue(), name)
