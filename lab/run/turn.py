"""The turn of a run whose blocks are decided on the way: a search, a sweep, equals against each other.

lab/run/runner.py has one of its own, for runs that a page starts, watches and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lab.errors import LabError
from lab.run import results
from lab.run.folder import RunFolder
from lab.run.lock import MeasureLock
from lab.run.runner import Stop

Report = Callable[[str], None]


@contextmanager
def turn(folder: RunFolder, phase: str, stop: Stop, report: Report) -> Iterator[None]:
    """The machine is this run's until the block ends. The run then is done, cancelled when `stop` is set, or failed
    with the words of what ended the block; its summary is of whatever was measured."""
    state, message = "failed", "it ended without saying why"
    try:
        with MeasureLock(folder.run_id) as lock:
            lock.acquire(once(report))
            folder.set_status(state="starting", phase="starting", progress=0.0)
            yield
        state, message = ("cancelled", "stopped by the user") if stop() else ("done", "")
    except (LabError, OSError) as error:
        message = str(error)
        raise
    finally:
        folder.write_summary(results.compute(folder, state=state, message=message))
        folder.set_status(state=state, phase=phase, progress=1.0, message=message)
        folder.close()


def once(report: Report) -> Callable[[int, str], None]:
    """For MeasureLock.acquire: tells behind whom it waits when that changes."""
    told: list[str] = []

    def tell(place: int, holder: str) -> None:
        if told[-1:] != [holder]:
            told.append(holder)
            report(f"waiting: place {place} behind {holder}")

    return tell
