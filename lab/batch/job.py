"""A batch job from its command to its file.

Some shards are under way at a time, so that the model never waits for the last rows of one; parts are kept in the
order of the rows. What a job is: the bytes of the input, the model (its configuration and its weights' hashes) and what
it is asked for. An equal job that is done is not done again.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.batch import parts, questions, table
from lab.batch.asking import Answer, Asker
from lab.batch.served import own_place, serves, serving
from lab.batch.table import Row
from lab.errors import LabError, RunError
from lab.gateway.triton import TritonUpstream
from lab.run.lock import no_run_beside
from lab.serve import quantized, weights
from lab.serve.chat import as_turn
from lab.serve.cut import Cut
from lab.serve.triton import Server
from lab.spec import ModelSpec

SHARD_ROWS, SHARD_BYTES = {"llm": 64, "embedder": 512}, 8 * 2**20
OTHER_ROWS = 8192
"""A shard ends with so many rows, some seconds of work, or so many bytes of them: what a kill may cost. Always the same
ones, because an answer's last bits may depend on the rows that it was computed with."""
UNDER_WAY = {"llm": 4}
OTHERS_UNDER_WAY = 2
"""Shards. The last rows of one run beside the next ones; a language model's answers differ in length by more than a
shard of short ones takes."""
PLACES = 3
"""Requests of a model that answers once: one computes, one waits, one is on its way."""
BUDGET_TOKENS = 16_384


@dataclass(frozen=True)
class Job:
    spec: ModelSpec
    source: Path
    out: Path
    column: str | None = None
    id_column: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    chat: bool = False
    overwrite: bool = False

    def rows(self) -> Iterator[Row]:
        return table.rows(self.source, self.asked_column, self.id_column)

    @property
    def asked_column(self) -> str:
        return self.column or questions.COLUMNS[self.spec.family]


@dataclass
class Progress:
    """`total` rows as far as that is known before they are read (table.fingerprint)."""

    done: int
    total: int | None
    rate_rps: float | None

    @property
    def left_s(self) -> float | None:
        if self.total is None or not self.rate_rps:
            return None
        return max(0, self.total - self.done) / self.rate_rps


@dataclass(frozen=True)
class Result:
    """`repeated_ids`: ids that stand for more than one row, and the first of them. `asked`: rows that this command
    asked, without those that were done before. `cut`: rows whose text is longer than the model reads, of which
    `tokens_cut` tokens were not read."""

    rows: int
    errors: int
    asked: int
    seconds: float
    repeated_ids: int = 0
    repeated: str | None = None
    was_done: bool = False
    cut: int = 0
    tokens_cut: int = 0


Report = Callable[[Progress], None]


def run(job: Job, report: Report) -> Result:
    """InputError for what cannot be asked, RunError for a job that could not go on; parts that are whole stay. Runs
    that would measure wait for its end."""
    questions.check(job.spec)
    parts.check(job.source, job.out)
    with no_run_beside(f"the batch job {job.out.name}"):
        return _done(job, report)


def _done(job: Job, report: Report) -> Result:
    weights.prepare(job.spec)
    version = table.version(job.source)
    digest, total = table.fingerprint(job.source)
    kept = parts.Parts(job.out, identity(job, digest), questions.schema(job.spec.family))
    began = time.monotonic()
    with kept.held(job.overwrite) as done:
        if done:
            told = json.loads(kept.told.read_text())
            cut = told.get("cut", 0), told.get("tokens_cut", 0)
            return Result(told["rows"], told["errors"], 0, 0.0, was_done=True, cut=cut[0], tokens_cut=cut[1])
        with serving(job.spec, own_place(job.out)) as server:
            asked = asyncio.run(_Work(job, server, kept, version, total, report).run())
        cut = cut_rows(kept)
        told = {"finished": datetime.now(UTC).isoformat(timespec="seconds"), "source": job.source.name}
        rows, failed = kept.assemble({**told, "cut": cut[0], "tokens_cut": cut[1]})
    repeated, first = repeated_ids(job)
    seconds = time.monotonic() - began
    return Result(rows, failed, asked, seconds, repeated, first, cut=cut[0], tokens_cut=cut[1])


def identity(job: Job, digest: str) -> dict[str, Any]:
    """What decides the bytes of OUT."""
    place = weights.folder(job.spec)
    return {
        "input": digest,
        "column": job.asked_column,
        "id_column": job.id_column,
        "model": job.spec.model_dump(mode="json", exclude_defaults=True) | {"family": job.spec.family},
        "weights": quantized.contents(place) if place is not None else [],
        "sampling": dict(job.sampling),
        "chat": job.chat,
        "format": table.ending(job.out),
        "format_version": 3,
    }


class _Work:
    """`version`: of the input whose hash the job has; `total`: how many rows it seems to have."""

    def __init__(
        self, job: Job, server: Server, kept: parts.Parts, version: table.Version, total: int | None, report: Report
    ) -> None:
        self._job, self._server, self._kept, self._report = job, server, kept, report
        self._family = job.spec.family
        self._cut = Cut.of(job.spec)
        self._version, self._total = version, total
        self._schema = questions.schema(self._family).append(pa.field(parts.ERROR, pa.string()))
        self._began = time.monotonic()

    async def run(self) -> int:
        """Rows asked."""
        spec, before = self._job.spec, self._kept.rows_done()
        upstream = TritonUpstream(f"grpc://{self._server.grpc_url}")
        await upstream.open()
        llm = self._family == "llm"
        asker = Asker(
            upstream,
            spec,
            self._job.sampling,
            places=2 * spec.max_batch_size if llm else PLACES,
            most=1 if spec.batching is None else spec.batching.max_batch_size,
            budget=BUDGET_TOKENS,
            alive=self._server.alive,
        )
        shards, most = self._shards(before), UNDER_WAY.get(self._family, OTHERS_UNDER_WAY)
        telling = asyncio.create_task(self._tell(asker, before))
        under_way: deque[tuple[int, asyncio.Task[list[Answer]], list[Row], list[int]]] = deque()
        first = before
        try:
            while True:
                while len(under_way) < most and (rows := next(shards, None)) is not None:
                    lengths = await asyncio.to_thread(self._lengths, rows)  # answers come in meanwhile
                    under_way.append((first, asyncio.create_task(asker.ask(rows, self._read(lengths))), rows, lengths))
                    first += len(rows)
                if not under_way:
                    break
                start, task, rows, lengths = under_way.popleft()
                try:
                    answers = await task
                except ExceptionGroup as failures:
                    raise first_of(failures) from None
                self._check_same(start, len(rows))
                # Written in another thread, so that answers come in and requests go out meanwhile.
                await asyncio.to_thread(self._kept.add, self._part(start, rows, answers, lengths))
            self._report(self._progress(asker, before))
        finally:
            telling.cancel()
            for _, task, _, _ in under_way:
                task.cancel()
            await upstream.close()
        return first - before

    def _shards(self, skip: int) -> Iterator[list[Row]]:
        """The same rows in a shard whenever the job is begun again: a shard ends by what is in it."""
        limit = SHARD_ROWS.get(self._family, OTHER_ROWS)
        shard: list[Row] = []
        size = 0
        for row in itertools.islice(self._job.rows(), skip, None):
            row = questions.asked(self._family, row)
            if self._job.chat and row.error is None:
                row = Row(as_turn(row.value), row.id)
            shard.append(row)
            size += len(row.value) if isinstance(row.value, str) else 8 * len(row.value or ())
            if len(shard) == limit or size >= SHARD_BYTES:
                yield shard
                shard, size = [], 0
        if shard:
            yield shard

    def _lengths(self, rows: list[Row]) -> list[int]:
        """In tokens; of prompts, which are only put in order by it, in characters."""
        if self._cut is not None:
            return self._cut.tokens([row.value or "" for row in rows])
        return [len(row.value or "") if self._family == "llm" else 1 for row in rows]

    def _read(self, lengths: list[int]) -> list[int]:
        """Of these the tokens that the model reads."""
        return lengths if self._cut is None else [min(length, self._cut.limit) for length in lengths]

    def _part(self, start: int, rows: list[Row], answers: list[Answer], lengths: list[int]) -> pa.Table:
        pairs = enumerate(zip(rows, answers, strict=True), start)
        whole = [{"row": number, "id": row.id} | answer for number, (row, answer) in pairs]
        if self._cut is not None:
            for row, length in zip(whole, lengths, strict=True):
                row[questions.CUT] = None if parts.ERROR in row else self._cut.beyond(length)
        columns = {name: [row.get(name) for row in whole] for name in self._schema.names}
        return pa.table(columns, schema=self._schema)

    def _check_same(self, start: int, count: int) -> None:
        """A shard is not kept that may be of another input, or answered by another configuration."""
        table.check_same(self._job.source, self._version)
        if not serves(self._server, self._job.spec):
            raise RunError(
                f"model {self._job.spec.name} was loaded in another configuration while rows {start} to "
                f"{start + count - 1} were asked; the same command goes on with row {start}"
            )

    async def _tell(self, asker: Asker, before: int) -> None:
        while True:
            self._report(self._progress(asker, before))
            await asyncio.sleep(0.5)

    def _progress(self, asker: Asker, before: int) -> Progress:
        elapsed = time.monotonic() - self._began
        rate = asker.answered / elapsed if elapsed > 0 and asker.answered else None
        return Progress(before + asker.answered, self._total, rate)


def cut_rows(kept: parts.Parts) -> tuple[int, int]:
    """(rows whose text was cut, tokens that no row's answer knows of)."""
    rows = tokens = 0
    for path in kept.done():
        part = parts.read_part(path)
        if questions.CUT in part.column_names:
            rows += pc.sum(pc.greater(part[questions.CUT], 0)).as_py() or 0
            tokens += pc.sum(part[questions.CUT]).as_py() or 0
    return rows, tokens


def first_of(failures: ExceptionGroup[Exception]) -> Exception:
    """What was raised on purpose before what was not."""
    flat = [error for error in failures.exceptions if not isinstance(error, ExceptionGroup)]
    return next((error for error in flat if isinstance(error, LabError)), failures)


def repeated_ids(job: Job) -> tuple[int, str | None]:
    """(ids that more than one row has, one of them): who joins by them would join wrong. Takes 8 bytes a row."""
    hashes = array("Q", (_short(row.id) for row in job.rows() if row.id is not None))
    every = np.frombuffer(hashes, np.uint64)
    every.sort()
    repeated = np.unique(every[1:][every[1:] == every[:-1]])
    if not len(repeated):
        return 0, None
    one = int(repeated[0])
    return len(repeated), next(row.id for row in job.rows() if row.id is not None and _short(row.id) == one)


def _short(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")
