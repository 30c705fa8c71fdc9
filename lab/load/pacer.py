"""A timer that fires at an absolute time of the `perf_counter_ns` clock, to about 50 µs.

Event loops wake to whole milliseconds, which at 1,000 requests a second is a whole gap. The kernel's timerfd takes an
absolute CLOCK_MONOTONIC time instead, so lateness neither rounds nor adds up.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME = os.O_NONBLOCK, os.O_CLOEXEC, 1

_libc = ctypes.CDLL(None, use_errno=True)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Pacer:
    """Calls `fire` once each time a set deadline has passed. Built inside the running loop; close it."""

    def __init__(self, fire: Callable[[], None]) -> None:
        self._fire = fire
        self._fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_create: {os.strerror(ctypes.get_errno())}")
        self._spec = _TimerSpec()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._expired)

    def set(self, deadline_ns: int) -> None:
        """Fire at `deadline_ns`, or at once when it has passed; replaces the deadline before it."""
        # A time of 0 would switch the timer off.
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(max(deadline_ns, 1), 1_000_000_000)
        _libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew since the loop saw it expire
            return
        self._fire()
