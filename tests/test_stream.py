"""Rows handed to a StreamWriter are read back, whatever happened to the writer."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lab.errors import FolderError
from lab.stream import ROWS_PER_MESSAGE, StreamWriter, Tail, read_stream

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())], metadata={"schema_version": "1"})


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"n": list(range(start, stop)), "text": [f"row {n}" for n in range(start, stop)]}, schema=SCHEMA)


def numbers(table: pa.Table) -> list[int]:
    return table["n"].to_pylist()


def test_what_is_written_is_readable_at_once_and_by_plain_arrow(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    with StreamWriter(path, SCHEMA) as writer:
        writer.write(rows(0, 3))
        writer.write(rows(3, 4).to_batches()[0])
        assert read_stream(path, SCHEMA).equals(rows(0, 4))  # before close
    assert pa.ipc.open_stream(path.read_bytes()).read_all().equals(rows(0, 4))


def test_every_cut_leaves_the_whole_messages_before_it(tmp_path: Path) -> None:
    path, cut = tmp_path / "a.arrows", tmp_path / "cut.arrows"
    ends = []
    with StreamWriter(path, SCHEMA) as writer:
        for start in (0, 2, 4):
            writer.write(rows(start, start + 2))
            ends.append(path.stat().st_size)
    data = path.read_bytes()
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        assert numbers(read_stream(cut, SCHEMA)) == list(range(2 * sum(end <= size for end in ends)))


def test_tail_returns_each_row_once_and_waits_for_a_torn_message(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.arrows", tmp_path / "a.arrows"
    with StreamWriter(whole, SCHEMA) as writer:
        for start in range(0, 50, 5):
            writer.write(rows(start, start + 5))
    data = whole.read_bytes()
    tail = Tail(path, SCHEMA)
    assert numbers(tail.new()) == []  # no file yet
    seen = []
    for end in range(0, len(data) + 97, 97):
        path.write_bytes(data[:end])
        seen += numbers(tail.new())
    assert seen == list(range(50))
    assert numbers(tail.new()) == []


def test_tail_of_several_files_finds_the_one_that_appears_later(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "part-*.arrows", SCHEMA)
    with StreamWriter(tmp_path / "part-0.arrows", SCHEMA) as first:
        first.write(rows(0, 2))
        assert numbers(tail.new()) == [0, 1]
        with StreamWriter(tmp_path / "part-1.arrows", SCHEMA) as second:
            first.write(rows(2, 3))
            second.write(rows(10, 11))
            assert sorted(numbers(tail.new())) == [2, 10]
    assert numbers(read_stream(tmp_path / "part-*.arrows", SCHEMA)) == [0, 1, 2, 10]


def test_a_writer_continues_a_file_after_cutting_its_torn_message(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    with StreamWriter(path, SCHEMA) as writer:
        writer.write(rows(0, 2))
        writer.write(rows(90, 99))
    os.truncate(path, path.stat().st_size - 5)
    with StreamWriter(path, SCHEMA) as writer:
        writer.write(rows(2, 4))
    assert pa.ipc.open_stream(path.read_bytes()).read_all().equals(rows(0, 4))


def test_a_large_table_becomes_several_messages(tmp_path: Path) -> None:
    count = 2 * ROWS_PER_MESSAGE + 1
    table = pa.table({"n": np.arange(count), "text": pa.nulls(count, pa.string())}, schema=SCHEMA)
    with StreamWriter(tmp_path / "a.arrows", SCHEMA) as writer:
        writer.write(table)
    found = read_stream(tmp_path / "a.arrows", SCHEMA)
    assert found.equals(table)
    assert found["n"].num_chunks == 3


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (SCHEMA.with_metadata({"schema_version": "2"}), "schema version 2; this lab reads version 1"),
        (pa.schema([("n", pa.int64())], metadata=SCHEMA.metadata), "holds the columns ['n']; expected ['n', 'text']"),
    ],
)
def test_another_schema_is_refused_in_one_line(tmp_path: Path, found: pa.Schema, says: str) -> None:
    StreamWriter(tmp_path / "a.arrows", found).close()
    with pytest.raises(FolderError) as caught:
        read_stream(tmp_path / "a.arrows", SCHEMA)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_garbage_is_named_with_its_place_and_not_taken_for_a_torn_message(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    with StreamWriter(path, SCHEMA) as writer:
        writer.write(rows(0, 2))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"not an Arrow message")
    with pytest.raises(FolderError, match=f"damaged at byte {size}"):
        read_stream(path, SCHEMA)


def test_rows_of_other_columns_are_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with StreamWriter(tmp_path / "a.arrows", SCHEMA) as writer, pytest.raises(ValueError, match=r"a\.arrows"):
        writer.write(pa.table({"n": [1]}))


WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
import pyarrow as pa
from lab.stream import StreamWriter
schema = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())], metadata={"schema_version": "1"})
with StreamWriter(Path(sys.argv[1]), schema) as writer:
    for n in range(10**9):
        writer.write(pa.table({"n": [n], "text": ["x" * 4000]}, schema=schema))
        sys.stdout.write(f"{n}\\n")  # only once it is written
        sys.stdout.flush()
"""


def test_kill_9_loses_no_written_row(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(200):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        told = [200 + n for n, _ in enumerate(writer.stdout.read().splitlines())]
    last = told[-1] if told else 199
    found = numbers(read_stream(path, SCHEMA))
    assert found == list(range(len(found)))
    assert len(found) - 1 in (last, last + 1)  # killed between the write and the word of it, at most


def test_a_full_disk_is_one_line_and_costs_no_earlier_row(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    with StreamWriter(path, SCHEMA) as writer:
        writer.write(rows(0, 10))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:  # room for half a message: the kernel writes a part of it, then refuses
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5000, limits[1]))
            with pytest.raises(
                FolderError, match=r"ulimit -f, here [\d,]+ bytes, .*raise that limit and run again"
            ) as caught:
                writer.write(rows(10, 1000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, ignored)
        assert "\n" not in str(caught.value)
        assert numbers(read_stream(path, SCHEMA)) == list(range(10))
        writer.write(rows(10, 11))  # room again; fewer bytes than those that were refused
    assert numbers(read_stream(path, SCHEMA)) == list(range(11))
