"""Starting and stopping runs from a page: each run is a process of its own that outlives the page.

`start` is idempotent by run id, so a double click is one run: the run folder is made by one atomic mkdir, and the
second process that tries finds it there and leaves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lab.errors import FolderError, InputError, RunError
from lab.run import control
from lab.run.folder import RunFolder
from lab.run.status import SUMMING
from lab.spec import ModelSpec

START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
SUM_LIMIT_S = 120.0
PROJECT = Path(__file__).parents[2]


def start(experiment_id: str, settings: list[str], quick: bool, run_id: str, bet: str | None = None) -> str:
    """Start the experiment in a process of its own and return once its folder is there; `bet` is kept in it. InputError
    or RunError with the process's own line when it refuses."""
    arguments = ["run", experiment_id, *(["--quick"] if quick else []), *([f"--bet={bet}"] if bet else [])]
    return _spawn([*arguments, *(f"--set={setting}" for setting in settings)], run_id)


def start_live(model: ModelSpec, run_id: str, *, rate_rps: float = 50.0, duration_s: float = 3600.0) -> str:
    """Start an open-ended load on `model`, to be changed by hand while it runs (control.send)."""
    setting = "model=" + json.dumps(model.model_dump(mode="json", exclude_unset=True))
    arguments = ["load", "--model", model.name, "--rate", str(rate_rps), "--duration", str(duration_s)]
    arguments += ["--warmup", "1"]
    return _spawn([*arguments, f"--set={setting}"], run_id)


def start_command(command: str, arguments: Sequence[str], run_id: str) -> str:
    """`lab load`, or another command that makes a run, with these arguments in a process of its own."""
    return _spawn([command, *arguments], run_id)


def replay(cassette: str, run_id: str) -> str:
    """Play a cassette in a process of its own, as a run that grows; returns once its folder is there."""
    return _spawn(["cassette", "play", cassette], run_id)


def stop(run_id: str) -> None:
    """Ask the run to stop; after STOP_LIMIT_S kill it, unless it has heard and only sums up what it measured, for
    which it has SUM_LIMIT_S. What was measured is kept either way."""
    folder = RunFolder.open(run_id)
    control.send(run_id, {"stop": True})
    _until(lambda: not folder.status().active, STOP_LIMIT_S)
    _until(lambda: not ((now := folder.status()).active and now.phase == SUMMING), SUM_LIMIT_S)
    status = folder.status()
    if status.active and status.pid:
        # The runner alone: its load workers end when their input closes, its own Triton when its owner dies.
        with suppress(ProcessLookupError):
            os.kill(status.pid, signal.SIGKILL)


def _spawn(arguments: list[str], run_id: str) -> str:
    if _exists(run_id):
        return run_id
    # A file, not a pipe, takes the process's words: nobody reads a pipe once the page is gone, and a closed one would
    # end the run.
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "lab", *arguments, "--run-id", run_id],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,
        )
        _until(lambda: _exists(run_id) or process.poll() is not None, START_LIMIT_S)
        if _exists(run_id):
            return run_id
        if process.poll() is None:
            process.kill()
            raise RunError(f"run {run_id} made no folder within {START_LIMIT_S:g} s; see `python -m lab doctor`")
        words.seek(0)
        lines = words.read().decode(errors="replace").strip().splitlines()
    text = lines[-1] if lines else f"it ended with status {process.returncode}"
    raise (InputError if process.returncode == 2 else RunError)(text.removeprefix("error: "))


def _exists(run_id: str) -> bool:
    try:
        RunFolder.open(run_id)
    except FolderError:
        return False
    return True


def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False
