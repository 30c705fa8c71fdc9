"""Parts that are whole count, whatever else lies there."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.batch.parts import ERROR, Parts, check
from lab.errors import InputError, RunError

SCHEMA = pa.schema([("row", pa.int64()), ("id", pa.string()), ("answer", pa.list_(pa.float32()))])
JOB = {"input": "abc", "model": "m"}


def part(first, answers):
    rows = [
        {"row": first + i, "id": f"r{first + i}", "answer": answer, ERROR: "no" if answer is None else None}
        for i, answer in enumerate(answers)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA.append(pa.field(ERROR, pa.string())))


def whole(out, job=JOB, **held):
    kept = Parts(out, job, SCHEMA)
    with kept.held(**{"overwrite": False, **held}) as done:
        assert not done
        for first, answers in ((kept.rows_done(), [[0.5], None]), (kept.rows_done() + 2, [[1.0, 2.0]])):
            kept.add(part(first, answers))
        return kept.assemble({})


def test_the_parts_become_the_output_and_go(tmp_path):
    out = tmp_path / "out.jsonl"
    assert whole(out) == (3, 1)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"row": 0, "id": "r0", "answer": [0.5]},
        {"row": 1, "id": "r1", "answer": None},
        {"row": 2, "id": "r2", "answer": [1.0, 2.0]},
    ]
    errors = (tmp_path / "out.jsonl.errors.jsonl").read_text()
    assert json.loads(errors) == {"row": 1, "id": "r1", "error": "no"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.jsonl",
        "out.jsonl.errors.jsonl",
        "out.jsonl.job.json",
    ]


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.jsonl"])
def test_a_job_that_was_cut_gives_the_same_bytes(tmp_path, name):
    cut, uncut = tmp_path / "cut" / name, tmp_path / "uncut" / name
    first = Parts(cut, JOB, SCHEMA)
    with first.held(overwrite=False):
        first.add(part(0, [[0.5], None]))
    (cut.parent / f"{name}.parts" / "00000001.arrow.new").write_bytes(b"half a part")
    (cut.parent / f"{name}.new").write_bytes(b"half an output")
    again = Parts(cut, JOB, SCHEMA)
    with again.held(overwrite=False) as done:
        assert not done
        assert again.rows_done() == 2
        again.add(part(2, [[1.0, 2.0]]))
        assert again.assemble({}) == (3, 1)
    whole(uncut)
    assert cut.read_bytes() == uncut.read_bytes()


def test_what_parquet_holds(tmp_path):
    whole(tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.column("answer").to_pylist() == [[0.5], None, [1.0, 2.0]]


def test_an_equal_job_is_done_and_another_is_refused(tmp_path):
    out = tmp_path / "out.csv"
    whole(out)
    with Parts(out, JOB, SCHEMA).held(overwrite=False) as done:
        assert done
    with pytest.raises(InputError, match="exists, by another job"):
        whole(out, {**JOB, "model": "n"})
    assert whole(out, {**JOB, "model": "n"}, overwrite=True) == (3, 1)


def test_half_of_another_job_is_named(tmp_path):
    out = tmp_path / "out.csv"
    half = Parts(out, JOB, SCHEMA)
    with half.held(overwrite=False):
        half.add(part(0, [[0.5]]))
    with pytest.raises(InputError, match="half of another job, which differs in input"):
        whole(out, {**JOB, "input": "abd"})


def test_two_jobs_do_not_write_one_output(tmp_path):
    out = tmp_path / "out.csv"
    with (
        Parts(out, JOB, SCHEMA).held(overwrite=False),
        pytest.raises(RunError, match="another batch job writes it now"),
    ):
        whole(out)


def test_an_output_that_cannot_be_written_is_named_as_it_was_given(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.jsonl").mkdir()
    for out in (tmp_path / "file" / "out.jsonl", tmp_path / "folder.jsonl", tmp_path / f"{'x' * 246}.jsonl"):
        with (
            pytest.raises(InputError, match=f"--out '{out}': .*; allowed: a file that can be written"),
            Parts(out, JOB, SCHEMA).held(overwrite=True),
        ):
            pass


def test_an_output_that_was_changed_since_is_not_called_done(tmp_path):
    out = tmp_path / "out.jsonl"
    whole(out)
    out.write_bytes(out.read_bytes()[:-20])
    with pytest.raises(InputError, match="was changed since its job wrote it; allowed: another name, or --overwrite"):
        whole(out)
    assert whole(out, overwrite=True) == (3, 1)


def test_a_lock_whose_name_is_gone_locks_nothing(tmp_path, monkeypatch):
    """Opened just before the job that held it ended and took the name away."""
    out = tmp_path / "out.jsonl"
    opened = Parts._opened

    def too_early(self, lock):
        file = opened(self, lock)
        lock.unlink()
        return file

    monkeypatch.setattr(Parts, "_opened", too_early)
    with pytest.raises(RunError, match="another batch job writes it now"):
        whole(out)


def test_the_input_is_there_once_and_is_nothing_that_the_job_writes(tmp_path):
    pipe, folder, errors = tmp_path / "pipe.jsonl", tmp_path / "folder.csv", tmp_path / "out.jsonl.errors.jsonl"
    os.mkfifo(pipe)
    folder.mkdir()
    errors.touch()
    link = tmp_path / "link.jsonl"
    link.symlink_to(errors)
    out = tmp_path / "out.jsonl"
    for source, said in (
        (pipe, "is no file that can be read twice"),
        (folder, "is no file that can be read twice"),
        (tmp_path / "none.jsonl", "no such file"),
        (errors, "is the input, and would be written over"),
        (link, "is the input, and would be written over"),
        (tmp_path / "in.jsonl.gz", "no such file"),
    ):
        with pytest.raises(InputError, match=said):
            check(source, out)
    (tmp_path / "in.jsonl.gz").touch()
    with pytest.raises(InputError, match=r"a file ending in '.gz'; allowed: \.jsonl, \.ndjson"):
        check(tmp_path / "in.jsonl.gz", out)
    check(errors, tmp_path / "again.jsonl")
