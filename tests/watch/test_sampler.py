"""The sampler writes what the instruments say, costs little, and never gets in the way of the run."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lab.errors import FolderError
from lab.measure.records import TELEMETRY
from lab.watch import host, sampler
from lab.watch.reading import Reading
from lab.watch.sampler import Sampler
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.processes


class Rows:
    """Stands for a run folder."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    def append(self, name: str, rows: pa.Table) -> None:
        assert name == "telemetry"
        self.tables.append(rows)

    def all(self) -> list[dict[str, Any]]:
        return [row for table in list(self.tables) for row in table.to_pylist()]

    def of(self, subject: str, field: str) -> list[dict[str, Any]]:
        return [row for row in self.all() if (row["subject"], row["field"]) == (subject, field)]


def values(rows: list[dict[str, Any]]) -> list[float]:
    return [row["value"] for row in rows if row["value"] is not None]


def test_models_server_client_and_host_are_read(fake_server: Callable[..., Any]) -> None:
    server, rows = fake_server("/r/digits/1/model.py", "/r/embedder/1/model.py"), Rows()
    with Sampler(rows, server.pid, period_s=0.05, extra_pids={"client": [os.getpid()], "nobody": []}):
        for subject in ("model:digits", "model:embedder", "server", "client", "host"):
            until(lambda subject=subject: values(rows.of(subject, "cpu_fraction")))
        for subject in ("model:digits", "model:embedder", "server", "host"):
            assert until(lambda subject=subject: values(rows.of(subject, "memory_bytes")))[0] > 2**20
    assert all(table.schema.equals(TELEMETRY) for table in rows.tables)
    assert all((row["value"] is None) != (row["reason"] is None) for row in rows.all())
    assert not rows.of("nobody", "cpu_fraction")
    times = [table["t_ns"][0].as_py() for table in rows.tables]
    assert times == sorted(times)
    assert times[-1] <= time.perf_counter_ns()


def test_a_reloaded_model_is_followed_to_its_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    alive = {"digits": [first.pid]}
    monkeypatch.setattr(host, "model_processes", lambda pid: dict(alive))
    rows = Rows()
    with Sampler(rows, os.getpid(), period_s=0.05) as watch:
        until(lambda: values(rows.of("model:digits", "cpu_fraction")))
        monkeypatch.setattr(watch._search_turn, "come", lambda: False)  # it is the old one's end that is noticed
        alive["digits"] = [second.pid]
        first.communicate(b"\n")
        seen = len(rows.tables)
        until(
            lambda: any(
                r["value"] is not None for t in rows.tables[seen:] for r in t.to_pylist() if "digits" in r["subject"]
            )
        )
    second.communicate(b"\n")


def test_a_server_that_dies_becomes_a_reason(fake_server: Callable[..., Any]) -> None:
    server, rows = fake_server("/r/digits/1/model.py"), Rows()
    with Sampler(rows, server.pid, period_s=0.05) as watch:
        until(lambda: values(rows.of("model:digits", "cpu_fraction")))
        server.stop()
        until(lambda: rows.of("server", "cpu_fraction")[-1]["reason"] == f"process {server.pid} is gone")
        until(lambda: rows.of("host", "cpu_fraction")[-1]["value"] is not None)
    assert watch.problem is None


def test_somebody_elses_server_is_said_to_be_unknown() -> None:
    rows = Rows()
    with Sampler(rows, None, period_s=0.05):
        until(lambda: len(rows.tables) > 1)
    reasons = {row["reason"] for row in rows.all() if row["subject"] == "server"}
    assert reasons == {"the server is not the lab's own, so its processes are not known"}
    assert values(rows.of("host", "memory_bytes"))


def test_a_disk_that_refuses_is_remembered_and_watching_goes_on() -> None:
    class Full(Rows):
        def append(self, name: str, rows: pa.Table) -> None:
            super().append(name, rows)
            if len(self.tables) < 3:
                raise FolderError("telemetry.arrows: No space left on device")

    rows = Full()
    with Sampler(rows, None, period_s=0.02) as watch:
        until(lambda: len(rows.tables) > 4)
    assert watch.problem == "FolderError: telemetry.arrows: No space left on device"


def test_an_instrument_that_hangs_does_not_hold_up_the_end_and_writes_nothing_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, release = threading.Event(), threading.Event()

    def hang() -> list[Reading]:
        entered.set()
        release.wait(LIMIT_S)
        return []

    monkeypatch.setattr(sampler, "read_gpus", hang)
    rows = Rows()
    watch = Sampler(rows, None, period_s=0.05)
    watch.start()
    assert entered.wait(LIMIT_S)
    begin = time.monotonic()
    watch.stop()
    assert time.monotonic() - begin < sampler.STOP_S + LIMIT_S / 2
    release.set()
    watch._thread.join(LIMIT_S)
    assert rows.tables == []


def test_stopping_does_not_wait_for_the_period() -> None:
    watch = Sampler(Rows(), None, period_s=60)
    watch.start()
    begin = time.monotonic()
    watch.stop()
    assert time.monotonic() - begin < sampler.STOP_S + 30
    Sampler(Rows(), None).stop()  # never started: nothing to stop


def test_an_expensive_reading_is_made_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[tuple[float, float]] = []

    def expensive(subject: str, pids: list[int]) -> Reading:
        began, end = time.perf_counter(), time.thread_time() + 0.003
        while time.thread_time() < end:
            pass
        times.append((began, time.perf_counter()))
        return Reading(subject, "memory_bytes", 1.0)

    monkeypatch.setattr(host, "memory", expensive)
    rows = Rows()
    # 3 ms of a core at a share of 0.5 % may come once in 0.6 s.
    with Sampler(rows, os.getpid(), period_s=0.02):
        until(lambda: len(rows.of("server", "memory_bytes")) >= 3)
    assert all(began - ended >= 0.6 for (_, ended), (began, _) in itertools.pairwise(times))
    assert len(rows.of("server", "cpu_fraction")) > 6


def test_who_asks_for_a_look_does_not_wait_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MEMORY_SHARE", 1e-9)
    monkeypatch.setattr(sampler, "LONGEST_PAUSE_S", 3600.0)
    rows = Rows()
    with Sampler(rows, os.getpid(), period_s=0.02) as watching:
        until(lambda: rows.of("server", "memory_bytes"))
        watching.look()
        until(lambda: len(rows.of("server", "memory_bytes")) == 2)


def test_what_watching_costs_is_written_down() -> None:
    rows = Rows()
    with Sampler(rows, os.getpid(), period_s=0.1):
        until(lambda: len(values(rows.of("sampler", "cpu_fraction"))) > 3)
    assert all(0 < value < 1 for value in values(rows.of("sampler", "cpu_fraction")))


WATCH_TWO_GPUS = """
import json, os, sys
from lab.watch import host
from lab.watch.sampler import Sampler

class Rows:
    def append(self, name, rows):
        print(json.dumps([row for row in rows.to_pylist() if "gpu" in row["subject"] + row["field"]]), flush=True)

host.model_processes = lambda server_pid: {"digits": [11, 12], "embedder": [13], "sleeper": [14]}
sampler = Sampler(Rows(), os.getpid(), period_s=60)
sampler.start()
sys.stdin.readline()
"""


def test_gpu_memory_is_put_down_to_the_model_and_the_gpu(fake_nvml: Callable[..., dict[str, str]]) -> None:
    processes = "0:11:100000000,1:11:7000000,1:12:1000000,1:13:na,0:99:5000000"
    environment = fake_nvml(used="470800000,1592800000", util="none", processes=processes)
    with subprocess.Popen(
        [sys.executable, "-c", WATCH_TWO_GPUS],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        rows = json.loads(watching.stdout.readline())
        watching.communicate("stop\n")
    found = {(row["subject"], row["field"]): row["value"] for row in rows}
    assert found["gpu:0", "memory_used_bytes"] == 470_800_000
    assert found["gpu:1", "memory_used_bytes"] == 1_592_800_000
    assert found["gpu:0", "utilization_fraction"] is None
    assert found["model:digits", "gpu_memory_bytes:0"] == 100_000_000
    assert found["model:digits", "gpu_memory_bytes:1"] == 8_000_000  # two instances of one model
    assert found["model:embedder", "gpu_memory_bytes:1"] is None  # the driver does not tell
    assert found["gpu:0", "process_memory_bytes:99"] == 5_000_000  # somebody else's
    assert not any(subject == "model:sleeper" for subject, _ in found)


@pytest.mark.triton
def test_the_processes_of_a_real_server_are_found_and_read(triton_server: Any, tmp_path: Path) -> None:
    from lab.spec import ModelSpec

    triton_server.load(ModelSpec(name="watched", family="null", instances=2))
    rows = Rows()
    try:
        assert len(host.model_processes(triton_server.pid)["watched"]) == 2
        with Sampler(rows, triton_server.pid, period_s=0.1):
            for subject in ("model:watched", "server"):
                until(lambda subject=subject: values(rows.of(subject, "cpu_fraction")))
                assert until(lambda subject=subject: values(rows.of(subject, "memory_bytes")))[0] > 2**20
    finally:
        triton_server.unload("watched")
    assert "watched" not in host.model_processes(triton_server.pid)
