from pathlib import Path

import numpy as np

from lab.load.recorder import LONGEST_DETAIL, NEVER_SENT, Recorder
from lab.load.targets import Generated
from lab.measure.records import ERROR, OK, REQUESTS, TIMEOUT, TRUNCATED, Requests
from lab.stream import read_stream


def test_rows_come_back_as_they_were_added(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows")
    recorder.begin(3)
    recorder.add(0, 10, 11, 12, OK, None)
    recorder.add(2, 20, NEVER_SENT, 30, TIMEOUT, "never sent")
    recorder.add(1, 15, 16, 31, ERROR, "INTERNAL: é")
    recorder.close()
    rows = read_stream(tmp_path / "r.arrows", REQUESTS).to_pylist()
    assert [{name: row[name] for name in list(row)[:7]} for row in rows] == [
        {"block": 3, "request": 0, "due_ns": 10, "sent_ns": 11, "done_ns": 12, "outcome": 0, "detail": None},
        {"block": 3, "request": 2, "due_ns": 20, "sent_ns": None, "done_ns": 30, "outcome": 2, "detail": "never sent"},
        {"block": 3, "request": 1, "due_ns": 15, "sent_ns": 16, "done_ns": 31, "outcome": 5, "detail": "INTERNAL: é"},
    ]
    assert {row[name] for row in rows for name in list(row)[7:]} == {None}  # nothing was generated


def test_a_page_of_megabytes_is_no_reason_to_keep_one(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows")
    recorder.add(0, 1, 2, 3, ERROR, "HTTP 500: " + "x" * 10_000_000)
    recorder.close()
    (row,) = read_stream(tmp_path / "r.arrows", REQUESTS).to_pylist()
    assert row["detail"].startswith("HTTP 500: xxx") and len(row["detail"]) == LONGEST_DETAIL


def test_what_was_generated_stands_beside_its_request(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows")
    recorder.begin(0)
    recorder.add(0, 1, 2, 90, OK, None, Generated(7, 5, [30, 60, 90], [2, 1, 2], 1))
    recorder.add(1, 1, 2, 95, TIMEOUT, "late")
    recorder.add(2, 1, 2, 96, TRUNCATED, "broke off", Generated(None, 3, [40, 50], None))
    recorder.add(3, 1, 2, 97, ERROR, "no", Generated())
    assert recorder.output_tokens == 0
    recorder.flush()
    assert recorder.output_tokens == 8
    recorder.add(4, 1, 2, 98, OK, None)
    recorder.begin(1)
    assert recorder.output_tokens == 0
    recorder.close()
    rows = read_stream(tmp_path / "r.arrows", REQUESTS).to_pylist()
    assert [tuple(row.values())[7:] for row in rows] == [
        (7, 5, [30, 60, 90], [2, 1, 2], 1),
        (None,) * 5,
        (None, 3, [40, 50], None, 0),
        (None, None, [], [], 0),
        (None,) * 5,
    ]


def test_what_a_prefix_cache_had_is_summed_over_the_answers_that_say(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows")
    recorder.begin(0)
    recorder.add(0, 1, 2, 90, OK, None, Generated(40, 1, [30], [1], cached_tokens=32))
    recorder.add(1, 1, 2, 90, OK, None, Generated(10, 1, [30], [1], cached_tokens=0))
    recorder.add(2, 1, 2, 90, OK, None, Generated(70, 1, [30], [1]))
    recorder.flush()
    assert (recorder.cached_tokens, recorder.prompt_tokens) == (32, 50)
    recorder.begin(1)
    assert (recorder.cached_tokens, recorder.prompt_tokens) == (0, 0)
    recorder.close()


def test_streams_are_read_back_by_request(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.arrows")
    recorder.add(0, 1, 2, 90, OK, None, Generated(7, 5, [30, 60], None))
    recorder.add(1, 1, NEVER_SENT, 95, TIMEOUT, "late")
    recorder.add(2, 1, 2, 96, OK, None, Generated(7, 3, [40, 50], [1, 2]))
    recorder.close()
    streams = Requests.from_table(read_stream(tmp_path / "r.arrows", REQUESTS)).streams
    assert streams is not None
    assert list(streams.first) == [0, 2, 2, 4]
    assert list(streams.t_ns) == [30, 60, 40, 50]
    assert list(streams.tokens) == [-1, -1, 1, 2]  # -1: the server gave a total only
    assert list(streams.output_tokens) == [5, -1, 3]


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
