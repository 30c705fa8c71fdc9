"""One reading of one instrument: a value or the reason for none. Never 0 for what could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lab.measure.records import TELEMETRY


@dataclass(frozen=True)
class Reading:
    """Exactly one of `value` and `reason` is None. Subjects and fields: see lab/watch/sampler.py."""

    subject: str
    field: str
    value: float | None
    reason: str | None = None


def table(readings: Sequence[Reading], t_ns: int) -> pa.Table:
    """The readings of one moment as rows of the TELEMETRY schema."""
    columns = {
        "t_ns": [t_ns] * len(readings),
        "subject": [reading.subject for reading in readings],
        "field": [reading.field for reading in readings],
        "value": [reading.value for reading in readings],
        "reason": [reading.reason for reading in readings],
    }
    return pa.table(columns, schema=TELEMETRY)
