"""Runs into MLflow, beside the measured path: an exporter, never the lab's own database.

An export runs once a run is over, in processes of its own: MLflow takes 1.5 s to import, and it may fail, be slow, or
meet a locked database, which costs the run nothing. LAB_MLFLOW_PYTHON names another interpreter that has it; without
any, everything else works.

    LAB_HOME/mlflow/mlflow.db   what was exported        artifacts/   its files
                    exports/    one JSON file an export: how it stands
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn

from lab import atomic
from lab.errors import FolderError, InputError, RunError
from lab.home import home, locked
from lab.run import results
from lab.run.folder import RUN_ID, RunFolder
from lab.track.bundle import bundle
from lab.track.exporter import LOCKED

MISSING = "MLflow is not installed; `pip install -r requirements.txt` does it"
EXPORTER = Path(__file__).parent / "exporter.py"
LIMIT_S = 300.0
STALE_S = 600.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """How the export of one run stands. `text` says so in one line; `again`: whether another try may help;
    `mlflow_experiment` and `mlflow_run`: where MLflow has it."""

    run: str
    state: Literal["going", "done", "failed"]
    text: str
    again: bool = False
    mlflow_run: str | None = None
    mlflow_experiment: str | None = None
    seconds: float | None = None


def folder() -> Path:
    path = home() / "mlflow"
    path.mkdir(exist_ok=True)
    return path


def tracking_uri() -> str:
    return f"sqlite:///{folder() / 'mlflow.db'}"


def interpreter() -> Path | None:
    """A Python that has MLflow; None when there is none."""
    named = os.environ.get("LAB_MLFLOW_PYTHON")
    if named:
        return Path(named) if Path(named).is_file() else None
    return Path(sys.executable) if find_spec("mlflow") is not None else None


def export(run_id: str, report: str | None = None) -> Exported:
    """Write an ended run into MLflow, with `report` (HTML) among its files, and wait for it. What MLflow does is in the
    answer, never raised. FolderError for a run that cannot be read, InputError for one that goes on."""
    run = RunFolder.open(run_id)
    status = run.status()
    if status.active:
        raise InputError(f"run {run_id!r} is {status.state}; allowed: a run that is over")
    python = interpreter()
    if python is None:
        text = f"{MISSING}. Nothing else needs it."
        return _noted(Exported(run_id, "failed", text, again=True))
    _noted(Exported(run_id, "going", "being written"))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lab-export-") as scratch, locked(folder() / "export.lock"):
        path = Path(scratch) / "bundle.json"
        path.write_text(json.dumps(bundle(run, results.document(run), Path(scratch), report), allow_nan=False))
        found = _run(python, run_id, path)
    return _noted(Exported(**{**asdict(found), "seconds": round(time.monotonic() - begun, 1)}))


def note_failure(run_id: str, why: str) -> None:
    """Write down that an export did not come to MLflow at all, for the page that waits for it."""
    if RUN_ID.fullmatch(run_id) and (home() / "runs" / run_id).is_dir():
        _noted(Exported(run_id, "failed", why, again=True))


def start(run_id: str) -> None:
    """The same in a process of its own, which outlives the page that asked for it; `state` tells how it goes."""
    RunFolder.open(run_id)
    _noted(Exported(run_id, "going", "being written"))
    log = (folder() / "export.log").open("ab")
    with log:
        subprocess.Popen(
            [sys.executable, "-m", "lab", "export", run_id],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )


def state(run_id: str) -> Exported | None:
    """How the last export of this run stands; None when there was none. One that was killed counts as failed."""
    path = _state_path(run_id)
    try:
        found = Exported(**json.loads(path.read_text()))
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError, TypeError):
        return None
    if found.state == "going" and age_s > STALE_S:
        return Exported(run_id, "failed", "The export ended without a word.", again=True)
    return found


def page(found: Exported, port: int) -> str:
    """The address of the run on MLflow's own page, of all runs where it is not there."""
    base = f"http://127.0.0.1:{port}"
    if found.mlflow_run is None or found.mlflow_experiment is None:
        return base
    return f"{base}/#/experiments/{found.mlflow_experiment}/runs/{found.mlflow_run}"


def ui_command(port: int) -> list[str]:
    """The command of MLflow's own page on what was exported. RunError when MLflow is not installed."""
    python = interpreter()
    if python is None:
        raise RunError(MISSING)
    place = ["--host", "127.0.0.1", "--port", str(port)]
    return [str(python), "-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(), *place]


def serve_ui(port: int, say: Say) -> NoReturn:
    """MLflow's own page in place of this process, until Ctrl-C."""
    if not 1 <= port <= 65_535:
        raise InputError(f"port {port}: allowed are 1 to 65535")
    command = ui_command(port)
    say(f"MLflow on http://127.0.0.1:{port}")
    os.execv(command[0], command)  # noqa: S606  a list, and no shell


def _run(python: Path, run_id: str, path: Path) -> Exported:
    artifacts = folder() / "artifacts"
    command = [str(python), str(EXPORTER), str(path), tracking_uri(), str(artifacts)]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return Exported(run_id, "failed", f"MLflow took over {LIMIT_S:.0f} s and was given up.", again=True)
    except OSError as error:
        return Exported(run_id, "failed", f"{python} cannot be run: {error.strerror}.", again=True)
    if done.returncode == LOCKED:
        text = "MLflow's database is locked by another process; close it, or try again when it is done."
        return Exported(run_id, "failed", text, again=True)
    try:
        told: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2]) if done.returncode == 0 else {}
    except ValueError:
        told = {}
    if "run_id" not in told:
        said = done.stderr.strip().rpartition("\n")[2][:300] or f"status {done.returncode}"
        return Exported(run_id, "failed", f"MLflow refused: {said}", again=True)
    there, experiment = str(told["run_id"]), str(told["experiment_id"])
    return Exported(run_id, "done", f"in MLflow as {there}", mlflow_run=there, mlflow_experiment=experiment)


def _noted(found: Exported) -> Exported:
    path = _state_path(found.run)
    try:
        path.parent.mkdir(exist_ok=True)
        atomic.write(path, json.dumps(asdict(found)))
    except OSError as error:
        raise FolderError(f"{path}: cannot be written: {error.strerror}") from None
    return found


def _state_path(run_id: str) -> Path:
    if not RUN_ID.fullmatch(run_id):
        raise FolderError(f"run id {run_id!r}: allowed are 8 to 60 lower-case letters, digits and dashes")
    return folder() / "exports" / f"{run_id}.json"
