"""Who goes first where cores are short: what is measured before what only looks on.

A page that is open draws once a second; on a machine of two cores that would show in the tail that is measured. A nice
value alone does not help: Linux weighs whole sessions against each other (autogroup, see sched(7)) and nice values
only within one, so the session's own value is set too. Raising needs a privilege (root, CAP_SYS_NICE); without it the
processes stay as they are, and the run's environment says which nice values were in force.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEASURED = -10
"""Triton, its models and the load workers."""
WATCHING = 19
"""The dashboard."""


def give(pid: int, niceness: int) -> bool:
    """Set the nice value of a process and of its session, which should be its own; whether that was allowed. Call it
    before the process has threads: those that exist keep theirs."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        autogroup = Path(f"/proc/{pid}/autogroup")
        if autogroup.exists():
            autogroup.write_text(str(niceness))
    except OSError:  # not allowed, or gone already
        return False
    return True


@contextmanager
def raised(niceness: int = MEASURED) -> Iterator[None]:
    """This process and its session at that nice value while the block lasts, where that is allowed: for users that are
    part of the process that measures. What else belongs to the session, such as a shell's other jobs, goes with it."""
    own, before = os.getpid(), session_of(os.getpid())
    give(own, niceness)
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                Path(f"/proc/{own}/autogroup").write_text(str(before))


def session_of(pid: int) -> int | None:
    """The nice value of a process's session; None where Linux weighs none, or it is gone."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().rpartition(" ")[2])
    except (OSError, ValueError):
        return None


def of(pid: int) -> int | None:
    """The nice value of a process; None when it is gone."""
    try:
        return os.getpriority(os.PRIO_PROCESS, pid)
    except OSError:
        return None
