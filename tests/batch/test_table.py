import csv
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.batch import table
from lab.batch.table import Row, rows
from lab.errors import InputError


def test_lines_that_are_no_rows_are_rows_with_an_error(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'{"id": 1, "text": "one"}\n\n{"text": 2}\n{"text": "thr\n[1]\n{"id": "e", "txt": ""}\n\xff\n{"text": "last"}'
    )
    one, two, broken, listed, missing, bytes_, last = rows(path, "text", None)
    assert (one, two, last) == (Row("one", "1"), Row(2), Row("last"))
    assert broken.error == "line 4: not JSON: Invalid control character at"
    assert listed.error == "line 5: list; allowed: an object with the field 'text'"
    assert (missing.id, missing.error) == ("e", "line 6: no field 'text'; did you mean \"txt\"?")
    assert bytes_.error.startswith("line 7: not JSON")


def test_a_row_of_csv_that_is_broken_costs_itself_only(tmp_path):
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,text\na,"one, two"\nb\n\nc,"three\nlines"\nd,\xff\n\xff,last\n')
    found = list(rows(path, "text", None))
    assert [(row.id, row.value) for row in found] == [
        ("a", "one, two"),
        (None, None),
        ("c", "three\nlines"),
        ("d", None),
        (r"'\udcff'", "last"),
    ]
    assert [row.error for row in found] == [None, "line 3: 1 cells; allowed: 2", None, "line 7: not UTF-8", None]


def test_parquet_is_read_by_its_columns(tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"key": [7, 8], "other": [0, 0], "text": ["a", None]}), path)
    assert list(rows(path, "text", "key")) == [Row("a", "7"), Row(None, "8")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("in.csv", b"id,txt\n1,2\n", "no column 'text'; did you mean \"txt\"?; it has id, txt"),
        ("in.parquet", b"", "no Parquet"),
        ("in.parquet", b"PAR1 and not more", "no Parquet"),
        ("in.txt", b"", "allowed: .jsonl, .ndjson, .csv, .parquet"),
    ],
)
def test_what_concerns_all_rows_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        list(rows(tmp_path / name, "text", None))
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
def test_an_empty_file_has_no_rows(tmp_path, name):
    (tmp_path / name).touch()
    assert list(rows(tmp_path / name, "text", None)) == []


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("in.jsonl", b"", 0),
        ("in.jsonl", b"{}", 1),
        ("in.jsonl", b"{}\n{}\n", 2),
        ("in.jsonl", b"{}\n{}", 2),
        ("in.csv", b"", 0),
        ("in.csv", b"text\na\nb", 2),
        ("in.parquet", b"none", None),
    ],
)
def test_how_many_rows_it_seems_to_have_and_its_hash(tmp_path, name, content, count):
    (tmp_path / name).write_bytes(content)
    assert table.fingerprint(tmp_path / name) == (hashlib.sha256(content).hexdigest(), count)


def test_parquet_says_how_many_rows_it_has(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), tmp_path / "in.parquet")
    assert table.fingerprint(tmp_path / "in.parquet")[1] == 3


def test_a_line_that_is_too_long_is_skipped_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "LARGEST_ROW", 32)
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"text": "x" * 200}) + "\n" + json.dumps({"text": "short"}) + "\n")
    long, short = rows(path, "text", None)
    assert long.error.startswith("line 1: longer than")
    assert short == Row("short")


def test_half_of_a_surrogate_pair_is_no_text():
    assert not table.is_text("\ud800")
    assert table.is_text("\U0001f600")


TEXTS = [
    *("plain", "", " blanks ", "a\rb", "a\nb", "a\r\nb", 'he said "yes", twice'),
    *("\xe9 \U0001f600 \u2028", "\ufeffmarked", "nul\0"),
]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_what_is_written_is_read_back_as_it_was(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    writer = table.writer(path, ending, schema)
    writer.write(pa.table({"id": TEXTS, "text": TEXTS}, schema=schema))
    writer.close()
    assert list(rows(path, "text", None)) == [Row(text, text) for text in TEXTS]
    if ending == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            assert [row["text"] for row in csv.DictReader(file)] == TEXTS


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_may_end_as_on_windows_and_files_begin_with_a_mark(tmp_path, mark, end):
    lines, cells = tmp_path / "in.jsonl", tmp_path / "in.csv"
    lines.write_bytes(mark + end.join([b'{"id": "a", "text": "one"}', b'{"id": "b", "text": "two"}', b""]))
    cells.write_bytes(mark + end.join([b"id,text", b"a,one", b'b,"two"', b""]))
    assert list(rows(lines, "text", None)) == list(rows(cells, "text", None)) == [Row("one", "a"), Row("two", "b")]


def test_an_id_is_as_the_file_has_it(tmp_path):
    path = tmp_path / "in.jsonl"
    ids = ["7", "0.5", "true", "null", '["é", 1]', '{"a": null}', '"\\ud800"']
    path.write_text("".join(f'{{"id": {id}, "text": ""}}\n' for id in ids))
    assert [row.id for row in rows(path, "text", None)] == [
        "7", "0.5", "true", None, '["é", 1]', '{"a": null}', "'\\ud800'",
    ]  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_parquet_may_be_compressed_nested_and_of_categories(tmp_path, codec):
    path = tmp_path / "in.parquet"
    found = pa.table({"id": [1, None], "text": pa.array(["a", None]).dictionary_encode(), "features": [[1.0], None]})
    pq.write_table(found, path, compression=codec)
    assert list(rows(path, "text", None)) == [Row("a", "1"), Row(None)]
    assert [row.value for row in rows(path, "features", None)] == [[1.0], None]
