"""Following a run: what was read before stays, in few pieces however often one looks."""

import pyarrow as pa

from lab.measure.records import TELEMETRY
from lab.run import catalogue
from lab.run.live import MOST_PIECES, _longer, _memory, _models
from lab.run.readings import Readings


def test_a_table_that_grew_by_many_looks_is_the_same_in_few_pieces() -> None:
    # 600 looks of ten minutes made 600 pieces, and a look at the end cost 135 ms instead of 7.
    table = pa.table({"t_ns": pa.array([], pa.int64()), "field": pa.array([], pa.string())})
    for second in range(600):
        table = _longer(table, pa.table({"t_ns": [second, second], "field": ["queue_ns", str(second)]}))
        assert table.column(0).num_chunks <= MOST_PIECES
    assert table["t_ns"].to_pylist() == [second for second in range(600) for _ in range(2)]
    assert table["field"].to_pylist()[::2] == ["queue_ns"] * 600
    assert table["field"].to_pylist()[1::2] == [str(second) for second in range(600)]


def test_a_model_that_an_earlier_run_left_loaded_is_named_as_no_part_of_this_one() -> None:
    subjects = ["model:digits", "model:digits_2_terse", "model:llm", "server", "host"]
    rows = [{"t_ns": 5, "subject": s, "field": "memory_bytes", "value": 2.0**20, "reason": None} for s in subjects]
    readings = Readings("subject")
    readings.add(pa.Table.from_pylist(rows, schema=TELEMETRY))
    starts = [{"model": {"name": "digits"}}]
    own = _models(catalogue.experiment("batching"), starts, [])
    named = ["model:digits", "model:digits_2_terse", "model:llm (no part of this run)", "server"]
    assert sorted(_memory(readings, 0, 1, own)) == named
    moved = [{"kind": "change", "field": "model", "to": {"name": "llm"}}]
    assert "model:llm" in _memory(readings, 0, 1, _models(catalogue.experiment("batching"), starts, moved))
    fleet = catalogue.experiment("multi_model")  # which loads others than its blocks name
    assert "model:llm" in _memory(readings, 0, 1, _models(fleet, starts, []))
