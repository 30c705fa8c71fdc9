"""A cassette played with its own timing: a run folder that grows as the recorded one did.

A process of its own, like a run: closing the browser changes nothing about it, Stop ends it, and every page follows it
as it follows a run, only that the document says `recorded`. It holds the measuring lock, since drawing it would disturb
a measurement. It asks no server and measures nothing: its figures are the recording's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab import stopping
from lab.errors import InputError
from lab.run import cassette, cassette_lines
from lab.run.cassette import Cassette
from lab.run.control import Inbox
from lab.run.folder import STREAMS, RunFolder
from lab.run.lock import MeasureLock
from lab.stream import StreamWriter

TICK_S = 0.25
BEFORE_NS = 500_000_000
"""What came before the first block (starting a server, evaluating a format) is not waited for again, but for this."""
STAMP = {"requests": "done_ns", "server": "t_ns", "telemetry": "t_ns", "waits": "t_ns"}
MOVED = ("due_ns", "sent_ns", "done_ns", "t_ns")


def play(
    path: Path,
    run_id: str,
    *,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> RunFolder:
    """Play the cassette in a file into a new run `run_id`; returns when it is over, or `stop` or a page asked for its
    end. InputError for one whose records were thinned: it would show a load that never was."""
    recorded = cassette.read(path)
    allowed = f"allowed: {', '.join(whole()) or 'none of the shipped ones'}"
    if not recorded.manifest.whole:
        raise InputError(
            f"cassette {recorded.name!r}: {' '.join(recorded.manifest.thinned[1:])} Played, it would show a load that "
            f"never was; {allowed}"
        )
    if not recorded.manifest.plays:
        raise InputError(f"cassette {recorded.name!r}: it holds no requests, so there is nothing to watch; {allowed}")
    folder = RunFolder.create(run_id, {**_as_new(recorded.document), "run": run_id})
    state, message = "failed", "the replay ended without saying why"
    inbox = Inbox(folder.path)

    def check() -> None:
        if stop() or any("stop" in change for change in inbox.new()):
            raise stopping.Stopped

    def wait(place: int, holder: str) -> None:
        check()
        folder.set_status("queued", phase=f"place {place} behind {holder}")

    try:
        with MeasureLock(run_id) as lock:
            lock.acquire(wait)
            _play(recorded, folder, check, clock)
        state, message = "done", ""
    except stopping.Stopped:
        state, message = "cancelled", "the replay was stopped by the user"
    finally:
        folder.write_summary({**recorded.summary, "run": run_id, "state": state})
        folder.set_status(state, progress=1.0 if state == "done" else None, message=message)
        folder.close()
    return folder


def whole() -> list[str]:
    """The lab's own recordings that can be played."""
    return [name for name, manifest in cassette.shipped().items() if manifest.plays]


def _as_new(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("run", "created_utc")}


def _play(recorded: Cassette, folder: RunFolder, check: Callable[[], None], clock: Callable[[], int]) -> None:
    """What lies before the first block is written at once, the rest when its time comes."""
    starts = [event["start_ns"] for event in recorded.events if event["kind"] == "block_start"]
    shift_ns = clock() - (min(starts, default=0) - BEFORE_NS)
    moved = (cassette_lines.moved(event, shift_ns) for event in recorded.events)
    events = sorted(moved, key=lambda event: event["t_ns"])
    tables = {name: _shifted(rows, shift_ns).sort_by(STAMP[name]) for name, rows in recorded.tables.items()}
    stamps = {name: rows[STAMP[name]].to_numpy() for name, rows in tables.items()}
    written = dict.fromkeys(tables, 0)
    last_ns = max([e["t_ns"] for e in events] + [int(t[-1]) for t in stamps.values() if len(t)], default=clock())
    first_ns, sent, block = clock(), 0, 0
    with StreamWriter(folder.path / STREAMS["requests"][0].replace("*", "0"), STREAMS["requests"][1]) as requests:
        while True:
            now_ns = clock()
            while sent < len(events) and events[sent]["t_ns"] <= now_ns:
                event = events[sent]
                folder.event(**event)
                block += event["kind"] == "block_start"
                sent += 1
            for name, rows in tables.items():
                until = int(np.searchsorted(stamps[name], now_ns, side="right"))
                fresh = rows.slice(written[name], until - written[name])
                written[name] = until
                if fresh.num_rows:
                    requests.write(fresh) if name == "requests" else folder.append(name, fresh)
            folder.set_status(
                "running",
                phase=f"replay, block {block} of {len(starts)}",
                progress=min(1.0, (now_ns - first_ns) / max(1, last_ns - first_ns)),
            )
            check()
            if now_ns > last_ns:
                return
            time.sleep(TICK_S)


def _shifted(rows: pa.Table, shift_ns: int) -> pa.Table:
    for place, field in enumerate(rows.schema):
        if field.name in MOVED:
            rows = rows.set_column(place, field, pc.add(rows[field.name], shift_ns))
        elif field.name == "chunk_ns":
            rows = rows.set_column(place, field, _chunks_shifted(rows[field.name], shift_ns))
    return rows


def _chunks_shifted(column: pa.ChunkedArray, shift_ns: int) -> pa.Array:
    chunks = column.combine_chunks()
    moved = [None if row is None else [t + shift_ns for t in row] for row in chunks.to_pylist()]
    return pa.array(moved, chunks.type)
