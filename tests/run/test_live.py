"""Following a run: what was read before stays, in few pieces however often one looks."""

import pyarrow as pa

from lab.run.live import MOST_PIECES, _longer


def test_a_table_that_grew_by_many_looks_is_the_same_in_few_pieces() -> None:
    # 600 looks of ten minutes made 600 pieces, and a look at the end cost 135 ms instead of 7.
    table = pa.table({"t_ns": pa.array([], pa.int64()), "field": pa.array([], pa.string())})
    for second in range(600):
        table = _longer(table, pa.table({"t_ns": [second, second], "field": ["queue_ns", str(second)]}))
        assert table.column(0).num_chunks <= MOST_PIECES
    assert table["t_ns"].to_pylist() == [second for second in range(600) for _ in range(2)]
    assert table["field"].to_pylist()[::2] == ["queue_ns"] * 600
    assert table["field"].to_pylist()[1::2] == [str(second) for second in range(600)]
