"""What accelerators can do by their data sheets: rows, read and checked.

Memory, bandwidth and dense arithmetic rates are what a roofline is made of; nothing of them was measured here. Sparse
rates are twice as high and are not what a language model reaches, so a row holds dense ones. As with prices a row is a
fact with a source, a date (when the row was written) and a certainty.

Pure. Where the rows are kept is lab/run/accelerators.py's business.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator

from lab.errors import InputError
from lab.measure.floors import Machine
from lab.spec import Value, nearest, parse

FORMAT = "# serving lab accelerators, format 1"
"""First line of the file."""
MOST_ROWS = 1_000
GIGA, TERA = 1e9, 1e12

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=300)]


class Accelerator(Value):
    """One row; a rate that its data sheet does not give is None, and so is memory that is not the accelerator's own."""

    name: Text
    memory_gib: Rate | None
    bandwidth_gb_s: Rate
    fp16_tflops_dense: Rate | None
    int8_tops_dense: Rate | None
    fp8_tflops_dense: Rate | None
    source: Text
    as_of: Annotated[str, Field(pattern=r"^\d{4}(-\d{2}){0,2}$")]
    certainty: Literal["high", "medium", "low"]

    @field_validator("memory_gib", "fp16_tflops_dense", "int8_tops_dense", "fp8_tflops_dense", mode="before")
    @classmethod
    def _empty_is_unknown(cls, value: object) -> object:
        return None if value == "" else value

    @property
    def memory_bytes(self) -> float | None:
        return None if self.memory_gib is None else self.memory_gib * 2**30

    @property
    def machine(self) -> Machine:
        """For floors: bfloat16 is as fast as float16 wherever there is bfloat16."""
        half, eight = _times(self.fp16_tflops_dense, TERA), _times(self.int8_tops_dense, TERA)
        return Machine(self.bandwidth_gb_s * GIGA, {"bf16": half, "fp16": half, "int8": eight})


def read(text: str) -> tuple[Accelerator, ...]:
    """The rows of a CSV file whose header names the fields of Accelerator; lines that begin with # are left out.
    InputError for the first row that does not fit, or that names an accelerator again."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: dict[str, Accelerator] = {}
    try:
        rows = list(csv.DictReader(io.StringIO("\n".join(lines)), strict=True))
    except csv.Error as error:
        raise InputError(f"accelerators: not a CSV table: {error}") from None
    if not 1 <= len(rows) <= MOST_ROWS:
        raise InputError(f"accelerators: {len(rows):,} rows; allowed: 1 to {MOST_ROWS:,}")
    for number, row in enumerate(rows, start=1):
        if None in row:
            raise InputError(f"accelerators row {number}: holds more fields than the header; quote a comma in a text")
        try:
            one = parse(Accelerator, {name: value for name, value in row.items() if value is not None})
        except InputError as error:
            raise InputError(f"accelerators row {number}: {error}") from None
        if one.name in found:
            raise InputError(f"accelerators row {number}: name {one.name!r} stands there twice; allowed: each once")
        found[one.name] = one
    return tuple(found.values())


def find(rows: Sequence[Accelerator], name: str) -> Accelerator:
    """The one of that name; InputError with the nearest when there is none."""
    for row in rows:
        if row.name == name:
            return row
    raise InputError(f"accelerator {name!r}: there is none{nearest(name, [row.name for row in rows])}")


def _times(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit
