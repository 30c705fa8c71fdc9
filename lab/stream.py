"""Append-only Arrow IPC streams that stay readable whatever happens to their writer.

A file is one schema message followed by record batch messages, each handed to the kernel whole, so every written row
survives `kill -9`; any Arrow reader opens it (an end-of-stream mark is optional in the format, and is left out so that
a stream can be continued). Readers take whole messages only: the torn last message of a killed writer, or of one that
is writing right now, is left where it is, and `Tail` returns its rows once it is whole.

Does not survive a power cut (nothing is fsynced), knows no dictionary-encoded columns, and gives no order of rows
across several files.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa

from lab.errors import FolderError, reason, remedy

ROWS_PER_MESSAGE = 65_536
"""A table is cut into messages of at most this many rows, so that a reader beside the writer sees progress."""

_STARTS_OF_MESSAGES = {b"\xff" * n for n in range(5)} | {b"\0" * 4}
"""A message starts with four 0xff bytes, of which a torn one may lack some; a crash of the machine may leave zeros."""


class StreamWriter:
    """Appends tables with one schema to one file; each `write` is readable by others when it returns.

    A file that is there already is continued, after its torn last message, if any, was cut off. Close it, or use it
    as a context manager. Not for two threads at once.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        # The first conversion to Arrow imports pandas, a quarter of a second: better here than while a load runs.
        pa.array([])
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._end = 0
            whole = 0 if os.fstat(self._fd).st_size == 0 else _read(path, 0, schema)[1]
            os.ftruncate(self._fd, whole)
            self._end = os.lseek(self._fd, 0, os.SEEK_END)
            if not whole:
                self._append(schema.serialize())
        except OSError as error:
            raise FolderError(_cannot_write(path, error)) from error

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Append `rows`. FolderError when the disk refuses (full, quota); what was written before stays readable
        and the stream can go on once there is room."""
        if not rows.schema.equals(self.schema):
            raise ValueError(f"{self.path.name}: rows have the columns {rows.schema}; the stream has {self.schema}")
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.combine_chunks().to_batches(ROWS_PER_MESSAGE)
        try:
            for batch in batches:
                if batch.num_rows:
                    self._append(batch.serialize())
        except OSError as error:
            raise FolderError(_cannot_write(self.path, error)) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, message: pa.Buffer) -> None:
        left = memoryview(message)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            # Half a message would make everything after it unreadable.
            os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
            raise
        self._end += message.size


class Tail:
    """Reads what is new in a stream, again and again, beside its writer.

    `path.name` may hold a `*` for several files of one schema; files may appear later. Within a file rows keep their
    order. Costs one read of the new bytes a call, whatever the length of the file.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self._offsets: dict[Path, int] = {}

    def new(self) -> pa.Table:
        """The rows that became whole since the last call (since the start, the first time); no rows when there is
        no file yet. FolderError when a file holds another schema or cannot be read."""
        batches: list[pa.RecordBatch] = []
        for path in self._files():
            offset = self._offsets.get(path, 0)
            found, self._offsets[path] = _read(path, offset, self.schema)
            batches += found
        return pa.Table.from_batches(batches, self.schema)

    def _files(self) -> list[Path]:
        if "*" in self.path.name:
            return sorted(self.path.parent.glob(self.path.name))
        return [self.path] if self.path.exists() else []


def read_stream(path: Path, schema: pa.Schema) -> pa.Table:
    """Every whole row of the file, or files, at `path` (see Tail)."""
    return Tail(path, schema).new()


def _read(path: Path, offset: int, schema: pa.Schema) -> tuple[list[pa.RecordBatch], int]:
    """The whole record batches from byte `offset`, which lies between two messages, and the byte behind the last."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = pa.py_buffer(file.read())
    except OSError as error:
        raise FolderError(f"{path}: cannot be read: {error.strerror}") from error
    reader = pa.BufferReader(data)
    batches: list[pa.RecordBatch] = []
    whole = 0
    while True:
        try:
            message = pa.ipc.read_message(reader)
        except (EOFError, pa.ArrowInvalid, OSError):  # the end, or a torn message; memory has no other I/O error
            if data[whole : whole + 4].to_pybytes() not in _STARTS_OF_MESSAGES:
                raise FolderError(f"{path}: damaged at byte {offset + whole}; no message starts there") from None
            return batches, offset + whole
        try:
            if message.type == "schema":
                _check_schema(path, pa.ipc.read_schema(message), schema)
            else:
                batches.append(pa.ipc.read_record_batch(message, schema))
        except (pa.ArrowInvalid, OSError) as error:
            raise FolderError(f"{path}: damaged at byte {offset + whole}: {str(error).splitlines()[0]}") from error
        whole = reader.tell()


def _check_schema(path: Path, found: pa.Schema, expected: pa.Schema) -> None:
    key = b"schema_version"
    versions = [(schema.metadata or {}).get(key, b"none").decode() for schema in (found, expected)]
    if versions[0] != versions[1]:
        raise FolderError(f"{path}: written with schema version {versions[0]}; this lab reads version {versions[1]}")
    if not found.equals(expected):
        raise FolderError(f"{path}: holds the columns {found.names}; expected {expected.names} with their types")


def _cannot_write(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{path}: {reason(error)}; rows written before stay readable, {remedy(error)} and run again"
    return f"{path}: cannot be written: {reason(error)}"
