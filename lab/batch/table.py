"""Rows in, rows out: JSON lines, CSV and Parquet, by the name's ending, a few at a time however long the file is.

A row that cannot be read is a row with an error, so that every row of the input has its row of the output. Only what
concerns all rows (no such file, no such column, not that format) is refused.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lab.errors import InputError, RunError
from lab.refusal import nearest

LARGEST_ROW = 64 * 2**20
"""Bytes of a line, and of a cell of CSV."""
Version = tuple[int, int, int]
"""Of a file: which one it is, its size, and when it was last written."""
AT_ONCE = 1024
"""Rows of Parquet read together."""
ENDINGS = (".jsonl", ".ndjson", ".csv", ".parquet")


@dataclass(frozen=True)
class Row:
    """`value` is what the model is asked; None with an `error`, which says why it is not. `id` as the file has it."""

    value: Any
    id: str | None = None
    error: str | None = None


def ending(path: Path) -> str:
    """Which format a file is; InputError for none of these."""
    found = path.suffix.lower()
    if found not in ENDINGS:
        raise InputError(f"{path}: a file ending in {found or 'nothing'!r}; allowed: {', '.join(ENDINGS)}")
    return found


def fingerprint(path: Path) -> tuple[str, int | None]:
    """(SHA-256, how many rows it seems to have): Parquet says so; of a text its lines, which are more where some are
    empty or a cell of CSV holds several. None when it does not say."""
    hashed, ends, last = hashlib.sha256(), 0, b""
    with path.open("rb") as file:
        while block := file.read(2**20):
            hashed.update(block)
            ends += block.count(b"\n")
            last = block[-1:]
    digest = hashed.hexdigest()
    if ending(path) == ".parquet":
        with suppress(pa.ArrowException):
            return digest, int(pq.read_metadata(path).num_rows)
        return digest, None
    lines = ends + (last not in (b"", b"\n"))
    return digest, max(0, lines - 1) if ending(path) == ".csv" else lines


def version(path: Path) -> Version:
    """Changes when the file does. InputError when it is gone."""
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_same(path: Path, before: Version) -> None:
    """RunError unless it is as it was: a job is of one input."""
    if version(path) != before:
        raise RunError(f"{path}: was changed while it was read; give it back, or begin anew with --overwrite")


def rows(path: Path, column: str, id_column: str | None) -> Iterator[Row]:
    """The rows of a file. With `id_column` None there are ids where the file has a column "id".

    InputError when the file cannot be read, or has not these columns (JSON lines have them row by row)."""
    kind = ending(path)
    try:
        if path.stat().st_size == 0 and kind != ".parquet":
            return
        if kind == ".parquet":
            yield from _of_parquet(path, column, id_column)
        elif kind == ".csv":
            yield from _of_csv(path, column, id_column)
        else:
            yield from _of_lines(path, column, id_column)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _of_lines(path: Path, column: str, id_column: str | None) -> Iterator[Row]:
    """An empty line is no row."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LARGEST_ROW + 1):
            number += 1
            if len(line) > LARGEST_ROW:
                while line and not line.endswith(b"\n"):
                    line = file.readline(LARGEST_ROW)
                yield Row(None, None, f"line {number}: longer than {LARGEST_ROW >> 20} MiB")
            elif line.strip():
                yield _of_line(line, number, column, id_column)


def _of_line(line: bytes, number: int, column: str, id_column: str | None) -> Row:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        said = str(error).split(":")[0].splitlines()[0] if not isinstance(error, RecursionError) else "nested too deep"
        return Row(None, None, f"line {number}: not JSON: {said}")
    if not isinstance(found, dict):
        return Row(None, None, f"line {number}: {type(found).__name__}; allowed: an object with the field {column!r}")
    id = _id(found.get(id_column or "id"))
    if column not in found:
        return Row(None, id, f"line {number}: no field {column!r}{nearest(column, found)}")
    return Row(found[column], id)


def _of_csv(path: Path, column: str, id_column: str | None) -> Iterator[Row]:
    csv.field_size_limit(LARGEST_ROW)
    # A byte that is no UTF-8 becomes a surrogate, which is one row's error and not the file's.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader)
        except (csv.Error, StopIteration) as error:
            raise InputError(f"{path}: no CSV: {error or 'no header'}") from None
        at, id_at = _places(path, header, column, id_column)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Row(None, None, f"line {reader.line_num}: no CSV: {error}")
                continue
            if not cells:  # an empty line
                continue
            if len(cells) != len(header):
                yield Row(None, None, f"line {reader.line_num}: {len(cells)} cells; allowed: {len(header)}")
                continue
            id = None if id_at is None else _id(cells[id_at])
            if not is_text(cells[at]):
                yield Row(None, id, f"line {reader.line_num}: not UTF-8")
                continue
            yield Row(cells[at], id)


def _of_parquet(path: Path, column: str, id_column: str | None) -> Iterator[Row]:
    try:
        file = pq.ParquetFile(path)
        at, id_at = _places(path, file.schema_arrow.names, column, id_column)
        names = [file.schema_arrow.names[i] for i in (at, id_at) if i is not None]
        for batch in file.iter_batches(AT_ONCE, columns=names):
            ids = [None] * len(batch) if id_at is None else batch.column(names[-1]).to_pylist()
            for value, id in zip(batch.column(column).to_pylist(), ids, strict=True):
                yield Row(value, _id(id))
    except pa.ArrowException as error:
        raise InputError(f"{path}: no Parquet: {str(error).splitlines()[0]}") from None


def _places(path: Path, names: Sequence[str], column: str, id_column: str | None) -> tuple[int, int | None]:
    for name in (column, id_column):
        if name is not None and name not in names:
            raise InputError(f"{path}: no column {name!r}{nearest(name, names)}; it has {', '.join(names)}")
    wanted = id_column or "id"
    return list(names).index(column), list(names).index(wanted) if wanted in names else None


def _id(value: Any) -> str | None:
    """A text as it is; true, a list or an object as JSON has them, a date as ISO 8601 has it."""
    if value is None:
        return None
    found = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, bool | list | dict) else str(value)
    return found if is_text(found) else ascii(found)


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8; half of a surrogate pair can't."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- out ----------------------------------------------------------------------------------------------------------


class Writer(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def writer(path: Path, kind: str, schema: pa.Schema) -> Writer:
    """Writes tables of `schema` to `path` in the format of that ending; the same tables give the same bytes."""
    if kind == ".parquet":
        return _Parquet(path, schema)
    return _Csv(path, schema) if kind == ".csv" else _Lines(path)


class _Parquet:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    """A list is written as JSON."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8", newline="")
        self._plain = csv.writer(self._file, lineterminator="\n")
        self._quoted = csv.writer(self._file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        self._plain.writerow(schema.names)

    def write(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            cells = [json.dumps(cell) if isinstance(cell, list) else cell for cell in row.values()]
            # Python 3.11 leaves a lone \r unquoted, at which a reader would end the row.
            ends = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (self._quoted if ends else self._plain).writerow(cells)

    def close(self) -> None:
        self._file.close()


class _Lines:
    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8")

    def write(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def close(self) -> None:
        with suppress(ValueError):
            self._file.close()
