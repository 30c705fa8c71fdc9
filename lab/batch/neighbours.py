"""The nearest neighbours of every row of vectors: the `top` highest cosine similarities, exactly, among all other rows.

    lab batch      --model embedder --in items.jsonl --out vectors.parquet
    lab neighbours --in vectors.parquet --out similar.jsonl --top 10

The vectors, scaled to length one, lie in a file beside the parts and are mapped, not read: memory stays small however
many there are. Rows are taken in blocks and compared with all others block by block. Similarity and row become one
number that is never twice the same, so that which rows are the nearest is certain also where similarities are equal:
the earlier row goes first. A part is a block of rows; a job that is killed goes on behind its last whole one, and its
output has the same bytes. Exact search is of the order of rows²: right for a nightly job of some 100,000 items.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.batch import parts, table
from lab.batch.job import Progress, Report, Result
from lab.errors import InputError, RunError

COLUMN = "answer"
"""Where `lab batch` writes a row's vector."""
QUERIES, CANDIDATES = 1024, 4096
"""Rows of a block, and rows that it is compared with at a time. Always the same: a product's last bits may depend on
its shape."""
LARGEST_TOP = 1000
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("neighbour_rows", pa.list_(pa.int64())),
        pa.field("neighbour_ids", pa.list_(pa.string())),
        pa.field("similarities", pa.list_(pa.float32())),
    ]
)
NOBODY = np.iinfo(np.int64).min
ROW_BITS = 32


@dataclass(frozen=True)
class Job:
    source: Path
    out: Path
    top: int = 10
    column: str = COLUMN
    id_column: str | None = None
    overwrite: bool = False


@dataclass
class Vectors:
    """`scaled` [rows, width] float32 of length one, mapped; a row of zeros has an error in its place. `ids` as the
    file has them."""

    scaled: np.ndarray
    ids: pa.Array
    errors: dict[int, str]


def run(job: Job, report: Report) -> Result:
    """InputError for what cannot be compared, RunError for a job that could not go on; parts that are whole stay."""
    if not 1 <= job.top <= LARGEST_TOP:
        raise InputError(f"--top {job.top}; allowed: 1 to {LARGEST_TOP}")
    parts.check(job.source, job.out)
    version = table.version(job.source)
    digest, _ = table.fingerprint(job.source)
    kept = parts.Parts(job.out, identity(job, digest), SCHEMA)
    began = time.monotonic()
    with kept.held(job.overwrite) as done:
        if done:
            told = json.loads(kept.told.read_text())
            return Result(told["rows"], told["errors"], 0, 0.0, was_done=True)
        vectors = read(job, kept.scratch("vectors.f32"))
        table.check_same(job.source, version)
        before = kept.rows_done()
        rows = len(vectors.ids)
        for first in range(before, rows, QUERIES):
            _report(report, first, rows, first - before, began)
            kept.add(_part(vectors, first, min(first + QUERIES, rows), job.top))
        told = {"finished": datetime.now(UTC).isoformat(timespec="seconds"), "source": job.source.name}
        rows, failed = kept.assemble(told)
    return Result(rows, failed, rows - before, time.monotonic() - began)


def identity(job: Job, digest: str) -> dict[str, Any]:
    """What decides the bytes of OUT."""
    return {
        "input": digest,
        "column": job.column,
        "id_column": job.id_column,
        "neighbours": job.top,
        "format": table.ending(job.out),
        "format_version": 1,
    }


def _report(report: Report, done: int, rows: int, own: int, began: float) -> None:
    elapsed = time.monotonic() - began
    report(Progress(done, rows, own / elapsed if own and elapsed > 0 else None))


# --- vectors ------------------------------------------------------------------------------------------------------


def read(job: Job, scratch: Path) -> Vectors:
    """The vectors of the input, written to `scratch` and mapped. The first row with numbers says how many there are.
    InputError when no row has a vector: then it is the column that is wrong."""
    ids: list[pa.Array] = []
    errors: dict[int, str] = {}
    width = rows = 0
    try:
        with scratch.open("wb") as file:
            for values, own_ids, own_errors in _blocks(job):
                width = width or next((len(value) for value in values if value is not None), 0)
                block = np.zeros((len(values), width), np.float32)
                for i, value in enumerate(values):
                    why = own_errors[i] or _placed(value, block[i])
                    if why:
                        errors[rows + i] = why
                block.tofile(file)
                ids.append(pa.array(own_ids, pa.string()))
                rows += len(values)
    except OSError as error:
        raise RunError(f"{scratch}: {error.strerror}; the same command begins again") from None
    if rows and not width:
        raise InputError(
            f"{job.source}: no row has a vector in the column {job.column!r} (the first: {errors[0]}); allowed: the "
            "column with lists of numbers"
        )
    nothing = np.zeros((rows, 0), np.float32)
    scaled = np.memmap(scratch, np.float32, "r", shape=(rows, width)) if width else nothing
    return Vectors(scaled, pa.concat_arrays(ids) if ids else pa.array([], pa.string()), errors)


def _placed(value: Any, place: np.ndarray) -> str:
    """Puts `value`, scaled to length one, into `place`; why it can't be put, "" when it was."""
    if value is None:
        return "no vector"
    if len(value) != len(place):
        return f"{len(value)} numbers; allowed: {len(place)}, as in the first row"
    try:
        vector = np.asarray(value, np.float64)
    except OverflowError:  # a whole number of hundreds of digits
        vector = np.array([np.inf])
    with np.errstate(over="ignore", invalid="ignore"):
        length = float(np.sqrt(vector @ vector))
    if not np.isfinite(length) or length == 0:
        return "a vector without a direction: its length is 0 or not finite"
    place[:] = vector / length
    return ""


Block = tuple[list[Any], list[str | None], list[str]]


def _blocks(job: Job) -> Iterator[Block]:
    """(vectors, ids, errors) of some rows at a time; a vector is an array or a list of numbers, None with an error."""
    if table.ending(job.source) == ".parquet" and _holds_lists(job):
        yield from _of_parquet(job)
        return
    values: list[Any] = []
    ids: list[str | None] = []
    errors: list[str] = []
    for row in table.rows(job.source, job.column, job.id_column):
        value, why = _numbers(row.value)
        values.append(value)
        ids.append(row.id)
        errors.append(row.error or why)
        if len(values) == CANDIDATES:
            yield values, ids, errors
            values, ids, errors = [], [], []
    if values:
        yield values, ids, errors


def _holds_lists(job: Job) -> bool:
    try:
        schema = pq.ParquetFile(job.source).schema_arrow
    except pa.ArrowException:
        return False
    found = schema.field(job.column).type if job.column in schema.names else None
    return found is not None and pa.types.is_list(found) and pa.types.is_floating(found.value_type)


def _of_parquet(job: Job) -> Iterator[Block]:
    """Vectors as arrays, without a Python number in between."""
    file = pq.ParquetFile(job.source)
    id_column = job.id_column or ("id" if "id" in file.schema_arrow.names else None)
    if id_column is not None and id_column not in file.schema_arrow.names:
        raise InputError(f"{job.source}: no column {id_column!r}; it has {', '.join(file.schema_arrow.names)}")
    columns = [job.column] if id_column is None else [job.column, id_column]
    for batch in file.iter_batches(CANDIDATES, columns=columns):
        vectors = [None if not one.is_valid else one.values.to_numpy(zero_copy_only=False) for one in batch[job.column]]
        found = [None] * len(batch) if id_column is None else batch[id_column].to_pylist()
        yield vectors, [None if id is None else str(id) for id in found], [""] * len(vectors)


def _numbers(value: Any) -> tuple[list[float] | None, str]:
    """(numbers, ""), or (None, why not); in CSV a vector is written as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value else None
        except ValueError:
            return None, "the vector is no JSON"
    if value is None:
        return None, ""
    if not isinstance(value, list) or any(not isinstance(x, int | float) or isinstance(x, bool) for x in value):
        return None, "the vector is no list of numbers"
    return value, ""


# --- the nearest --------------------------------------------------------------------------------------------------


def _part(vectors: Vectors, first: int, end: int, top: int) -> pa.Table:
    rows, similarities = nearest(vectors.scaled, first, end, top)
    out: dict[str, list[Any]] = {name: [] for name in [*SCHEMA.names, parts.ERROR]}
    for i in range(end - first):
        error = vectors.errors.get(first + i)
        there = rows[i] >= 0
        own = rows[i][there]
        out["row"].append(first + i)
        out["id"].append(vectors.ids[first + i].as_py())
        out["neighbour_rows"].append(None if error else own.tolist())
        out["neighbour_ids"].append(None if error else [vectors.ids[int(row)].as_py() for row in own])
        out["similarities"].append(None if error else similarities[i][there])
        out[parts.ERROR].append(error)
    return pa.table(out, schema=SCHEMA.append(pa.field(parts.ERROR, pa.string())))


def nearest(scaled: np.ndarray, first: int, end: int, top: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, similarities), each [end - first, top], of the rows first to end - 1 of `scaled` [n, width], the nearest
    first; row -1 where there are no more. Rows of zeros are nobody's neighbours and have none."""
    queries = np.asarray(scaled[first:end])
    best = np.full((end - first, top), NOBODY)
    own = np.arange(first, end)
    for start in range(0, len(scaled), CANDIDATES):
        block = np.asarray(scaled[start : start + CANDIDATES])
        keys = _keys(queries @ block.T, start)
        keys[:, ~block.any(axis=1)] = NOBODY
        here = (own >= start) & (own < start + len(block))
        keys[np.flatnonzero(here), own[here] - start] = NOBODY
        found = np.concatenate([best, keys], axis=1)
        best = np.partition(found, found.shape[1] - top, axis=1)[:, -top:]
    best[~queries.any(axis=1)] = NOBODY
    best = np.sort(best, axis=1)[:, ::-1]
    return _rows(best), _similarities(best)


def _keys(similarities: np.ndarray, start: int) -> np.ndarray:
    """One whole number a pair, which orders as the similarity does and, where that is equal, puts the earlier row
    first. The bits of a float32 order as its value does, once those of negative ones are turned."""
    bits = (similarities + np.float32(0)).view(np.int32)  # -0 becomes 0
    ordered = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    rows = np.arange(start, start + similarities.shape[1], dtype=np.int64)
    keys: np.ndarray = (ordered.astype(np.int64) << ROW_BITS) + ((1 << ROW_BITS) - 1 - rows)
    return keys


def _rows(keys: np.ndarray) -> np.ndarray:
    rows: np.ndarray = np.where(keys == NOBODY, -1, ((1 << ROW_BITS) - 1) - (keys & ((1 << ROW_BITS) - 1)))
    return rows


def _similarities(keys: np.ndarray) -> np.ndarray:
    ordered = (keys >> ROW_BITS).astype(np.int32)
    values: np.ndarray = (ordered ^ ((ordered >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    return values
