"""One measured run at a time on a machine: two that share the cores would measure each other.

`run.lock` in LAB_HOME is held by the run that measures; each one that waits holds a ticket in `queue/`, named after
the moment it came, and the oldest ticket goes first. Both are kernel file locks (flock), so a holder or a waiter that
is killed lets go at that instant, and a ticket that nobody holds is skipped and removed. Work that measures nothing and
would falsify what a run measures (a batch job) holds the same lock shared: runs wait for its end.

Knows nothing of what is measured. Excludes runs that share a LAB_HOME, and only those.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab.errors import RunError
from lab.home import home

POLL_S = 0.2

OnWait = Callable[[int, str], None]
"""Called with the place in the queue (1 = next) and the name of the run that measures now."""


class MeasureLock:
    """The right to measure, for the run called `holder`.

    with MeasureLock(run_id) as lock:
        lock.acquire(lambda place, holder: print(f"place {place} behind {holder}"))
        …  # alone on this machine until the block ends
    """

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self._fd: int | None = None

    def acquire(self, on_wait: OnWait) -> None:
        """Return once this run may measure. Calls `on_wait` about five times a second while it waits; what it raises
        gives up the place in the queue. RunError when LAB_HOME cannot be written."""
        if self._fd is not None:
            return
        try:
            ticket = _Ticket(home() / "queue", self.holder)
            lock = os.open(home() / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(
                f"{home()}: no lock can be made there: {error.strerror}; check room and permissions"
            ) from error
        try:
            while True:
                ahead = ticket.ahead()
                if ahead == 0 and _take(lock):
                    break
                on_wait(ahead + 1, _name_in(lock))
                time.sleep(POLL_S)
        except BaseException:
            os.close(lock)
            raise
        finally:
            ticket.drop()
        os.ftruncate(lock, 0)
        with suppress(OSError):  # a full disk costs the others the name, not us the lock
            os.pwrite(lock, self.holder.encode(), 0)
        self._fd = lock

    def release(self) -> None:
        """Let the next one measure. Does nothing when the lock is not held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> MeasureLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def no_run_beside(holder: str) -> Iterator[None]:
    """The machine is busy with `holder`, and maybe with its like; runs wait behind it. RunError when one measures."""
    try:
        lock = os.open(home() / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunError(f"{home()}: no lock can be made there: {error.strerror}; check room and permissions") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"run {_name_in(lock)} measures now, and {holder} would falsify its figures; wait or stop it"
            ) from None
        with suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, holder.encode(), 0)
        yield
    finally:
        os.close(lock)


def who_measures() -> str | None:
    """The name of the run that measures now; None when none does."""
    try:
        probe = os.open(home() / "run.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _name_in(probe)
    else:
        return None
    finally:
        os.close(probe)


class _Ticket:
    """A file in the queue that its maker holds locked; unlocked means that its maker is gone."""

    def __init__(self, folder: Path, holder: str) -> None:
        folder.mkdir(exist_ok=True)
        name = f"{time.perf_counter_ns():020d}-{secrets.token_hex(4)}"
        self._path = folder / name
        # Locked under a hidden name first: a ticket must never be seen unlocked while its maker lives.
        hidden = folder / f".{name}"
        self._fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        hidden.rename(self._path)

    def ahead(self) -> int:
        """How many live tickets are older than this one. Dead ones are removed."""
        names = sorted(path.name for path in self._path.parent.iterdir() if not path.name.startswith("."))
        return sum(_alive(self._path.parent / name) for name in names if name < self._path.name)

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def _alive(ticket: Path) -> bool:
    try:
        probe = os.open(ticket, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # dropped since it was listed
        return False
    try:
        # Shared, so that two who look at the same time do not take each other for its maker.
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        ticket.unlink(missing_ok=True)
        return False
    finally:
        os.close(probe)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name_in(lock: int) -> str:
    return os.pread(lock, 200, 0).decode(errors="replace") or "another run"
