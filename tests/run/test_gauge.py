"""The load generator's ceiling as it is kept, and what follows from it for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.measure.records import OK, Requests, Streams, Window
from lab.measure.summary import summarize
from lab.run import gauge
from lab.run.blocks import near_own_limit
from lab.run.catalogue import single
from lab.run.folder import RunFolder
from lab.run.gauge import Ceiling


@pytest.mark.parametrize(
    ("arrival", "workers"),
    [
        ({"kind": "poisson", "rate_rps": 60.0}, 1),
        ({"kind": "constant", "rate_rps": 100.0}, 2),
        ({"kind": "gamma", "rate_rps": 100.0, "cv": 2.0}, 2),
        ({"kind": "steps", "rates_rps": [10.0, 100.0], "step_s": 1.0}, 2),
        ({"kind": "closed", "concurrency": 64}, 1),
    ],
)
def test_a_rate_above_seventy_percent_of_one_process_takes_another(
    arrival: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    asked = single({"name": "null"}, {"arrival": arrival, "duration_s": 1.0})
    assert gauge.workers_for(asked, Ceiling(100.0, 1, "")) == workers


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


def test_each_protocol_has_a_ceiling_of_its_own(empty: None) -> None:
    gauge.keep(9000.0, 1)
    gauge.keep(15000.0, 2)
    gauge.keep(1500.0, 1, "http")
    found = [gauge.read(), gauge.read(2), gauge.read(1, "http"), gauge.read(2, "http"), gauge.read(1, "openai")]
    assert [each and each.rate_rps for each in found] == [9000.0, 15000.0, 1500.0, None, None]


@pytest.mark.parametrize(
    ("protocol", "workers", "ceiling"), [("grpc", 1, 9000.0), ("http", 2, 2500.0), ("torchserve", 1, None)]
)
def test_a_run_is_held_against_the_ceiling_of_its_own_protocol(
    empty: None, protocol: str, workers: int, ceiling: float | None
) -> None:
    gauge.keep(9000.0, 1)
    gauge.keep(1500.0, 1, "http")
    gauge.keep(2500.0, 2, "http")
    arrival = {"kind": "constant", "rate_rps": 1200.0}
    asked = single({"name": "null"}, {"arrival": arrival, "duration_s": 1.0, "protocol": protocol})
    folder = RunFolder.create("20261130-gauge-0000", {"experiment": {"id": "load"}})
    assert gauge.load_workers(asked, folder, None, 1.0, lambda _: None) == workers
    told = [event["rate_rps"] for event in folder.events() if event["kind"] == "ceiling"]
    assert told == ([] if ceiling is None else [ceiling])


def of_streams(protocol: str) -> RunFolder:
    return RunFolder.create(f"20261130-gauge-{protocol}", {"experiment": {"id": "load"}})


def test_streams_are_held_against_what_is_read_of_them(empty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured at the first run that is long enough, whoever's the server is, and then kept."""
    measured: list[tuple[int, str]] = []

    def stream_ceiling(*, workers: int, protocol: str) -> float:
        measured.append((workers, protocol))
        return 20_000.0

    monkeypatch.setattr(gauge, "stream_ceiling", stream_ceiling)
    gauge.keep(9000.0, 1)
    arrival = {"kind": "closed", "concurrency": 4}
    asked = single({"name": "llm"}, {"arrival": arrival, "duration_s": 1.0, "protocol": "openai"})
    folder = of_streams("openai")
    assert gauge.load_workers(asked, folder, None, 10.0, lambda _: None) == 1
    assert not measured and not [event for event in folder.events() if event["kind"] == "ceiling"]
    for _ in range(2):
        gauge.load_workers(asked, folder, None, 60.0, lambda _: None)
    assert measured == [(1, "openai")]
    told = [event for event in folder.events() if event["kind"] == "ceiling"]
    assert [(e["protocol"], e["streamed"], e["rate_rps"]) for e in told] == [("openai", True, 20_000.0)] * 2
    assert [(each.streamed, each.rate_rps) for each in gauge.kept()] == [(False, 9000.0), (True, 20_000.0)]


def test_a_block_of_streams_is_judged_by_its_chunks_in_the_window() -> None:
    n = 100
    due = np.arange(n, dtype=np.int64) * 10**7
    first = np.arange(n + 1) * 9
    at = np.repeat(due, 9)  # 900 chunks in a second
    counts = np.full(n, 9)
    streams = Streams(counts, counts, np.zeros(n, np.int64), first, at, np.ones(9 * n, np.int64))
    requests = Requests(due, due, due + 1, np.full(n, OK, np.uint8), None, streams)
    window = Window(0, 0, 10**9)
    summary = summarize(requests, window=window, planned=n, slo=None)
    start = {"model": {"family": "llm"}, "workload": {"protocol": "openai"}}

    def found(**ceilings: float) -> bool | None:
        kept = {(protocol, True): rate for protocol, rate in ceilings.items()}
        problem = near_own_limit(start, summary, requests, window, {("openai", False): 50.0, **kept})
        return problem and problem.forbids_verdict

    assert [found(openai=1300.0), found(openai=1200.0), found(openai=890.0)] == [None, False, True]
    assert found(grpc=100.0) is None
