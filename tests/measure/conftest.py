"""Records written by hand: times in milliseconds since the block began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from lab.measure.records import OK, OUTCOMES, REQUESTS, SERVER, TELEMETRY, TIMEOUT, Requests, Window

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


@dataclass(frozen=True)
class Answer:
    """One streamed answer, times in milliseconds. `chunks`: (arrival, tokens in it); `total`: what the server said at
    the end, the sum of the chunks unless given. `counted` False: the server did not say what each chunk held."""

    chunks: Sequence[tuple[float, int]]
    due: float = 0.0
    sent: float | None = None
    done: float | None = None
    outcome: str = "ok"
    prompt: int | None = 5
    total: int | None = None
    counted: bool = True
    reasoning: int = 0

    def row(self, number: int) -> dict[str, object]:
        counts = [tokens for _, tokens in self.chunks]
        done = self.done if self.done is not None else self.chunks[-1][0]
        return {
            "block": 0,
            "request": number,
            "due_ns": round(self.due * MS),
            "sent_ns": round((self.due if self.sent is None else self.sent) * MS),
            "done_ns": round(done * MS),
            "outcome": OUTCOMES.index(self.outcome),
            "detail": None if self.outcome == "ok" else "broke off",
            "prompt_tokens": self.prompt,
            "output_tokens": sum(counts) if self.counted and self.total is None else self.total,
            "chunk_ns": [round(at * MS) for at, _ in self.chunks],
            "chunk_tokens": counts if self.counted else None,
            "reasoning_chunks": self.reasoning,
        }


@pytest.fixture(scope="session")
def answers_of() -> Callable[..., Requests]:
    """Answers as they stand in a run folder's table, read back."""
    return lambda *answers: Requests.from_table(
        pa.Table.from_pylist([answer.row(number) for number, answer in enumerate(answers)], schema=REQUESTS)
    )


@pytest.fixture(scope="session")
def answer() -> type[Answer]:
    return Answer


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


@dataclass(frozen=True)
class Served:
    """One simulated block: its records, its window, and what a server's counters would have grown by."""

    requests: Requests
    window: Window
    counters: dict[str, float]


def _serve(
    due_s: np.ndarray,
    rng: np.random.Generator,
    *,
    pass_s: float,
    item_s: float,
    end_s: float,
    warmup_s: float = 0.0,
    max_batch: int = 1,
    delay_s: float = 0.0,
    speed: float = 1.0,
    timeout_s: float = 5.0,
) -> Served:
    """A server with one instance: a batch of k takes (pass_s + k × item_s) × speed, give or take 5 %, and now and then
    a stall of some milliseconds. It starts as soon as the instance is free and the batch is full or its first member
    has waited delay_s; that is what Triton's dynamic batcher does."""
    n, t, i = len(due_s), 0.0, 0
    done_s = np.empty(n)
    stall_at = rng.exponential(5.0)
    counters: dict[str, float] = {"queue_ns": 0.0}
    while i < n:
        full = due_s[i + max_batch - 1] if i + max_batch <= n else np.inf
        start = max(t, min(due_s[i] + (delay_s if max_batch > 1 else 0.0), full), due_s[i])
        size = min(max(int(np.searchsorted(due_s, start, side="right")) - i, 1), max_batch)
        took = (pass_s + size * item_s) * speed * rng.normal(1, 0.05)
        infer_ns = took * 1e9
        if start > stall_at:
            took += rng.exponential(0.005)
            stall_at = start + rng.exponential(5.0)
        t = start + took
        done_s[i : i + size] = t
        if start >= warmup_s and t < end_s:
            for name, grown in (("count", 1), ("infer_count", 1), ("infer_ns", infer_ns)):
                key = f"batch_{name}:{size}"
                counters[key] = counters.get(key, 0) + grown
            counters["queue_ns"] += float((start - due_s[i : i + size]).sum()) * 1e9
        i += size
    sizes = {int(k.split(":")[1]): v for k, v in counters.items() if k.startswith("batch_count")}
    items = sum(size * count for size, count in sizes.items())
    counters |= {"success_count": items, "queue_count": items, "inference_count": items, "cache_hit_count": 0}
    counters["execution_count"] = sum(sizes.values())
    due_ns, done_ns = (due_s * 1e9).astype(np.int64), (done_s * 1e9).astype(np.int64)
    late = done_s - due_s > timeout_s
    done_ns = np.where(late, due_ns + round(timeout_s * 1e9), done_ns)
    outcome = np.where(late, TIMEOUT, OK).astype(np.uint8)
    window = Window(0, round(warmup_s * 1e9), round(end_s * 1e9))
    return Served(Requests(due_ns, due_ns, done_ns, outcome), window, counters)


@pytest.fixture(scope="session")
def serve() -> Callable[..., Served]:
    return _serve


@pytest.fixture(scope="session")
def poisson() -> Callable[..., np.ndarray]:
    """Arrival times in seconds, ascending, below end_s."""

    def arrivals(rate_rps: float, end_s: float, rng: np.random.Generator) -> np.ndarray:
        times = np.cumsum(rng.exponential(1 / rate_rps, int(rate_rps * end_s * 1.5) + 50))
        return times[times < end_s]

    return arrivals
