"""Changes to a run while it runs: a page appends a line, the runner reads it within a tick and applies it.

The file `control.jsonl` in the run folder, and `waivers.jsonl` (lab/run/waivers.py), are all that a page writes there,
line by line. Each change carries an id, so a repeated click is applied once. What may be changed:

    {"stop": true}                                   any run
    {"rate_rps": 200}                                a run of one cell with an open loop
    {"concurrency": 16}                              a run of one cell with a closed loop
    {"batching": null} or {"batching": {…}}          a run of one cell; the model is reloaded under load
    {"kv_cache": false}, {"scheduler": "static"}, {"precision": "fp32"}     likewise
    {"model": {"precision": "int4", "quantizer": "gptq"}}                   several of these that go together

An experiment with several cells takes only `stop`: a change by hand would falsify its comparison.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import FolderError, InputError, reason, remedy
from lab.measure import formats
from lab.run.folder import RunFolder
from lab.spec import ClosedLoop, ModelSpec, Workload, nearest, set_path, set_paths

MODEL_FIELDS = ("batching", "kv_cache", "scheduler", "precision", "model")
FIELDS = ("stop", "rate_rps", "concurrency", *MODEL_FIELDS)


@dataclass(frozen=True)
class Change:
    """One validated change: `model` and `workload` are what is in force once it is applied."""

    id: str
    field: str
    value: Any
    model: ModelSpec
    workload: Workload


def send(run_id: str, change: dict[str, Any]) -> str:
    """Ask the runner of `run_id` for a change; returns the change's id. InputError when the field is unknown."""
    if len(change) != 1:
        raise InputError(f"control change {change!r}: allowed is one of {', '.join(FIELDS)} with its value")
    field = next(iter(change))
    if field not in FIELDS:
        raise InputError(f"control field {field!r}: there is no such field{nearest(field, FIELDS)}")
    change_id = secrets.token_hex(4)
    append(run_id, "control.jsonl", {"id": change_id, **change})
    return change_id


def append(run_id: str, name: str, value: dict[str, Any]) -> None:
    """`value` as one more line of a file in the run's folder. FolderError when it cannot be written."""
    path = RunFolder.open(run_id).path / name
    try:
        # One write of one short line to a file opened for appending does not mix with another page's line.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(value) + "\n").encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FolderError(f"{path}: cannot be written: {reason(error)}; {remedy(error)} and try again") from None


class Inbox:
    """The runner's side: `new()` gives the raw changes that were not seen before, oldest first."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "control.jsonl"
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        changes = []
        for line in whole.splitlines():
            try:
                change = json.loads(line)
            except ValueError:
                continue
            if isinstance(change, dict):
                changes.append(change)
        return changes


def checked(raw: dict[str, Any], model: ModelSpec, workload: Workload, *, cells: int) -> Change:
    """`raw` as a change of what is in force now; InputError with one line when it does not fit this run."""
    change_id = str(raw.get("id", ""))
    field = next((name for name in FIELDS if name in raw), None)
    if field is None:
        raise InputError(f"control change {raw!r}: allowed is one of {', '.join(FIELDS)} with its value")
    value = raw[field]
    if field == "stop":
        return Change(change_id, field, True, model, workload)
    if cells > 1:
        raise InputError(f"{field} can't be changed while an experiment of {cells} cells runs; allowed: stop")
    closed = isinstance(workload.arrival, ClosedLoop)
    if field == "model":
        return Change(change_id, field, value, set_paths(model, _together(value)), workload)
    if field in MODEL_FIELDS:
        return Change(change_id, field, value, set_path(model, field, value), workload)
    if field == "rate_rps" and closed:
        raise InputError("rate_rps can't be set on a closed loop; allowed: concurrency")
    if field == "concurrency" and not closed:
        raise InputError("concurrency can't be set on an open loop; allowed: rate_rps")
    return Change(change_id, field, value, model, set_path(workload, f"arrival.{field}", value))


def _together(value: Any) -> list[tuple[str, Any]]:
    """(field, value) of a change of several."""
    allowed = (*formats.FIELDS, *(field for field in MODEL_FIELDS if field != "model"))
    if not isinstance(value, dict) or not value or any(field not in allowed for field in value):
        raise InputError(f"model {value!r}: allowed is an object of {', '.join(dict.fromkeys(allowed))}")
    return list(value.items())
