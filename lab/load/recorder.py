"""Finished requests, from the moment they end to the run folder.

Rows go into arrays that are allocated once; a flush hands slices of them to the stream writer and starts over at row
0, so it copies and allocates next to nothing while requests are in flight.
"""

from __future__ import annotations

import array
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa

from lab.load.targets import Generated
from lab.measure.records import OUTCOMES, REQUESTS
from lab.stream import StreamWriter

CAPACITY = 65_536
LONGEST_DETAIL = 500
"""Characters that are kept of why a request failed; a server may answer each with a page of megabytes."""
NEVER_SENT = -1


class Recorder:
    """Appends rows of the REQUESTS schema to one file. `finished` counts the rows of the block, `counts` and
    `output_tokens` those that are flushed."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        self._writer = StreamWriter(path, REQUESTS)
        self._capacity = capacity
        self._request = array.array("q", bytes(8 * capacity))
        self._due = array.array("q", bytes(8 * capacity))
        self._sent = array.array("q", bytes(8 * capacity))
        self._done = array.array("q", bytes(8 * capacity))
        self._outcome = array.array("B", bytes(capacity))
        self._columns = [np.frombuffer(a, np.int64) for a in (self._request, self._due, self._sent, self._done)]
        self._outcome_column = np.frombuffer(self._outcome, np.uint8)
        self._detail: dict[int, str] = {}  # by row; rows without a detail are ok
        self._generated: dict[int, Generated] = {}  # by row
        self._rows = 0
        self._block = 0
        self._flushed = 0
        self._never_sent = 0
        self._outcomes: Counter[str] = Counter()
        self.output_tokens = 0
        """Generated in the block, as far as the server counted them."""
        self.prompt_tokens = self.cached_tokens = 0
        """Of the block's answers whose server says what its prefix cache had: their prompts' tokens, and the cached."""

    def begin(self, block: int) -> None:
        self.flush()
        self._block = block
        self._flushed = self._never_sent = self.output_tokens = self.prompt_tokens = self.cached_tokens = 0
        self._outcomes = Counter()

    def add(
        self,
        request: int,
        due_ns: int,
        sent_ns: int,
        done_ns: int,
        outcome: int,
        detail: str | None,
        generated: Generated | None = None,
    ) -> None:
        """One finished request; `sent_ns` is NEVER_SENT when it waited in the client until it was given up."""
        row = self._rows
        self._request[row] = request
        self._due[row] = due_ns
        self._sent[row] = sent_ns
        self._done[row] = done_ns
        self._outcome[row] = outcome
        if detail is not None:
            self._detail[row] = detail[:LONGEST_DETAIL]
        if generated is not None:
            self._generated[row] = generated
        self._rows = row + 1
        if self._rows == self._capacity:
            self.flush()

    @property
    def finished(self) -> int:
        return self._flushed + self._rows

    def counts(self) -> tuple[int, dict[str, int]]:
        """(requests given up before they were sent, requests by outcome) among the flushed rows of the block."""
        return self._never_sent, dict(self._outcomes)

    def flush(self) -> None:
        """Write every row down. FolderError when the disk refuses."""
        rows, self._rows = self._rows, 0
        if not rows:
            return
        request, due, sent, done = (column[:rows] for column in self._columns)
        outcome = self._outcome_column[:rows]
        never_sent = sent == NEVER_SENT
        detail = pa.nulls(rows, pa.string())
        if self._detail:
            detail = pa.array([self._detail.get(row) for row in range(rows)], pa.string())
            self._detail = {}
        self._writer.write(
            pa.RecordBatch.from_arrays(
                [
                    pa.array(np.full(rows, self._block, np.int32)),
                    pa.array(request),
                    pa.array(due),
                    pa.array(sent, mask=never_sent),
                    pa.array(done),
                    pa.array(outcome),
                    detail,
                    *self._generated_columns(rows),
                ],
                schema=REQUESTS,
            )
        )
        self._flushed += rows
        self._never_sent += int(never_sent.sum())
        for index, count in enumerate(np.bincount(outcome, minlength=len(OUTCOMES))):
            if count:
                self._outcomes[OUTCOMES[index]] += int(count)

    def _generated_columns(self, rows: int) -> list[pa.Array]:
        """The last columns, which are those of Generated but for what is kept as a sum alone."""
        names = [field.name for field in fields(Generated) if field.name in REQUESTS.names]
        if not self._generated:
            return [pa.nulls(rows, REQUESTS.field(name).type) for name in names]
        found = [self._generated.get(row) for row in range(rows)]
        self._generated = {}
        self.output_tokens += sum(g.output_tokens or 0 for g in found if g is not None)
        told = [g for g in found if g is not None and g.cached_tokens is not None and g.prompt_tokens]
        self.prompt_tokens += sum(g.prompt_tokens or 0 for g in told)
        self.cached_tokens += sum(g.cached_tokens or 0 for g in told)
        return [
            pa.array([None if g is None else getattr(g, name) for g in found], REQUESTS.field(name).type)
            for name in names
        ]

    def close(self) -> None:
        self.flush()
        self._writer.close()
