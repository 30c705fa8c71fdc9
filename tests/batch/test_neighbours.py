import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.__main__ import main
from lab.batch import neighbours, parts
from lab.batch.neighbours import Job, nearest
from lab.errors import InputError


def scaled(rows, width, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def brute(vectors, top):
    """In float64, all pairs at once, sorted whole."""
    exact = vectors.astype(np.float64)
    similar = exact @ exact.T
    np.fill_diagonal(similar, -np.inf)
    order = np.argsort(-similar, axis=1, kind="stable")[:, :top]
    return order, np.take_along_axis(similar, order, axis=1)


def test_they_are_those_of_brute_force_across_blocks(monkeypatch):
    monkeypatch.setattr(neighbours, "CANDIDATES", 64)
    vectors = scaled(300, 16)
    order, similar = brute(vectors, 7)
    rows, found = nearest(vectors, 0, 300, 7)
    assert np.allclose(found, similar, atol=1e-6)
    apart = np.diff(similar, axis=1).max(axis=1) < -1e-5  # no two so alike that rounding may swap them
    assert apart.mean() > 0.5
    assert (rows[apart] == order[apart]).all()
    some_rows, some = nearest(vectors, 100, 150, 7)
    assert np.allclose(some, similar[100:150], atol=1e-6) and (some_rows == rows[100:150]).mean() > 0.99


def test_of_equal_ones_the_earlier_rows_come_first(monkeypatch):
    monkeypatch.setattr(neighbours, "CANDIDATES", 4)
    vectors = np.zeros((10, 2), np.float32)
    vectors[:, 0] = 1  # all alike
    vectors[9] = (0, 1)
    rows, similar = nearest(vectors, 0, 10, 3)
    assert rows[0].tolist() == [1, 2, 3] and rows[2].tolist() == [0, 1, 3] and rows[8].tolist() == [0, 1, 2]
    assert similar[0].tolist() == [1, 1, 1]
    assert rows[9].tolist() == [0, 1, 2] and similar[9].tolist() == [0, 0, 0]


def test_opposite_and_missing_vectors():
    vectors = np.array([[1, 0], [-1, 0], [0, 0], [0.6, 0.8]], np.float32)
    rows, similar = nearest(vectors, 0, 4, 3)
    assert rows.tolist() == [[3, 1, -1], [3, 0, -1], [-1, -1, -1], [0, 1, -1]]
    assert np.allclose(similar[0][:2], [0.6, -1]) and np.allclose(similar[1][:2], [-0.6, -1])


def written(path, vectors, ids):
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": ids, "answer": pa.array(vectors, pa.list_(pa.float32()))}), path)
    elif path.suffix == ".csv":
        rows = [f'{id},"{json.dumps(v) if v is not None else ""}"\n' for id, v in zip(ids, vectors, strict=True)]
        path.write_text("id,answer\n" + "".join(rows))
    else:
        path.write_text("".join(json.dumps({"id": i, "answer": v}) + "\n" for i, v in zip(ids, vectors, strict=True)))
    return path


@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl", "in.csv"])
def test_a_file_of_vectors_becomes_a_file_of_neighbours(tmp_path, name):
    vectors = [[3.0, 0.0], [0.0, 2.0], None, [3.0, 4.0], [0.0, 0.0]]
    source = written(tmp_path / name, vectors, ["a", "b", "c", "d", "e"])
    result = neighbours.run(Job(source, tmp_path / "out.jsonl", top=2), lambda progress: None)
    assert (result.rows, result.errors) == (5, 2)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["neighbour_ids"] for row in rows] == [["d", "b"], ["d", "a"], None, ["b", "a"], None]
    assert rows[0]["neighbour_rows"] == [3, 1]
    assert np.allclose(rows[3]["similarities"], [0.8, 0.6])
    errors = [json.loads(line) for line in (tmp_path / "out.jsonl.errors.jsonl").read_text().splitlines()]
    assert [(error["row"], error["id"]) for error in errors] == [(2, "c"), (4, "e")]
    assert neighbours.run(Job(source, tmp_path / "out.jsonl", top=2), lambda progress: None).was_done


def test_a_job_that_was_cut_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "QUERIES", 32)
    source = written(tmp_path / "in.parquet", scaled(200, 8).tolist(), [f"i{n}" for n in range(200)])
    neighbours.run(Job(source, tmp_path / "straight.parquet"), lambda progress: None)
    add, count = parts.Parts.add, iter(range(100))

    def cut(self, part):
        if next(count) == 3:
            raise KeyboardInterrupt
        add(self, part)

    monkeypatch.setattr(parts.Parts, "add", cut)
    with pytest.raises(KeyboardInterrupt):
        neighbours.run(Job(source, tmp_path / "out.parquet"), lambda progress: None)
    monkeypatch.setattr(parts.Parts, "add", add)
    assert neighbours.run(Job(source, tmp_path / "out.parquet"), lambda progress: None).asked == 200 - 3 * 32
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "straight.parquet").read_bytes()
    assert not (tmp_path / "out.parquet.parts").exists()


def test_vectors_of_unlike_width_and_a_top_of_nothing(tmp_path):
    source = written(tmp_path / "in.jsonl", [[1.0, 0.0], [1.0], [0.0, 1.0]], ["a", "b", "c"])
    assert neighbours.run(Job(source, tmp_path / "out.jsonl"), lambda progress: None).errors == 1
    (error,) = (tmp_path / "out.jsonl.errors.jsonl").read_text().splitlines()
    assert json.loads(error)["error"] == "1 numbers; allowed: 2, as in the first row"
    with pytest.raises(InputError, match="--top 0; allowed: 1 to"):
        neighbours.run(Job(source, tmp_path / "x.jsonl", top=0), lambda progress: None)


def test_an_empty_file(tmp_path):
    (tmp_path / "in.jsonl").touch()
    assert neighbours.run(Job(tmp_path / "in.jsonl", tmp_path / "out.jsonl"), lambda progress: None).rows == 0


@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl", "in.csv"])
@pytest.mark.parametrize("column", ["id", "vector"])
def test_another_column_is_refused_and_leaves_no_job_behind(tmp_path, name, column):
    source = written(tmp_path / name, [[1.0, 0.0], [0.0, 1.0]], ["a", "b"])
    with pytest.raises(InputError, match=column):
        neighbours.run(Job(source, tmp_path / "out.jsonl", column=column), lambda progress: None)
    assert neighbours.run(Job(source, tmp_path / "out.jsonl"), lambda progress: None).errors == 0


def test_one_row_is_one_row(tmp_path, capsys):
    source = written(tmp_path / "in.jsonl", [[1.0, 0.0]], ["a"])
    main(["neighbours", "--in", str(source), "--out", str(tmp_path / "out.jsonl")])
    assert "out.jsonl: 1 row, 1 with neighbours" in capsys.readouterr().out


def test_a_number_of_hundreds_of_digits_is_its_rows_error(tmp_path):
    source = written(tmp_path / "in.jsonl", [[1.0, 0.0], [10**400, 0], [1e300, 1e300], [0.0, 1.0]], list("abcd"))
    assert neighbours.run(Job(source, tmp_path / "out.jsonl"), lambda progress: None).errors == 2
    errors = [json.loads(line) for line in (tmp_path / "out.jsonl.errors.jsonl").read_text().splitlines()]
    assert [error["id"] for error in errors] == ["b", "c"]
