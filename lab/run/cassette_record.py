"""A run of this lab as a cassette: its document as it is, its records as many as fit, and nothing of this machine.

The figures are the run's own, of all its records; what is kept of the records shrinks step by step until the file is
small enough, and each step is told in words. Left out always: paths, addresses, the kernel, process ids, the counters
that no chart reads, and texts of which two examples do.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab import atomic
from lab.errors import FolderError, InputError
from lab.measure.cost import machine
from lab.measure.records import SCHEMA_VERSION
from lab.run import cassette_lines, cassette_traces, results, traced
from lab.run.cassette import FORMAT, Manifest, manifest_line
from lab.run.folder import RunFolder

LIMIT_BYTES = 150_000
PATH = re.compile(r"(?<![\w.:/])(?:~/|/)(?:[\w.@+-]+/)+[\w.@+-]*")
"""An absolute path of more than one part; "tok/s" and "and/or" are none."""
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
COUNTERS = (
    "queue_ns",
    "queue_count",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
    "inference_count",
    "execution_count",
    "success_count",
    "engine_running",
    "engine_waiting",
    "engine_cache_tokens_used",
    "engine_output_tokens",
)
READINGS = ("memory_bytes", "memory_used_bytes", "cpu_fraction")
DIGITS = 6
SLACK = 1.2
EXAMPLES = 2


@dataclass(frozen=True)
class Thinning:
    """`every_s`: seconds between two kept readings of counters and of the machine. `chunks`: one answer in so many
    keeps the arrival of all its chunks, the others only the first's. `requests`: one request in so many is kept."""

    every_s: int
    chunks: int
    requests: int

    def told(self, *, generated: bool, traced: bool) -> Iterator[str]:
        """In words; `generated`: there are answers that came in chunks, `traced`: requests were traced."""
        yield f"Counters and memory every {self.every_s} s, figures to {DIGITS} digits, times to a microsecond."
        if self.requests > 1:
            yield f"Of the cells' requests 1 in {self.requests} is kept, of what else was asked none."
        if traced and self.requests > 1:
            yield "Traces are left out."
        if generated and self.chunks > 1:
            yield f"The arrival of every chunk is kept for 1 answer in {self.chunks}, the first chunk's for all."


LADDER = tuple(
    Thinning(*step)
    for step in (
        (1, 1, 1),
        (2, 1, 1),
        (5, 1, 1),
        (5, 2, 1),
        (5, 4, 1),
        (5, 8, 1),
        (10, 16, 1),
        (10, 32, 1),
        (20, 64, 1),
        (5, 1, 2),
        (5, 1, 3),
        (5, 1, 4),
        (5, 1, 6),
        (5, 1, 8),
        (10, 16, 16),
        (10, 32, 64),
    )
)


def record(run_id: str, limit_bytes: int = LIMIT_BYTES) -> tuple[str, Manifest]:
    """(the cassette, its manifest) of an ended run, as whole as fits into `limit_bytes`. InputError when it cannot
    be read, goes on, was recorded elsewhere, or does not fit."""
    try:
        folder = RunFolder.open(run_id)
    except FolderError as error:
        raise InputError(str(error)) from None
    if folder.document.get("recorded"):
        raise InputError(f"run {run_id!r} is a recording already; allowed: a run of this machine")
    if folder.status().state != "done":
        raise InputError(f"run {run_id!r} is {folder.status().state}; allowed: a run that is done")
    run = _Run.of(folder)
    told = [_text(line) for line in run.told()]
    size = whole = 0
    for thinning in LADDER:
        if thinning.requests == 1 and thinning.chunks > 1 and not run.generated:
            continue  # there are no chunks to thin
        if thinning.requests > 1 and whole / thinning.requests > 2 * SLACK * limit_bytes:
            continue  # far too large, as it can be told without writing it
        lines = [*told, *map(_text, run.records(thinning))]
        body = "\n".join(lines) + "\n"
        manifest = _manifest(run, thinning, len(lines), hashlib.sha256(body.encode()).hexdigest())
        text = f"{manifest_line(manifest)}\n{body}"
        size = len(text.encode())
        whole = max(whole, size - sum(map(len, told)))
        if size <= limit_bytes:
            return text, manifest
    raise InputError(f"run {run_id!r} takes {size:,} bytes, however it is thinned; allowed: {limit_bytes:,}")


def write(path: Path, text: str) -> None:
    try:
        atomic.write(path, text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; allowed: a file that can be written") from None


def scrubbed(value: Any) -> Any:
    """`value` without absolute paths and addresses in any of its texts: of a path its last part is left."""
    if isinstance(value, str):
        return ADDRESS.sub("…", PATH.sub(lambda found: f"…/{found[0].rpartition('/')[2]}", value))
    if isinstance(value, Mapping):
        return {scrubbed(key): scrubbed(inner) for key, inner in value.items()}
    return [scrubbed(inner) for inner in value] if isinstance(value, list | tuple) else value


def _text(line: dict[str, Any]) -> str:
    return json.dumps(scrubbed(line), separators=(",", ":"), ensure_ascii=False)


def _manifest(run: _Run, thinning: Thinning, lines: int, sha256: str) -> Manifest:
    folder, generated = run.folder, run.generated
    document = folder.document
    experiment = document["experiment"]
    return Manifest(
        format=FORMAT,
        schema_version=SCHEMA_VERSION,
        run=folder.run_id,
        experiment=experiment["id"],
        title=experiment.get("title") or experiment["id"].capitalize(),
        model=experiment["model"]["name"],
        created_utc=document["created_utc"],
        commit=_commit(document["created_utc"]) or "unknown",
        machine=machine(document["environment"], experiment["model"].get("device", "cpu")),
        thinned=tuple(thinning.told(generated=generated, traced=bool(traced.blocks(folder)))),
        requests_one_in=thinning.requests,
        chunks_one_in=thinning.chunks if generated else 1,
        lines=lines,
        sha256=sha256,
    )


@dataclass(frozen=True)
class _Run:
    """What is read of a run, once for all steps of the ladder."""

    folder: RunFolder
    events: list[dict[str, Any]]
    streams: dict[str, pa.Table]
    origin_ns: int

    @classmethod
    def of(cls, folder: RunFolder) -> _Run:
        events = folder.events()
        streams = {name: folder.read(name).combine_chunks() for name in ("requests", "server", "telemetry", "waits")}
        starts = [event["t_ns"] for event in events]
        for name, rows in streams.items():
            if rows.num_rows:
                starts.append(pc.min(rows["due_ns" if name == "requests" else "t_ns"]).as_py())
        return cls(folder, events, streams, min(starts, default=0))

    @property
    def generated(self) -> bool:
        """Whether there are answers that came in chunks."""
        chunks = self.streams["requests"]["chunk_ns"]
        return bool(chunks.null_count < len(chunks))

    def told(self) -> Iterator[dict[str, Any]]:
        """What is kept whatever is thinned."""
        yield {"run": _document(self.folder.document)}
        yield {"summary": cassette_lines.summary(_summary(self.folder))}
        yield from cassette_lines.events([_event(event, self.origin_ns) for event in self.events])

    def records(self, thinning: Thinning) -> Iterator[dict[str, Any]]:
        requests = self.streams["requests"]
        if thinning.requests > 1:
            asked = [e["block"] for e in self.events if e["kind"] == "block_start" and e.get("role") != "saturation"]
            requests = requests.filter(pc.is_in(requests["block"], pa.array(asked, pa.int32())))
        requests = _kept(requests, thinning)
        for block in pc.unique(requests["block"]).to_pylist():
            yield {"requests": cassette_lines.requests(requests, block, self.origin_ns)}
        for name, fields in (("server", COUNTERS), ("telemetry", READINGS)):
            rows = self.streams[name]
            rows = rows.filter(pc.is_in(rows["field"], pa.array(fields)))
            for owner in pc.unique(rows[cassette_lines.OWNER[name]]).to_pylist():
                own = rows.filter(pc.equal(rows[cassette_lines.OWNER[name]], owner))
                for kept in _every(own, thinning.every_s):
                    yield {name: cassette_lines.series(kept, name, owner, self.origin_ns)}
        for block in traced.blocks(self.folder) if thinning.requests == 1 else ():  # one alone has no batch-mates
            if (found := traced.read(self.folder, block)) is not None:
                model, read = found
                yield {"traces": cassette_traces.line(read.stamps, block, model, self.origin_ns)}
        if (waits := self.streams["waits"]).num_rows:
            kept = waits.take(np.arange(0, waits.num_rows, thinning.requests))
            yield {"waits": cassette_lines.waits(kept, self.origin_ns)}


def _document(document: Mapping[str, Any]) -> dict[str, Any]:
    environment = {name: value for name, value in document["environment"].items() if name != "kernel"}
    return {**document, "environment": environment, "url": None}


def _summary(folder: RunFolder) -> dict[str, Any]:
    """The document that pages and terminal show, its figures rounded; made anew, so that what an older lab kept is as
    this one has it."""
    kept = results.compute(folder, state="done")
    formats = {label: _few_examples(told) for label, told in (kept.get("formats") or {}).items()}
    environment = {name: value for name, value in kept["environment"].items() if name != "kernel"}
    rounded: dict[str, Any] = _rounded({**kept, "formats": formats, "environment": environment})
    return rounded


def _few_examples(told: Mapping[str, Any]) -> dict[str, Any]:
    quality = told.get("quality")
    if not quality:
        return dict(told)
    return {**told, "quality": {**quality, "answers": quality["answers"][:EXAMPLES]}}


def _event(event: Mapping[str, Any], origin_ns: int) -> dict[str, Any]:
    moved = cassette_lines.moved(event, -origin_ns)
    moved.pop("grpc_url", None)
    if moved["kind"] == "quality" and moved["quality"]:  # its answers are in the summary
        moved["quality"] = {**moved["quality"], "answers": []}
    rounded: dict[str, Any] = _rounded(moved)
    return rounded


def _kept(requests: pa.Table, thinning: Thinning) -> pa.Table:
    if thinning.requests > 1:
        requests = requests.filter(pa.array(requests["request"].to_numpy() % thinning.requests == 0))
    if thinning.chunks == 1 or requests["chunk_ns"].null_count == requests.num_rows:
        return requests
    whole = requests["request"].to_numpy() % thinning.chunks == 0
    for name in ("chunk_ns", "chunk_tokens"):
        column = requests[name].to_pylist()
        cut = [row if keep or row is None else row[:1] for row, keep in zip(column, whole, strict=True)]
        place = requests.schema.get_field_index(name)
        requests = requests.set_column(
            place, requests.schema.field(name), pa.array(cut, requests.schema.field(name).type)
        )
    return requests


def _every(rows: pa.Table, every_s: int) -> Iterator[pa.Table]:
    """Of each field the first reading in each stretch of `every_s`, and the last of all; the fields that are read at
    the same moments together."""
    together: dict[bytes, list[str]] = {}
    for field in pc.unique(rows["field"]).to_pylist():
        stamps = np.sort(rows.filter(pc.equal(rows["field"], field))["t_ns"].to_numpy())
        _, first = np.unique(stamps // (every_s * 1_000_000_000), return_index=True)
        together.setdefault(np.union1d(stamps[first], stamps[-1:]).tobytes(), []).append(field)
    for kept, fields in together.items():
        moments = pa.array(np.frombuffer(kept, dtype=np.int64))
        own = pc.and_(pc.is_in(rows["field"], pa.array(fields)), pc.is_in(rows["t_ns"], moments))
        yield rows.filter(own)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def _commit(created_utc: str) -> str | None:
    """The last commit of this checkout before the run began, short; None where it is none."""
    command = ["git", "rev-list", "-1", "--abbrev-commit", f"--before={created_utc}", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def told(manifest: Manifest, size_bytes: int) -> str:
    """One line about what was recorded."""
    return f"{manifest.run}: {size_bytes:,} bytes. {' '.join(manifest.thinned)}"
