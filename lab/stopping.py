"""A stop that reaches work which knows nothing of runs: a process that is waited for, a lock that another one holds.

    with stopping.heeding(run_is_stopped):
        weights.prepare(spec)  # raises Stopped soon after run_is_stopped() says so; its process is gone then

Heeded by the thread that asked for it. Without `heeding` nothing ever stops.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

POLL_S = 0.1


class Stopped(Exception):
    """Not a LabError: nothing went wrong."""


_is_stopped: ContextVar[Callable[[], bool]] = ContextVar("is_stopped", default=lambda: False)


@contextmanager
def heeding(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """`is_stopped` is asked ten times a second while somebody waits, perhaps from another thread."""
    token = _is_stopped.set(is_stopped)
    try:
        yield
    finally:
        _is_stopped.reset(token)


def check() -> None:
    """Stopped when a stop was asked for."""
    if _is_stopped.get()():
        raise Stopped


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    """While the block waits for `process`, a stop kills it; the block then ends in Stopped. So does a block whose
    process was ended by the same signal that asked for the stop."""
    is_stopped, over = _is_stopped.get(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            if is_stopped():
                process.kill()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    check()


def heeded(call: Callable[[], T]) -> T:
    """What `call` gives, which itself knows of no stop: it is made in a thread of its own, and left alone when a stop
    is asked for (or Ctrl-C pressed) meanwhile. Whoever catches Stopped ends what it waits for."""
    ended: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def make() -> None:
        try:
            ended.put((call(), None))
        except BaseException as error:  # noqa: BLE001  it is the caller's, and raised there
            ended.put((None, error))

    check()
    threading.Thread(target=make, daemon=True).start()
    while True:
        try:
            given, error = ended.get(timeout=POLL_S)
        except Empty:
            check()
            continue
        if error is not None:
            raise error
        return given  # type: ignore[return-value]
