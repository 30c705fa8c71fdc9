"""A run on disk: written by the one process that measures, read by everybody, changed by no reader.

    run.json             what is measured, and on what machine; written once, before anything runs
    status.json          state, phase, progress and heartbeat; replaced whole
    requests-<k>.arrows  finished requests, by load worker k     ┐ append-only streams (lab/stream.py); every row
    telemetry.arrows     readings of the machine                 │ that was written survives kill -9
    server.arrows        Triton's counters                       │
    waits.arrows         of a fleet: what requests waited for    ┘
    events.jsonl         what happened when: phases, blocks, changes by hand, a death
    summary.json         the figures, once there are any
    log.txt              words for people; bounded
    ballast              room kept so that a run which filled the disk can still write down its end

Knows no experiment and no figure: documents and summaries are plain JSON values to it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from lab import atomic
from lab.errors import FolderError, reason, remedy
from lab.home import home
from lab.measure.records import REQUESTS, SCHEMA_VERSION, SERVER, TELEMETRY, WAITS
from lab.run.status import FINAL, Status
from lab.stream import StreamWriter, Tail

STREAMS = {
    "requests": ("requests-*.arrows", REQUESTS),
    "telemetry": ("telemetry.arrows", TELEMETRY),
    "server": ("server.arrows", SERVER),
    "waits": ("waits.arrows", WAITS),
}
RUN_ID = re.compile(r"[a-z0-9-]{8,60}")
SHORT = re.compile(r"[a-z0-9_-]{1,7}")
"""A word for a run that is too short to be an id."""
LOG_LIMIT_BYTES = 1 << 20
BALLAST_BYTES = 1 << 20


def new_run_id(experiment_id: str) -> str:
    """ "20261130-032512-batching-9f3c": the UTC time, what is run, and what tells two of one second apart."""
    name = experiment_id.replace("_", "-")[:39]
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


class RunFolder:
    """One run. `create` it to measure, `open` it to look; only the measuring process calls what writes."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.document = document
        self._writers: dict[str, StreamWriter] = {}
        self._lock = threading.Lock()

    @property
    def run_id(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, run_id: str, document: dict[str, Any]) -> RunFolder:
        """A new run in the state queued, owned by this process. `document` gets schema_version, run and created_utc
        where it lacks them. FolderError when the id is not allowed or taken: of two who create, one succeeds."""
        path = _path(run_id)
        document = {"schema_version": SCHEMA_VERSION, "run": run_id, "created_utc": _utc_now(), **document}
        hidden = path.parent / f".new-{run_id}-{secrets.token_hex(4)}"
        folder = cls(hidden, document)
        try:
            hidden.mkdir(parents=True)
            folder._replace("run.json", document)
            folder.set_status("queued")
            (hidden / "ballast").write_bytes(bytes(BALLAST_BYTES))
            hidden.rename(path)  # readers see a whole folder or none; fails when the name is taken
        except (OSError, FolderError) as error:
            shutil.rmtree(hidden, ignore_errors=True)
            if path.exists():
                raise FolderError(f"run {run_id!r} exists already; watch it, or start one under another id") from None
            raise FolderError(
                f"run {run_id!r} cannot be created in {path.parent}: "
                f"{reason(error) if isinstance(error, OSError) else error}"
            ) from error
        folder.path = path
        return folder

    @classmethod
    def open(cls, run_id: str) -> RunFolder:
        """The run called `run_id`, or the recording of that id. FolderError, one line, when there is none or it cannot
        be read."""
        if not RUN_ID.fullmatch(run_id):
            raise _no_run(run_id)
        path = _path(run_id)
        if not path.is_dir():
            from lab.run import cassette  # which stands on this module

            if (recorded := cassette.opened(run_id)) is not None:
                return recorded
            raise _no_run(run_id)
        document = _object(path / "run.json")
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise FolderError(f"run {run_id!r} has schema version {version!r}; this lab reads {SCHEMA_VERSION!r}")
        return cls(path, document)

    # --- state ---

    def set_status(
        self, state: str, *, phase: str | None = None, progress: float | None = None, message: str = ""
    ) -> None:
        """Replace the status and its heartbeat; this process is the owner from now on. `phase` is the state's name
        unless given, `progress` a fraction from 0 to 1 or None for unknown. FolderError when the disk is full, save
        for a final state, which has its room kept."""
        status = Status.now(state, phase=phase or state, progress=progress, message=message)
        self._replace("status.json", status.written(), final=state in FINAL)
        if state in FINAL:
            (self.path / "ballast").unlink(missing_ok=True)

    def status(self) -> Status:
        """What the owner last wrote, or "interrupted" when the owner is gone (see Status.seen)."""
        return Status.read(_object(self.path / "status.json"), self.path).seen()

    # --- streams ---

    def append(self, name: str, rows: pa.Table) -> None:
        """Add rows to "telemetry" or "server"; readable when it returns. FolderError when the disk is full."""
        with self._lock:
            if name not in self._writers:
                file, schema = STREAMS[name]
                self._writers[name] = StreamWriter(self.path / file, schema)
            self._writers[name].write(rows)

    def read(self, name: str) -> pa.Table:
        """Every row so far of "requests", "telemetry" or "server"; no rows when nothing was written yet."""
        return self.tail(name).new()

    def tail(self, name: str) -> Tail:
        """A reader whose `new()` gives all rows the first time and then only those that were added."""
        file, schema = STREAMS[name]
        return Tail(self.path / file, schema)

    def close(self) -> None:
        """Close the streams. Nothing is lost without it."""
        with self._lock:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    # --- events, summary, log ---

    def event(self, kind: str, **fields: Any) -> None:
        """Write down that something happened, at `t_ns` (perf_counter_ns), which is now unless given."""
        line = json.dumps({"kind": kind, "t_ns": time.perf_counter_ns(), **fields}, allow_nan=False) + "\n"
        try:
            _append(self.path / "events.jsonl", line)
        except OSError as error:
            raise FolderError(f"{self.path / 'events.jsonl'}: cannot be written: {reason(error)}") from error

    def events(self) -> list[dict[str, Any]]:
        """All events, in the order they were written. A torn last line is not there yet."""
        try:
            text = (self.path / "events.jsonl").read_text()
        except FileNotFoundError:
            return []
        try:
            events = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        except ValueError as error:
            raise FolderError(f"{self.path / 'events.jsonl'}: damaged: {error}") from None
        for event in events:
            if not (
                isinstance(event, dict) and isinstance(event.get("kind"), str) and isinstance(event.get("t_ns"), int)
            ):
                raise FolderError(f"{self.path / 'events.jsonl'}: damaged: {event!r} is no event")
        return events

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json. A full disk gives it the room that was kept for it."""
        self._replace("summary.json", summary, final=True)

    @property
    def summary(self) -> dict[str, Any] | None:
        """What `write_summary` last wrote; None when nothing was."""
        return _object(self.path / "summary.json") if (self.path / "summary.json").exists() else None

    def log(self, line: str) -> None:
        """Add a line for people, with the time. The older half is dropped at LOG_LIMIT_BYTES. Words are no result:
        a line that the disk refuses is lost without an error."""
        path = self.path / "log.txt"
        with suppress(OSError), self._lock:
            _append(path, f"{_utc_now()} {line.rstrip()}\n")
            if path.stat().st_size > LOG_LIMIT_BYTES:
                kept = path.read_bytes()[-LOG_LIMIT_BYTES // 2 :]
                atomic.write(path, kept[kept.find(b"\n") + 1 :])

    def _replace(self, name: str, value: dict[str, Any], *, final: bool = False) -> None:
        data = json.dumps(value, indent=1, allow_nan=False).encode()
        path = self.path / name
        try:
            with self._lock:
                try:
                    atomic.write(path, data)
                except OSError as error:
                    if not final or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    (self.path / "ballast").unlink(missing_ok=True)
                    atomic.write(path, data)
        except OSError as error:
            raise FolderError(f"{path}: cannot be written: {reason(error)}; {remedy(error)} and run again") from error


@dataclass(frozen=True)
class RunInfo:
    """One line of the list of runs. A folder that cannot be read has the state "damaged", an empty `document` and
    the reason in `message`."""

    run_id: str
    state: str
    created_utc: str
    message: str = ""
    document: dict[str, Any] = field(default_factory=dict, repr=False)


def runs() -> list[RunInfo]:
    """Every run of this LAB_HOME, newest first."""
    folder = home() / "runs"
    if not folder.is_dir():
        return []
    found = [_info(path) for path in folder.iterdir() if RUN_ID.fullmatch(path.name)]
    return sorted(found, key=lambda info: (info.created_utc, info.run_id), reverse=True)


def delete(run_id: str) -> None:
    """Remove a run, damaged or not. FolderError when there is none, or while it goes on."""
    path = _path(run_id)
    if not path.is_dir():
        raise FolderError(f"there is no run {run_id!r}; `python -m lab runs` lists what there is")
    state = _info(path).state
    if state not in (*FINAL, "interrupted", "damaged"):
        raise FolderError(f"run {run_id!r} is {state}; stop it before deleting it")
    try:
        hidden = path.rename(path.parent / f".deleted-{run_id}-{secrets.token_hex(4)}")  # gone for readers at once
        shutil.rmtree(hidden)
    except OSError as error:
        raise FolderError(f"run {run_id!r} cannot be deleted: {error.strerror}") from error


def _info(path: Path) -> RunInfo:
    try:
        run = RunFolder.open(path.name)
        status = run.status()
    except FolderError as error:
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
        return RunInfo(path.name, "damaged", changed, str(error))
    return RunInfo(path.name, status.state, str(run.document.get("created_utc", "")), status.message, run.document)


def _no_run(run_id: str) -> FolderError:
    """Why nothing is opened by this word: it names a recording, is no id, or no such run is kept."""
    from lab.run import cassette

    if (recording := cassette.shipped().get(run_id)) is not None:
        return FolderError(
            f"there is no run {run_id!r}, which is the name of a recording; allowed: its run id, {recording.run}, or "
            f"`python -m lab cassette play {run_id}`"
        )
    allowed = "" if RUN_ID.fullmatch(run_id) else ": allowed are 8 to 60 lower-case letters, digits and dashes"
    if allowed and not SHORT.fullmatch(run_id):
        return FolderError(f"run id {run_id!r}{allowed}")
    return FolderError(f"there is no run {run_id!r}{allowed}; `python -m lab runs` lists what there is")


def _path(run_id: str) -> Path:
    if not RUN_ID.fullmatch(run_id):  # a dot or a slash could lead out of the folder
        raise FolderError(f"run id {run_id!r}: allowed are 8 to 60 lower-case letters, digits and dashes")
    return home() / "runs" / run_id


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise FolderError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FolderError(f"{path}: damaged: {error}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{path}: damaged: holds {type(value).__name__}, expected an object")
    return value


def _append(path: Path, line: str) -> None:
    data = line.encode()
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        if file.write(data) != len(data):  # the disk is full: half a line would spoil the next one
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
