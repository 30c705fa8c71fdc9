"""What a job has done so far, in OUT.parts: which job it is, and a file of answers for each shard that is whole.

A part appears under its name only when it is on the disk, so what is there counts, whatever became of the process. At
the end the parts, in order, become OUT (and OUT.errors.jsonl, where rows had errors), OUT.job.json says what made it,
and the folder goes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from lab import atomic
from lab.batch import table
from lab.errors import InputError, RunError

ERRORS = ".errors.jsonl"
"""The end of the name of the file that says why rows have no answer."""
ERROR = "error"
"""The last column of a part: why a row has no answer. Not of OUT."""


def check(source: Path, out: Path) -> None:
    """InputError unless a job may read `source` and write `out`: the first is there and no pipe (it is read more than
    once), both are tables, and nothing that the job writes is what it reads."""
    if not source.is_file():
        what = "is no file that can be read twice" if source.exists() else "no such file"
        raise InputError(f"{source}: {what}")
    for path in (source, out):
        table.ending(path)
    if source.resolve() in {path.resolve() for path in (out, beside(out, ERRORS))}:
        raise InputError(f"{out}: {source.name} is the input, and would be written over; allowed: another name")


class Parts:
    """`job` tells this job from any other: equal ones give equal output. Use within `held`."""

    def __init__(self, out: Path, job: dict[str, Any], schema: pa.Schema) -> None:
        self._out, self._job, self._schema = out, job, schema
        self._kind = table.ending(out)
        self._folder = beside(out, ".parts")
        self._count = 0  # parts that are whole
        self.errors, self.told = beside(out, ERRORS), beside(out, ".job.json")

    @contextmanager
    def held(self, overwrite: bool) -> Iterator[bool]:
        """Whether the job is done already. InputError when OUT cannot be written or is another job's and not to be
        written over, RunError when another process writes it now."""
        lock = beside(self._out, ".lock")
        with self._opened(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat())
            except (BlockingIOError, FileNotFoundError):
                mine = False
            if not mine:  # or of one that has just let it go, and took its name away
                raise RunError(f"{self._out}: another batch job writes it now; wait for its end")
            try:
                yield self._is_done(overwrite)
            finally:
                lock.unlink(missing_ok=True)

    def _opened(self, lock: Path) -> TextIO:
        """What stands beside OUT is no name that the user knows, so OUT is what an error names."""
        try:
            if self._out.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
            self._out.parent.mkdir(parents=True, exist_ok=True)
            return lock.open("w")
        except OSError as error:
            raise InputError(
                f"--out {str(self._out)!r}: {error.strerror}; allowed: a file that can be written"
            ) from None

    def _is_done(self, overwrite: bool) -> bool:
        if self._out.exists():
            told = _read(self.told)
            same = told.get("job") == self._job
            if same and told.get("output") == _digest(self._out):
                shutil.rmtree(self._folder, ignore_errors=True)
                return True
            if not overwrite:
                whose = "was changed since its job wrote it" if same else "exists, by another job"
                raise InputError(f"{self._out}: {whose}; allowed: another name, or --overwrite")
            for path in (self.told, self.errors, self._out):
                path.unlink(missing_ok=True)
        found = _read(self._folder / "job.json")
        if found and found != self._job and self._part(0).exists():
            differing = ", ".join(sorted(key for key in found | self._job if found.get(key) != self._job.get(key)))
            if not overwrite:
                raise InputError(
                    f"{self._folder}: half of another job, which differs in {differing}; allowed: that job's command, "
                    "another OUT, or --overwrite"
                )
        if found != self._job:
            shutil.rmtree(self._folder, ignore_errors=True)
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _not_written(self._folder, error) from None
        _write(self._folder / "job.json", json.dumps(self._job).encode())
        return False

    def done(self) -> list[Path]:
        """The parts that are there without a gap."""
        while self._part(self._count).exists():
            self._count += 1
        return [self._part(number) for number in range(self._count)]

    def scratch(self, name: str) -> Path:
        """A file of the job's own, which goes with the parts."""
        return self._folder / name

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:08d}.arrow"

    def rows_done(self) -> int:
        return sum(read_part(path).num_rows for path in self.done())

    def add(self, part: pa.Table) -> None:
        """`part` has OUT's columns and ERROR. RunError when it can't be written."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, part.schema) as file:
            file.write_table(part)
        _write(self._part(len(self.done())), sink.getvalue().to_pybytes())

    def assemble(self, told: dict[str, Any]) -> tuple[int, int]:
        """OUT and what is beside it, from the parts: (rows, of them with an error). RunError when it can't be
        written; the parts stay."""
        try:
            return self._assemble(told)
        except OSError as error:
            raise _not_written(self._out, error) from None

    def _assemble(self, told: dict[str, Any]) -> tuple[int, int]:
        new, new_errors = beside(self._out, ".new"), beside(self._out, ".errors.new")
        rows = failed = 0
        writer = table.writer(new, self._kind, self._schema)
        try:
            with new_errors.open("w", encoding="utf-8") as errors:
                for path in self.done():
                    part = read_part(path)
                    for i, error in enumerate(part.column(ERROR).to_pylist()):
                        if error is not None:
                            failed += 1
                            row = {"row": rows + i, "id": part.column("id")[i].as_py(), "error": error}
                            errors.write(json.dumps(row, ensure_ascii=False) + "\n")
                    rows += part.num_rows
                    writer.write(part.drop_columns([ERROR]))
        finally:
            writer.close()
        for path in (new, new_errors):
            atomic.sync(path)
        told = {"job": self._job, "output": _digest(new), "rows": rows, "errors": failed, **told}
        _write(self.told, json.dumps(told, indent=2).encode())
        if failed:
            new_errors.replace(self.errors)
        else:
            new_errors.unlink()
            self.errors.unlink(missing_ok=True)
        new.replace(self._out)
        atomic.sync(self._out.parent)  # its name, before the parts go
        shutil.rmtree(self._folder)
        return rows, failed


def read_part(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing, also when the power fails."""
    try:
        atomic.write(path, content, durable=True)
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> RunError:
    why = error.strerror or str(error).splitlines()[0]
    return RunError(f"{path}: {why}; what was done stays, and the same command goes on")
