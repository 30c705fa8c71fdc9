"""The state of a run, and how a reader tells a run that goes on from one whose process is gone.

    queued → starting → warm-up → running → draining → done | failed | cancelled
                                                       interrupted: nobody wrote an end

The owner writes its pid, the moment that pid started (a pid is used again) and a heartbeat on CLOCK_MONOTONIC, which
all processes of one boot share. `interrupted` is what a reader concludes; no file ever says it.

Knows no file: it turns plain values into a Status and back.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from lab.errors import FolderError

ACTIVE = ("queued", "starting", "warm-up", "running", "draining")
FINAL = ("done", "failed", "cancelled")
SUMMING = "summing up"
"""The phase of a run that measures no more and has its figures yet to make."""

STALE_S = 3.0
"""A process that is gone this long after its last heartbeat counts as gone for good."""


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float | None": (float, int, type(None)),
}


@dataclass(frozen=True)
class Status:
    """`progress` is a fraction, None when unknown. `heartbeat_ns` is perf_counter_ns in the boot `boot_id`;
    `pid_started` counts clock ticks since that boot; `heartbeat_utc` is for people."""

    state: str
    phase: str
    progress: float | None
    message: str
    pid: int
    pid_started: int | None
    boot_id: str
    heartbeat_ns: int
    heartbeat_utc: str

    @classmethod
    def now(cls, state: str, *, phase: str, progress: float | None, message: str) -> Status:
        """This process's status at this moment. ValueError when there is no such state to write."""
        if state not in ACTIVE + FINAL:
            raise ValueError(f"state {state!r}: allowed to write are {', '.join(ACTIVE + FINAL)}")
        return cls(
            state=state,
            phase=phase,
            progress=progress,
            message=message,
            pid=os.getpid(),
            pid_started=started(os.getpid()),
            boot_id=_boot_id(),
            heartbeat_ns=time.perf_counter_ns(),
            heartbeat_utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    @classmethod
    def read(cls, value: dict[str, Any], where: Path) -> Status:
        """A Status from what `written` gave; FolderError when it lacks something."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in value]
        if missing:
            raise FolderError(f"{where / 'status.json'}: damaged: lacks {', '.join(missing)}")
        for field in fields(cls):
            if not isinstance(value[field.name], _TYPES[str(field.type)]):
                raise FolderError(f"{where / 'status.json'}: damaged: {field.name} is {value[field.name]!r}")
        return cls(**{name: value[name] for name in names})

    def written(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def active(self) -> bool:
        """The run goes on: it is neither at an end nor interrupted."""
        return self.state in ACTIVE

    @property
    def heartbeat_age_s(self) -> float | None:
        """Seconds since the last heartbeat; None when the machine was booted since."""
        return (time.perf_counter_ns() - self.heartbeat_ns) / 1e9 if self.boot_id == _boot_id() else None

    def seen(self) -> Status:
        """This status as a reader must take it: interrupted when it was active, its heartbeat is stale, and its
        process is gone or its pid now another's. A process that lives but is silent (busy, stopped) still runs."""
        age = self.heartbeat_age_s
        if self.state not in ACTIVE or (age is not None and age < STALE_S):
            return self
        if age is not None and self.pid_started is not None and started(self.pid) == self.pid_started:
            return self
        message = (
            f"its process {self.pid} is gone, last heard of at {self.heartbeat_utc[11:19]} UTC, while {self.phase}"
        )
        return replace(self, state="interrupted", message=message)


def started(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone. One that has ended and only waits
    for its parent to notice (a zombie) is gone."""
    try:
        # The name in parentheses may hold spaces and parentheses itself.
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] in "ZX" else int(stat[19])


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
