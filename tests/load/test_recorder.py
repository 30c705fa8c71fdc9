from pathlib import Path

import numpy as np

from lab.load.recorder import NEVER_SENT, Recorder
from lab.measure.records import ERROR, OK, REQUESTS, TIMEOUT
from lab.stream import read_stream


def test_rows_come_back_as_they_were_added(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows")
    recorder.begin(3)
    recorder.add(0, 10, 11, 12, OK, None)
    recorder.add(2, 20, NEVER_SENT, 30, TIMEOUT, "never sent")
    recorder.add(1, 15, 16, 31, ERROR, "INTERNAL: é")
    recorder.close()
    assert read_stream(tmp_path / "r.arrows", REQUESTS).to_pylist() == [
        {"block": 3, "request": 0, "due_ns": 10, "sent_ns": 11, "done_ns": 12, "outcome": 0, "detail": None},
        {"block": 3, "request": 2, "due_ns": 20, "sent_ns": None, "done_ns": 30, "outcome": 2, "detail": "never sent"},
        {"block": 3, "request": 1, "due_ns": 15, "sent_ns": 16, "done_ns": 31, "outcome": 5, "detail": "INTERNAL: é"},
    ]


def test_more_rows_than_fit_are_written_on_the_way(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows", capacity=100)
    for i in range(250):
        recorder.add(i, i, i, i + 5, OK, f"row {i}" if i % 60 == 0 else None)
    assert len(read_stream(tmp_path / "r.arrows", REQUESTS)) == 200
    recorder.close()
    table = read_stream(tmp_path / "r.arrows", REQUESTS)
    assert np.array_equal(table["request"].to_numpy(), np.arange(250))
    details = {row: text for row, text in enumerate(table["detail"].to_pylist()) if text is not None}
    assert details == {row: f"row {row}" for row in (0, 60, 120, 180, 240)}


def test_flushed_rows_are_not_changed_by_later_ones(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows", capacity=10)
    recorder.add(1, 1, 1, 1, OK, None)
    recorder.flush()
    recorder.add(2, 2, 2, 2, OK, None)
    recorder.flush()
    assert read_stream(tmp_path / "r.arrows", REQUESTS)["request"].to_pylist() == [1, 2]


def test_counts_are_of_the_block_and_its_flushed_rows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows")
    recorder.begin(0)
    recorder.add(0, 1, 1, 1, OK, None)
    recorder.add(1, 1, NEVER_SENT, 1, TIMEOUT, "x")
    assert recorder.counts() == (0, {})
    recorder.flush()
    assert recorder.counts() == (1, {"ok": 1, "timeout": 1})
    recorder.begin(1)
    assert recorder.counts() == (0, {})
