"""Records written by hand: times in milliseconds since the block began."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from lab.measure.records import OUTCOMES, SERVER, TELEMETRY, Requests, Window

MS = 1_000_000


def _requests(rows: Sequence[tuple[float, float | None, float, str]], detail: str | None = None) -> Requests:
    """(due_ms, sent_ms or None, done_ms, outcome) a request; every failure has the same detail."""
    due, sent, done = (
        np.array([-1 if row[i] is None else round(row[i] * MS) for row in rows], dtype=np.int64) for i in range(3)
    )
    outcome = np.array([OUTCOMES.index(row[3]) for row in rows], dtype=np.uint8)
    texts = pa.chunked_array([pa.array([None if row[3] == "ok" else detail for row in rows], pa.string())])
    return Requests(due, sent, done, outcome, texts)


@pytest.fixture(scope="session")
def requests_of() -> Callable[..., Requests]:
    return _requests


@pytest.fixture(scope="session")
def window_of() -> Callable[..., Window]:
    """A window in milliseconds, without warm-up unless given."""
    return lambda end_ms, measured_from_ms=0: Window(0, round(measured_from_ms * MS), round(end_ms * MS))


@pytest.fixture(scope="session")
def server_table() -> Callable[..., pa.Table]:
    """{time_ms: {counter: value, or the reason why there is none}} of one model as a table with the SERVER schema."""

    def table(scrapes: dict[float, dict[str, float | str]], model: str = "digits") -> pa.Table:
        rows = [
            {
                "t_ns": round(t * MS),
                "model": model,
                "field": name,
                "value": None if isinstance(value, str) else value,
                "reason": value if isinstance(value, str) else None,
            }
            for t, counters in scrapes.items()
            for name, value in counters.items()
        ]
        return pa.Table.from_pylist(rows, schema=SERVER)

    return table


@pytest.fixture(scope="session")
def telemetry_table() -> Callable[..., pa.Table]:
    """(time_ms, subject, field, value or the reason why there is none) as a table with the TELEMETRY schema."""

    def table(rows: Sequence[tuple[float, str, str, float | str]]) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {
                    "t_ns": round(t * MS),
                    "subject": subject,
                    "field": name,
                    "value": None if isinstance(value, str) else value,
                    "reason": value if isinstance(value, str) else None,
                }
                for t, subject, name, value in rows
            ],
            schema=TELEMETRY,
        )

    return table
