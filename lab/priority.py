"""Who goes first where cores are short: what is measured before what only looks on.

A page that is open draws once a second; on a machine of two cores that would show in the tail that is measured. A nice
value alone does not help: Linux weighs whole sessions against each other (autogroup, see sched(7)) and nice values
only within one, so the session's own value is set too. Raising needs a privilege (root, CAP_SYS_NICE); without it the
processes stay as they are, and the run's environment says which nice values were in force.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEASURED = -10
"""Triton, its models and the load workers."""
WATCHING = 19
"""The dashboard, while a run measures."""
ORDINARY = 0
"""The dashboard otherwise: whoever waits for a page on a busy machine gets a fair share of it."""


def change(leader: int, niceness: int) -> bool:
    """Set the nice value of a session while it runs: of every thread in its leader's process group, and of the session
    among others; whether it is weighed so now. Only who has the privilege may lower that of a thread again; anybody may
    that of a session down to 0, and where sessions are weighed that one counts."""
    threads = _allowed(
        lambda: os.setpriority(os.PRIO_PGRP, leader, niceness)
    )  # Linux: all threads of all its processes
    if session_of(leader) is None:
        return threads
    return _allowed(lambda: _weigh(leader, niceness))


def _allowed(set_it: Callable[[], object]) -> bool:
    try:
        set_it()
    except OSError:
        return False
    return True


def _weigh(pid: int, niceness: int) -> None:
    """OSError where that is refused: for good, or because another was changed within the last tenth of a second."""
    Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def give(pid: int, niceness: int) -> bool:
    """Set the nice value of a process and of its session, which should be its own; whether that was allowed. Call it
    before the process has threads: those that exist keep theirs."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        if Path(f"/proc/{pid}/autogroup").exists():
            _weigh(pid, niceness)
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
                _weigh(own, before)


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
