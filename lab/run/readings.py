"""Readings of a growing stream by what they are of, so that a look at a run costs what was added and not what there is.

Takes tables of the TELEMETRY or SERVER schema as they come (lab.run.folder.tail) and gives times and values of one
subject's one field. Rows without a value are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Times = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
APART = "\0"


class Readings:
    """`by` is the column that names the subject: "subject" of telemetry, "model" of a server's counters."""

    def __init__(self, by: str) -> None:
        self.by = by
        self._pieces: dict[tuple[str, str], list[tuple[Times, Values]]] = {}

    def add(self, table: pa.Table) -> None:
        table = table.filter(pc.is_valid(table["value"])).combine_chunks()
        if table.num_rows == 0:
            return
        names = pc.binary_join_element_wise(table[self.by], table["field"], APART)
        coded = names.combine_chunks().dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
        t_ns, values = table["t_ns"].to_numpy()[order], table["value"].to_numpy()[order]
        for code, name in enumerate(coded.dictionary.to_pylist()):
            subject, _, field = name.partition(APART)
            own = slice(ends[code], ends[code + 1])
            self._pieces.setdefault((subject, field), []).append((t_ns[own], values[own]))

    def of(self, subject: str, field: str) -> tuple[Times, Values]:
        """All readings so far in the order they came; none when there were none."""
        pieces = self._pieces.get((subject, field))
        if not pieces:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        if len(pieces) > 1:
            pieces[:] = [(np.concatenate([t for t, _ in pieces]), np.concatenate([v for _, v in pieces]))]
        return pieces[0]

    def subjects(self, *fields: str) -> Iterator[tuple[str, str]]:
        """(subject, field) of everything that any of these fields was read of."""
        return (known for known in self._pieces if known[1] in fields)
