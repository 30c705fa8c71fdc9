"""The dashboard and the server behind it, as one command: `python -m lab up`.

This process owns both children. Streamlit owns nothing that must survive: runs are processes of their own. While one of
them measures, the dashboard steps back behind everything else (lab/priority.py), and no longer.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from lab import priority, stopping
from lab.errors import LabError, RunError
from lab.home import home
from lab.measure.words import plural
from lab.run.lock import who_measures
from lab.serve import launch, ports
from lab.serve.process import Process, last_lines
from lab.serve.triton import Server
from lab.spec import ModelSpec

PROJECT = Path(__file__).parents[2]
PATIENCE_S = 20.0
"""A page that has not come by then is told about."""
POLL_S = 0.25
"""A run needs longer from its lock to its first request."""
FIRST_MODEL = ModelSpec(name="digits")

Report = Callable[[str], None]


def run_dashboard(port: int, report: Report) -> int:
    """Serve until SIGINT or SIGTERM. The page is usable without Triton, so a server that cannot start is reported
    and shown on the System page, not fatal."""
    asked_to_stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked_to_stop.set())
    start_s = time.perf_counter()
    (page_port,), taken = ports.pick([port], count=1)
    for line in taken:
        report(line)
    streamlit = _start_streamlit(page_port)
    steps_back = StepsBack(streamlit.pid)
    steps_back()
    server: Server | None = None
    try:
        with stopping.heeding(asked_to_stop.is_set):
            server = _start_server(report)
            if _page_answers(streamlit, page_port, asked_to_stop.is_set, report, steps_back):
                report(f"serving lab ready in {time.perf_counter() - start_s:.1f} s: http://127.0.0.1:{page_port}")
            while not asked_to_stop.is_set():
                if streamlit.exit_status is not None:
                    raise RunError(_died(streamlit))
                if server is not None and not server.alive():
                    report(f"{server.died()}; starting it again")
                    server = _start_server(report)
                steps_back()
                time.sleep(POLL_S)
        return 0
    except stopping.Stopped:  # while Triton was starting
        return 0
    finally:
        streamlit.send_signal(signal.SIGTERM)
        if server is not None:
            report(f"Triton {server.stop()}")
        if not streamlit.wait(10):
            streamlit.send_signal(signal.SIGKILL)


def _died(streamlit: Process) -> str:
    log = home() / "streamlit.log"
    said = f"; its last words: {' | '.join(words)}" if (words := last_lines(log, 2)) else ""
    return f"the dashboard died ({launch.ending(streamlit.exit_status)}){said}; see {log}, and start it again"


class StepsBack:
    """Called now and then, keeps the session of process `pid` behind everything else while a run measures: its threads
    would show in the tail that is measured."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._now: int | None = None

    def __call__(self) -> str | None:
        """The run that measures, if one does."""
        run = who_measures()
        wanted = priority.ORDINARY if run is None else priority.WATCHING
        if wanted != self._now and priority.change(self._pid, wanted):
            self._now = wanted
        return run


def _start_server(report: Report) -> Server | None:
    try:
        attached = Server.attach()
        if attached is not None:
            report("a managed Triton runs already; using it")
            return None
        return Server.start(repository=home() / "repository", log=home() / "triton.log", models=[FIRST_MODEL])
    except LabError as error:
        report(f"no Triton: {error}")
        return None


def _start_streamlit(port: int) -> Process:
    options = [f"--server.port={port}", "--server.address=127.0.0.1", "--server.headless=true"]
    command = [sys.executable, "-m", "streamlit", "run", str(PROJECT / "asgi.py"), *options]
    wishes = {
        # A page that ticks frees what it allocates, but each tick is another thread, and each thread its own heap with
        # holes of its own: with one for all, ten minutes of a live page take 3 MiB instead of 10.
        "MALLOC_ARENA_MAX": "1",
    }
    environment = {**wishes, **os.environ, "PYTHONPATH": str(PROJECT)}
    return Process(command, environment, home() / "streamlit.log")


def _page_answers(
    streamlit: Process,
    port: int,
    stopped: Callable[[], bool],
    report: Report,
    steps_back: Callable[[], str | None] = who_measures,
) -> bool:
    """Waits for the page's first answer: whether it came before Streamlit ended, or the user wanted to stop. One that
    is late is told about once, with what it waits for."""
    patience = time.monotonic() + PATIENCE_S
    while streamlit.exit_status is None and not stopped():
        run = steps_back()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1):
                return True
        except (TimeoutError, urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        if time.monotonic() > patience:
            report(f"the page does not answer after {PATIENCE_S:g} s, still waiting: {_why_late(run)}")
            patience = math.inf
    return False


def _why_late(run: str | None) -> str:
    if run is not None:
        return f"{run} measures, and the page takes only what that leaves; it comes when the run is over"
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if load > 2 * cores:
        return f"this machine is busy (load {load:.0f} on {plural(cores, 'core')}), and the page gets its share of it"
    return f"see {home() / 'streamlit.log'}"
