"""The load generator's ceiling as it is kept, and what follows from it for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.run import gauge
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
