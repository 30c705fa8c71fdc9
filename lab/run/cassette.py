"""Recorded runs: real ones, small and in plain text, so that every page has something to show where nothing has run.

A cassette is one file of JSON lines: a manifest, then run.json, summary.json, the events, and the records by block and
by counter (lab/run/cassette_lines.py). Its figures were made from the run's whole records; the records beside them may
be thinned, and the manifest says how. Unpacked it is a run folder like any other, save that its document has `recorded`
(machine, date, commit, what was thinned), by which whoever shows it says so.

A cassette may come from anybody. It names no file, nothing in it is inflated, and what does not fit is one FolderError.
Knows no page and no clock: lab/run/replay.py plays one with its timing, lab/run/cassette_record.py makes one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from lab.errors import FolderError, InputError, LabError
from lab.home import home, locked
from lab.measure.records import SCHEMA_VERSION
from lab.measure.summary import Summary
from lab.run import cassette_lines, cassette_traces
from lab.run.folder import RUN_ID, STREAMS, RunFolder
from lab.run.status import Status
from lab.spec import Experiment, parse
from lab.stream import StreamWriter

FORMAT = 1
MAX_BYTES = 4 << 20
SHIPPED = Path(__file__).parent / "cassettes"
ENDING = ".jsonl"
WITHOUT_LOAD = ("cold_start",)
"""Experiments whose runs hold no requests, so there is nothing to watch."""
MARK = ".cassette"
"""File in an unpacked folder: the SHA-256 of the cassette it came from. Written last."""


@dataclass(frozen=True)
class Manifest:
    """The first line. `thinned` says in words what of the records was left out; `requests_one_in` and `chunks_one_in`
    are 1 where every request, and every chunk of an answer, was kept; `sha256` is of all lines after this one."""

    format: int
    schema_version: str
    run: str
    experiment: str
    title: str
    model: str
    created_utc: str
    commit: str
    machine: str
    thinned: tuple[str, ...]
    requests_one_in: int
    chunks_one_in: int
    lines: int
    sha256: str

    @property
    def whole(self) -> bool:
        """Whether the records are all there: then it can be watched and compared like a run of one's own."""
        return self.requests_one_in == self.chunks_one_in == 1

    @property
    def plays(self) -> bool:
        """Whether it shows a load when it is played with its timing."""
        return self.whole and self.experiment not in WITHOUT_LOAD

    def recorded(self) -> dict[str, Any]:
        """What the document of an unpacked run says of its origin."""
        names = ("run", "created_utc", "commit", "machine", "thinned", "requests_one_in")
        return {**{name: getattr(self, name) for name in names}, "thinned": list(self.thinned), "whole": self.whole}


@dataclass(frozen=True)
class Cassette:
    """A cassette that was read and fits. Times in `events` and `tables` count in nanoseconds from its first record;
    `traces` holds those of each traced block, as a file of Triton's."""

    name: str
    manifest: Manifest
    document: dict[str, Any]
    summary: dict[str, Any]
    events: list[dict[str, Any]]
    tables: dict[str, pa.Table]
    traces: dict[int, str]


def shipped() -> dict[str, Manifest]:
    """The lab's own recordings by name; only their first lines are read. One that cannot be read is left out."""
    found = {}
    for path in sorted(SHIPPED.glob(f"*{ENDING}")):
        with suppress(FolderError), path.open("rb") as file:
            found[path.stem] = _manifest(path.stem, file.readline(MAX_BYTES))
    return found


def of_experiment(experiment_id: str) -> Manifest | None:
    """The lab's own recording of this experiment; None when there is none."""
    return next((found for found in shipped().values() if found.experiment == experiment_id), None)


def find(name: str) -> Path:
    """The file of "NAME" of the lab's own, or of a path; InputError when there is neither."""
    own = SHIPPED / f"{name}{ENDING}"
    if name in shipped():
        return own
    path = Path(name)
    if not path.is_file():
        raise InputError(f"cassette {name!r}: there is none; allowed: {', '.join(shipped())}, or a file that exists")
    return path


def read(path: Path) -> Cassette:
    """The cassette in a file. FolderError, one line, when it is too large, torn, changed, of a newer kind, or makes no
    sense as a run."""
    name = path.stem
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FolderError(f"cassette {name!r}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        _refuse(name, f"it is larger than {MAX_BYTES >> 20} MiB; allowed: up to that")
    first, _, rest = data.partition(b"\n")
    manifest = _manifest(name, first)
    if rest.count(b"\n") != manifest.lines or hashlib.sha256(rest).hexdigest() != manifest.sha256:
        _refuse(name, "it was cut short or changed: its lines do not fit the checksum of its first; record it again")
    try:
        return _checked(name, manifest, [_json(line) for line in rest.splitlines()])
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError, RecursionError) as error:
        _refuse(name, f"it makes no sense as a run: {_why(error)}")
    except (LabError, pa.ArrowException) as error:
        _refuse(name, f"it makes no sense as a run: {' '.join(str(error).split())[:200]}")


def opened(run_id: str) -> RunFolder | None:
    """The run folder of the lab's own recording with this id, unpacked where it is not yet; None when there is none."""
    for name, manifest in shipped().items():
        if manifest.run == run_id:
            return unpacked(SHIPPED / f"{name}{ENDING}", manifest)
    return None


def unpacked(path: Path, manifest: Manifest) -> RunFolder:
    """The cassette as a run folder on LAB_HOME's shelf, beside the runs and never among them."""
    place = shelf() / manifest.run
    with locked(shelf() / ".lock"):
        mark = place / MARK
        if not (mark.is_file() and mark.read_text() == manifest.sha256):
            _unpack(read(path), place)
    return RunFolder(place, json.loads((place / "run.json").read_bytes()))


def shelf() -> Path:
    return home() / "cassettes"


def _unpack(cassette: Cassette, place: Path) -> None:
    hidden = place.parent / f".new-{place.name}-{secrets.token_hex(4)}"
    hidden.mkdir(parents=True)
    try:
        write = {"run.json": cassette.document, "summary.json": cassette.summary, "status.json": _done(cassette)}
        for file, value in write.items():
            (hidden / file).write_text(json.dumps(value))
        (hidden / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in cassette.events))
        for name, rows in cassette.tables.items():
            pattern, schema = STREAMS[name]
            with StreamWriter(hidden / pattern.replace("*", "0"), schema) as writer:
                writer.write(rows)
        for block, text in cassette.traces.items():
            (hidden / f"traces-{block}").mkdir()
            (hidden / f"traces-{block}" / cassette_traces.FILE).write_text(text)
        (hidden / MARK).write_text(cassette.manifest.sha256)
        shutil.rmtree(place, ignore_errors=True)
        hidden.rename(place)
    except OSError as error:
        raise FolderError(f"cassette {cassette.name!r} cannot be unpacked: {error.strerror}; needs free disk") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _done(cassette: Cassette) -> dict[str, Any]:
    """The status of a run that ended on some machine."""
    utc = cassette.manifest.created_utc
    return Status("done", "done", 1.0, "", 0, None, "recorded", 0, utc).written()


def _manifest(name: str, line: bytes) -> Manifest:
    try:
        found = _json(line)
        if not isinstance(found, dict) or "format" not in found:
            _refuse(name, "its first line is no manifest; allowed: a file that `python -m lab cassette record` wrote")
        if found["format"] != FORMAT:
            _refuse(name, f"format {found['format']!r}; this lab reads {FORMAT}")
        if found.get("schema_version") != SCHEMA_VERSION:
            _refuse(name, f"schema version {found.get('schema_version')!r}; this lab reads {SCHEMA_VERSION!r}")
        manifest = Manifest(**{**found, "thinned": tuple(found["thinned"])})
    except (KeyError, TypeError, ValueError, RecursionError):
        _refuse(name, "its first line is no manifest; allowed: a file that `python -m lab cassette record` wrote")
    kinds = {field.name: {"str": str, "int": int}.get(str(field.type)) for field in fields(Manifest)}
    for field, kind in kinds.items():
        value = getattr(manifest, field)
        if (kind is not None and type(value) is not kind) or (kind is int and value < 1):
            _refuse(name, f"{field} {str(value)[:60]!r} in its manifest; allowed: {kind.__name__ if kind else ''}")
    if not all(isinstance(text, str) for text in manifest.thinned):
        _refuse(name, "thinned in its manifest; allowed: sentences")
    if not RUN_ID.fullmatch(manifest.run):  # it becomes the name of a folder
        _refuse(name, f"run {manifest.run[:60]!r}; allowed are 8 to 60 lower-case letters, digits and dashes")
    return manifest


def _checked(name: str, manifest: Manifest, lines: list[Any]) -> Cassette:
    kinds: dict[str, list[Any]] = {"run": [], "summary": [], "event": [], "value": [], "traces": []}
    rows: dict[str, list[Any]] = {stream: [] for stream in STREAMS}
    for line in lines:
        ((kind, value),) = line.items()
        {**kinds, **rows}[kind].append(value)
    (document,), (summary,) = kinds["run"], map(cassette_lines.read_summary, kinds["summary"])
    events = cassette_lines.read_events(kinds["event"], kinds["value"])
    experiment = parse(Experiment, document["experiment"])
    if document["run"] != manifest.run or experiment.id != manifest.experiment:
        raise InputError("it names another run than its manifest")
    if document["schema_version"] != SCHEMA_VERSION or len(document["cells"]) < 1:
        raise InputError("its run.json is of another schema")
    document["environment"]["cores"]
    cells = len(document["cells"])
    for event in events:
        event["kind"], event["t_ns"] + 0
        if event["kind"] == "block_start":
            parts = event["start_ns"] + event["measured_from_ns"] + event["end_ns"]
            if not 0 <= event["cell"] < cells or parts < 0:
                raise InputError("one of its blocks is of no cell")
    tables = cassette_lines.tables(rows)
    traces = dict(map(cassette_traces.text, kinds["traces"]))
    document["recorded"] = manifest.recorded()
    return Cassette(name, manifest, document, completed(summary), events, tables, traces)


def completed(summary: dict[str, Any]) -> dict[str, Any]:
    """A kept document with the fields that its cells' summaries lack, which an older lab, or a cassette for brevity,
    left out: they are None, as not measured."""
    lacking = dict.fromkeys(Summary.__dataclass_fields__)
    defaults: dict[str, Any] = {"batch_sizes": {}, "item_compute_s": {}, "notes": {}, "problems": []}
    cells = [{**cell, "summary": {**lacking, **defaults, **cell["summary"]}} for cell in summary["cells"]]
    if not {"run", "verdict", "problems", "state", "environment"} <= summary.keys():
        raise InputError("its summary has no verdict")
    return {"ending": "", "answers": None, "formats": {}, "fleet": None, **summary, "cells": cells}


def manifest_line(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest), separators=(",", ":"))


def _json(line: bytes) -> Any:
    return json.loads(line.decode("utf-8"), parse_constant=_no_number)


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, UnicodeDecodeError | json.JSONDecodeError):
        return "a line is not JSON in UTF-8"
    missing = "no " if isinstance(error, KeyError) else ""
    return missing + " ".join(str(error).split())[:120]


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _refuse(name: str, why: str) -> NoReturn:
    raise FolderError(f"cassette {name!r}: {why}") from None
