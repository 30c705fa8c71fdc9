"""A replay grows as the recording did, at its times; it can be stopped, waits its turn, and measures nothing."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lab.errors import InputError
from lab.run import cassette, cassette_record, control, replay, results, sides
from lab.run.folder import RunFolder, runs
from lab.run.live import Live
from lab.run.lock import MeasureLock
from tests.run.test_cassette import kept
from tests.show.synthetic_llm import load_run
from tests.waiting import until

OWN, PLAYED = "20261130-010601-load-tape", "20261130-020202-replay-load"


@pytest.fixture
def tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    load_run(OWN, 8.0)
    return kept(tmp_path, cassette_record.record(OWN)[0])


class Clock:
    """perf_counter_ns, `times` as fast: the test need not wait for the load's whole length. It stands still after
    `most_s` of its own."""

    def __init__(self, times: int, most_s: float = 3600.0) -> None:
        self.times, self.begun_ns, self.most_ns = times, time.perf_counter_ns(), round(most_s * 1e9)

    def __call__(self) -> int:
        return self.begun_ns + min(self.most_ns, self.times * (time.perf_counter_ns() - self.begun_ns))


@pytest.mark.processes
def test_it_ends_as_the_run_that_was_recorded(tape: Path) -> None:
    folder = replay.play(tape, PLAYED, clock=Clock(16))
    was, now = RunFolder.open(OWN), RunFolder.open(PLAYED)
    assert now.status().state == "done" and now.document["recorded"]["run"] == OWN
    before, after = was.read("requests").sort_by("due_ns"), now.read("requests").sort_by("due_ns")
    assert after.num_rows == before.num_rows
    gaps = np.diff(before["due_ns"].to_numpy()) - np.diff(after["due_ns"].to_numpy())
    assert np.abs(gaps).max() <= 1_000  # its timing is the recording's, to a microsecond
    assert [e["kind"] for e in now.events()] == [e["kind"] for e in was.events()]
    figures = results.document(folder)["cells"][0]["summary"]
    assert figures["throughput_rps"] == pytest.approx(
        results.document(was)["cells"][0]["summary"]["throughput_rps"], rel=1e-5
    )
    assert "recorded" in {problem["code"] for problem in results.document(folder)["problems"]}


@pytest.mark.processes
def test_it_grows_while_it_plays_and_can_be_watched_and_stopped(tape: Path) -> None:
    player = threading.Thread(target=replay.play, args=(tape, PLAYED), kwargs={"clock": Clock(8, most_s=4.0)})
    player.start()
    until(lambda: any(info.run_id == PLAYED for info in runs()), "the replay to begin")
    folder = RunFolder.open(PLAYED)
    until(lambda: Live(folder).update().seconds > 1, "a second to show")
    half = folder.read("requests").num_rows
    assert 0 < half < RunFolder.open(OWN).read("requests").num_rows
    assert folder.status().active and 0 < (folder.status().progress or 0) < 1
    control.send(PLAYED, {"stop": True})
    player.join(60)
    assert not player.is_alive()
    assert folder.status().state == "cancelled" and "stopped by the user" in folder.status().message


def test_it_waits_while_a_run_measures(tape: Path) -> None:
    with MeasureLock("a-real-run") as lock:
        lock.acquire(lambda place, holder: None)
        player = threading.Thread(target=replay.play, args=(tape, PLAYED))
        player.start()
        until(lambda: any(info.state == "queued" for info in runs()), "the replay to queue")
        until(lambda: "behind a-real-run" in RunFolder.open(PLAYED).status().phase, "the replay to say behind whom")
        control.send(PLAYED, {"stop": True})
        player.join(60)
    assert RunFolder.open(PLAYED).status().state == "cancelled"
    assert RunFolder.open(PLAYED).read("requests").num_rows == 0


def test_what_was_thinned_is_looked_at_and_neither_played_nor_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    name, manifest = next((n, m) for n, m in cassette.shipped().items() if m.requests_one_in > 1)
    with pytest.raises(InputError, match="would show a load that never was"):
        replay.play(cassette.find(name), PLAYED)
    assert runs() == []
    document = results.document(RunFolder.open(manifest.run))
    with pytest.raises(InputError, match="too few to compare"):
        sides.side(sides.Name(manifest.run), document)
