"""The records of a run as lines of plain numbers, and back: what a cassette holds of the Arrow streams.

Times are whole microseconds (requests, waits), tenths of a millisecond (chunks of an answer) or milliseconds
(counters), each as the step from the one before; a column whose values are all equal is written once. So 10,000
requests are about 150 KB of text that a person can read, and nothing can grow beyond its own length.

Pure: tables in, plain values out. Rounding is all that is lost here; what is left out is cassette_record.py's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.records import OUTCOMES, REQUESTS, SERVER, TELEMETRY, WAITS

REQUEST_NS, CHUNK_NS, SCRAPE_NS = 1_000, 100_000, 1_000_000
OWNER = {"server": "model", "telemetry": "subject"}
UNITS = (("_ns", 1_000.0), ("_bytes", 4_096.0))
FINE = 1e-4
"""What a reading is rounded to that is neither a time, a size nor a count: a fraction, a watt."""
MOST_NS = 1 << 62
MOST_ROWS = 300_000
MOST_LETTERS = 300
"""A line may say "all equal", so what it stands for is bounded apart from its length."""


# --- what the run was and found ---------------------------------------------------------------------------------------

MOMENTS = (
    "t_ns",
    "start_ns",
    "measured_from_ns",
    "begin_ns",
    "end_ns",
    "asked_ns",
    "done_ns",
    "first_token_ns",
    "answered_ns",
)
"""Names, in events and in what they hold, of stamps on the run's clock; all else that ends in _ns is a duration."""
SHARED = ("model", "workload")
"""Fields of events that hold the same large value again and again."""


def events(found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each event, and before it one for each model and workload that was not named yet."""
    known: list[Any] = []
    for event in found:
        written = dict(event)
        for name in SHARED:
            value = event.get(name)
            if isinstance(value, Mapping):
                if value not in known:
                    known.append(value)
                    yield {"value": value}
                written[name] = known.index(value)
        yield {"event": written}


def read_events(found: Sequence[dict[str, Any]], values: Sequence[Any]) -> list[dict[str, Any]]:
    def value(name: str, event: dict[str, Any]) -> Any:
        held = event[name]
        return values[held] if name in SHARED and type(held) is int else held

    return [{name: value(name, event) for name in event} for event in found]


def moved(value: Any, shift_ns: int) -> Any:
    """An event, or what one holds, with all its MOMENTS later by `shift_ns`."""
    if isinstance(value, Mapping):
        return {
            name: inner + shift_ns if name in MOMENTS and isinstance(inner, int) else moved(inner, shift_ns)
            for name, inner in value.items()
        }
    return [moved(inner, shift_ns) for inner in value] if isinstance(value, list | tuple) else value


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """A run's document with the figures of its cells by field instead of by cell, each note's text once; what is None
    in every cell is left out."""
    cells = document["cells"]
    summaries = [cell["summary"] for cell in cells]
    names = dict.fromkeys(name for s in summaries for name in s if name != "notes")
    columns = {name: [s.get(name) for s in summaries] for name in names}
    texts: list[str] = []
    for s in summaries:
        texts += [text for text in dict.fromkeys(s["notes"].values()) if text not in texts]
    noted = dict.fromkeys(name for s in summaries for name in s["notes"])
    notes = {name: [texts.index(s["notes"][name]) if name in s["notes"] else None for s in summaries] for name in noted}
    return {
        **document,
        "cells": [{name: value for name, value in cell.items() if name != "summary"} for cell in cells],
        "figures": {name: _written(column) for name, column in columns.items() if any(v is not None for v in column)},
        "notes": {name: _written(column) for name, column in notes.items()},
        "texts": texts,
    }


def read_summary(line: Mapping[str, Any]) -> dict[str, Any]:
    """The document back; a figure that is in no cell stays left out."""
    n, texts = len(line["cells"]), line["texts"]
    figures = {name: _column(column, n) for name, column in line["figures"].items()}
    notes = {name: _column(column, n) for name, column in line["notes"].items()}
    cells = [
        {
            **cell,
            "summary": {
                **{name: column[k] for name, column in figures.items()},
                "notes": {name: texts[column[k]] for name, column in notes.items() if column[k] is not None},
            },
        }
        for k, cell in enumerate(line["cells"])
    ]
    return {**{k: v for k, v in line.items() if k not in ("figures", "notes", "texts")}, "cells": cells}


# --- requests -------------------------------------------------------------------------------------------------------


def requests(table: pa.Table, block: int, origin_ns: int) -> dict[str, Any]:
    """One block's rows of a table with the REQUESTS schema, by scheduled arrival."""
    rows = table.filter(pc.equal(table["block"], block)).sort_by("due_ns")
    due = _quantized(rows["due_ns"].to_pylist(), origin_ns, REQUEST_NS)
    done = rows["done_ns"].to_pylist()
    chunks = [_gaps(row, d) for row, d in _pairs(rows, "chunk_ns", "due_ns")]
    return {
        "block": block,
        "first": rows["request"][0].as_py() if rows.num_rows else 0,
        "request": _written(_steps(rows["request"].to_pylist())[1:]),
        "due": _steps(due),
        "lag": _written([None if s is None else round((s - d) / 1e3) for s, d in _pairs(rows, "sent_ns", "due_ns")]),
        "took": [round((t - d) / 1e3) for t, d in zip(done, rows["due_ns"].to_pylist(), strict=True)],
        "outcome": _written(rows["outcome"].to_pylist()),
        "detail": _written(rows["detail"].to_pylist()),
        "prompt_tokens": _written(rows["prompt_tokens"].to_pylist()),
        "output_tokens": _written(rows["output_tokens"].to_pylist()),
        "reasoning_chunks": _written(rows["reasoning_chunks"].to_pylist()),
        # Value by value also where there is but one: it is read so, that no line makes more of itself than it is long.
        "chunk": chunks if any(gaps is not None for gaps in chunks) else {"all": None},
        "chunk_tokens": _written([_alike(row) for row in rows["chunk_tokens"].to_pylist()]),
    }


def _gaps(chunks: list[int] | None, due_ns: int) -> list[int] | None:
    return None if chunks is None else _steps(_quantized(chunks, due_ns, CHUNK_NS))


def _alike(tokens: list[int] | None) -> Any:
    return tokens[0] if tokens and len(set(tokens)) == 1 else tokens


def _pairs(rows: pa.Table, *names: str) -> Any:
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _requests_table(lines: Sequence[dict[str, Any]]) -> pa.Table:
    parts = []
    for line in lines:
        n = len(line["due"])
        due = [t * REQUEST_NS for t in accumulate(_each(line["due"]))]
        columns: dict[str, Any] = {"block": [int(line["block"])] * n, "due_ns": due}
        columns["request"] = list(accumulate([int(line["first"]), *_column(line["request"], n - 1)])) if n else []
        lags = _column(line["lag"], n)
        columns["sent_ns"] = [None if lag is None else d + lag * 1_000 for lag, d in zip(lags, due, strict=True)]
        columns["done_ns"] = [d + took * 1_000 for took, d in zip(_column(line["took"], n), due, strict=True)]
        columns["outcome"] = _column(line["outcome"], n)
        if any(not 0 <= outcome < len(OUTCOMES) for outcome in columns["outcome"]):
            raise ValueError(f"an outcome that is none of 0 to {len(OUTCOMES) - 1}")
        columns["detail"] = _short(_column(line["detail"], n))
        for name in ("prompt_tokens", "output_tokens", "reasoning_chunks"):
            columns[name] = _column(line[name], n)
        gaps = [None] * n if line["chunk"] == {"all": None} else _each(line["chunk"])
        columns["chunk_ns"] = [
            None if g is None else [d + t * CHUNK_NS for t in accumulate(g)] for g, d in zip(gaps, due, strict=True)
        ]
        columns["chunk_tokens"] = [
            t if t is None or isinstance(t, list) else [t] * len(g or ())
            for t, g in zip(_column(line["chunk_tokens"], n), gaps, strict=True)
        ]
        for t, g in zip(columns["chunk_tokens"], gaps, strict=True):
            if t is not None and len(t) != len(g or ()):
                raise ValueError("chunks without their tokens")
        parts.append(_table(columns, REQUESTS))
    return _sound(pa.concat_tables(parts).sort_by("done_ns"), "due_ns", "done_ns")


# --- counters and readings ------------------------------------------------------------------------------------------


def series(table: pa.Table, name: str, owner: str, origin_ns: int) -> dict[str, Any]:
    """The rows of one owner (a model of "server", a subject of "telemetry"): {field: its readings}, all at the stamps
    of the owner's readings, None where a field has none."""
    rows = table.filter(pc.equal(table[OWNER[name]], owner)).sort_by("t_ns")
    stamps = sorted(set(rows["t_ns"].to_pylist()))
    place = {t_ns: k for k, t_ns in enumerate(stamps)}
    read: dict[str, list[Any]] = {}
    missing: dict[str, str] = {}
    for t_ns, field, value, reason in _pairs(rows, "t_ns", "field", "value", "reason"):
        if value is None:
            missing.setdefault(field, reason or "not measured")
        else:
            read.setdefault(field, [None] * len(stamps))[place[t_ns]] = value
    return {
        "of": owner,
        "t": _steps(_quantized(stamps, origin_ns, SCRAPE_NS)),
        "fields": {field: _reading(field, values) for field, values in read.items()},
        "missing": {field: reason for field, reason in missing.items() if field not in read},
    }


def _reading(field: str, values: list[float | None]) -> dict[str, Any]:
    known = [v for v in values if v is not None]
    counted = all(float(v).is_integer() for v in known)
    unit = next((unit for ending, unit in UNITS if field.endswith(ending)), 1.0 if counted else FINE)
    whole = [None if v is None else round(v / unit) for v in values]
    return {"unit": unit, "v": _written(_steps_of_known(whole))}


def _series_table(name: str, lines: Sequence[dict[str, Any]]) -> pa.Table:
    schema = {"server": SERVER, "telemetry": TELEMETRY}[name]
    columns: dict[str, list[Any]] = {column: [] for column in schema.names}

    def add(*row: Any) -> None:
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)

    for line in lines:
        stamps = [t * SCRAPE_NS for t in accumulate(_each(line["t"]))]
        of, missing = _short([line["of"]])[0], line["missing"]
        for field, reading in line["fields"].items():
            at = 0
            for t_ns, step in zip(stamps, _column(reading["v"], len(stamps)), strict=True):
                if step is not None:
                    at += step
                    add(t_ns, of, field, float(at * reading["unit"]), None)
        for field, reason in zip(_short(list(missing)), _short(list(missing.values())), strict=True):
            add(stamps[0] if stamps else 0, of, field, None, reason)
    return _sound(_table(columns, schema).sort_by("t_ns"), "t_ns")


# --- what requests of a fleet waited for ----------------------------------------------------------------------------


def waits(table: pa.Table, origin_ns: int) -> dict[str, Any]:
    """All rows of a table with the WAITS schema."""
    rows = table.sort_by("t_ns")
    models = sorted(set(rows["model"].to_pylist()))
    return {
        "models": models,
        "t": _steps(_quantized(rows["t_ns"].to_pylist(), origin_ns, REQUEST_NS)),
        "model": _written([models.index(model) for model in rows["model"].to_pylist()]),
        "request": _written(rows["request"].to_pylist()),
        "waited": _written([None if w is None else round(w / 1e3) for w in rows["waited_ns"].to_pylist()]),
        "refused": _written(rows["refused"].to_pylist()),
    }


def _waits_table(lines: Sequence[dict[str, Any]]) -> pa.Table:
    parts = []
    for line in lines:
        n = len(line["t"])
        models = _short(line["models"])
        columns = {
            "t_ns": [t * REQUEST_NS for t in accumulate(_each(line["t"]))],
            "model": [models[k] for k in _column(line["model"], n)],
            "request": _column(line["request"], n),
            "waited_ns": [None if w is None else w * 1_000 for w in _column(line["waited"], n)],
            "refused": _short(_column(line["refused"], n)),
        }
        parts.append(_table(columns, WAITS))
    return _sound(pa.concat_tables(parts), "t_ns")


def tables(lines: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, pa.Table]:
    """{stream: its rows} from {stream: its lines}, without those that have none. ValueError, or its like, for what
    does not fit, before it takes more memory than a cassette may."""
    rows = sum(len(line["due"]) for line in lines["requests"]) + sum(len(line["t"]) for line in lines["waits"])
    rows += sum(len(line["t"]) * len(line["fields"]) for name in OWNER for line in lines[name])
    if rows > MOST_ROWS:
        raise ValueError(f"{rows:,} rows; allowed: up to {MOST_ROWS:,}")
    found = {name: _series_table(name, lines[name]) for name in OWNER if lines[name]}
    if lines["requests"]:
        found["requests"] = _requests_table(lines["requests"])
    if lines["waits"]:
        found["waits"] = _waits_table(lines["waits"])
    return found


# --- columns ----------------------------------------------------------------------------------------------------------


def _written(values: list[Any]) -> Any:
    """The values, or {"all": value} where they are equal."""
    first = values[0] if values else None
    return {"all": first} if all(value == first for value in values) else values


def _column(written: Any, n: int) -> list[Any]:
    values = [written["all"]] * n if isinstance(written, dict) else written
    if not isinstance(values, list) or len(values) != n:
        raise ValueError(f"a column that has not its {n} values")
    return values


def _each(written: Any) -> list[Any]:
    """A column that is written value by value, so that it is no longer than its line."""
    if not isinstance(written, list):
        raise ValueError("a column that is not written value by value")
    return written


def _short(texts: list[Any]) -> list[Any]:
    if any(text is not None and not (isinstance(text, str) and len(text) <= MOST_LETTERS) for text in texts):
        raise ValueError(f"a text that is none, or has more than {MOST_LETTERS} letters")
    return texts


def _quantized(stamps: Sequence[int], origin_ns: int, unit_ns: int) -> list[int]:
    return [round((t - origin_ns) / unit_ns) for t in stamps]


def _steps(values: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip([0, *values], values, strict=False)]


def _steps_of_known(values: Sequence[int | None]) -> list[int | None]:
    at, steps = 0, []
    for value in values:
        steps.append(None if value is None else value - at)
        at = at if value is None else value
    return steps


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def _sound(rows: pa.Table, *stamps: str) -> pa.Table:
    for name in stamps:
        if rows.num_rows and not -MOST_NS < pc.min(rows[name]).as_py() <= pc.max(rows[name]).as_py() < MOST_NS:
            raise ValueError(f"{name} is no time")
    return rows
