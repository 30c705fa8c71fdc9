"""Whole jobs against a stand-in for Triton, on the inputs and accidents that files and nights bring."""

import json
import resource
import struct
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.__main__ import main
from lab.batch import job, parts
from lab.commands import batch as command
from lab.errors import InputError, RunError
from lab.spec import Batching, ModelSpec

TREES = ModelSpec(name="trees", batching=Batching(max_batch_size=4))


class Upstream:
    """A model whose probability is a row's first number."""

    def __init__(self, url):
        pass

    async def open(self):
        pass

    async def close(self):
        pass

    async def infer(self, model, tensors, request_id):
        rows = tensors["FEATURES"]
        return SimpleNamespace(raw_output_contents=[b"".join(struct.pack("<f", row[0]) for row in rows)])


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Serves TREES until a test says otherwise: `stand_in.fits` answers whether it still does."""
    told = SimpleNamespace(fits=lambda: True)

    @contextmanager
    def serving(spec, place):
        yield SimpleNamespace(grpc_url="127.0.0.1:1", alive=lambda: True)

    monkeypatch.setattr(job, "serving", serving)
    monkeypatch.setattr(job, "TritonUpstream", Upstream)
    monkeypatch.setattr(job, "serves", lambda server, spec: told.fits())
    monkeypatch.setattr(job.weights, "prepare", lambda spec: None)
    monkeypatch.setattr(job, "OTHER_ROWS", 3)
    return told


def features(first):
    return [first] + [0.0] * 29


def lines(*rows):
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def ran(source, out=None, **wishes):
    out = out or source.with_name("out.jsonl")
    return job.run(job.Job(TREES, source, out, **wishes), lambda progress: None)


def answers(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(folder, *rows, name="in.jsonl"):
    path = folder / name
    path.write_text(lines(*rows))
    return path


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.parquet"])
def test_an_empty_file_has_an_empty_answer(tmp_path, name, out):
    source = tmp_path / name
    source.touch()
    result = ran(source, tmp_path / out)
    assert (result.rows, result.errors, result.asked) == (0, 0, 0)
    assert (tmp_path / out).exists()
    assert not (tmp_path / f"{out}.errors.jsonl").exists()


def test_one_row(tmp_path):
    source = written(tmp_path, {"id": "a", "features": features(0.5)})
    assert ran(source).rows == 1
    assert answers(tmp_path / "out.jsonl") == [{"row": 0, "id": "a", "answer": 0.5}]


def test_a_row_of_5_mb_that_is_wrong_costs_itself_only(tmp_path):
    long = json.dumps({"id": "long", "features": ["x" * (5 * 2**20)]})
    assert len(long) > 5_000_000
    source = written(tmp_path, {"features": features(1.0)}, long, {"features": features(2.0)})
    result = ran(source)
    assert (result.rows, result.errors) == (3, 1)
    (error,) = answers(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["row"], error["id"]) == (1, "long") and "allowed: 30 numbers" in error["error"]
    assert len(error["error"]) < 200


def test_broken_json_on_line_7_is_row_7s_error(tmp_path):
    rows = [{"features": features(float(i))} for i in range(9)]
    source = written(tmp_path, *rows[:6], '{"features": [1, 2', *rows[7:])
    result = ran(source)
    assert (result.rows, result.errors) == (9, 1)
    (error,) = answers(tmp_path / "out.jsonl.errors.jsonl")
    assert error["row"] == 6 and error["error"].startswith("line 7: not JSON")
    assert [row["answer"] for row in answers(tmp_path / "out.jsonl")] == [0, 1, 2, 3, 4, 5, None, 7, 8]


def test_a_missing_column_is_refused_for_a_table_and_named_for_lines(tmp_path):
    table = tmp_path / "in.csv"
    table.write_text("id,featurs\n1,2\n")
    with pytest.raises(InputError, match="no column 'features'; did you mean"):
        ran(table)
    assert not (tmp_path / "out.jsonl").exists()
    source = written(tmp_path, {"featurs": []}, {"features": features(0.5)})
    assert ran(source).errors == 1
    (error,) = answers(tmp_path / "out.jsonl.errors.jsonl")
    assert error["error"] == "line 1: no field 'features'; did you mean \"featurs\"?"


def test_ids_that_stand_for_two_rows_are_told_and_kept(tmp_path):
    rows = [{"id": id, "features": features(float(i))} for i, id in enumerate(["a", "b", "a", "c", "b", "a"])]
    result = ran(written(tmp_path, *rows))
    assert result.repeated_ids == 2 and result.repeated in ("a", "b")
    assert [(row["id"], row["answer"]) for row in answers(tmp_path / "out.jsonl")] == [
        ("a", 0.0), ("b", 1.0), ("a", 2.0), ("c", 3.0), ("b", 4.0), ("a", 5.0),
    ]  # fmt: skip


def test_an_output_that_is_not_a_jobs_own_is_left_alone(tmp_path):
    source = written(tmp_path, {"features": features(0.5)})
    out = tmp_path / "out.jsonl"
    out.write_text("somebody's\n")
    with pytest.raises(InputError, match="exists, by another job; allowed: another name, or --overwrite"):
        ran(source)
    assert out.read_text() == "somebody's\n"
    assert ran(source, overwrite=True).rows == 1
    assert ran(source).was_done


@contextmanager
def room_for(size_bytes):
    """No file may grow beyond that: the kernel's own refusal in the middle of a write, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [100, 1500])
def test_a_full_disk_ends_the_job_in_a_line_and_the_next_goes_on(tmp_path, room):
    rows = [{"id": f"{i:0>100}", "features": features(float(i))} for i in range(20)]
    source = written(tmp_path, *rows)
    straight, out = tmp_path / "straight.jsonl", tmp_path / "out.jsonl"
    ran(source, straight)
    assert straight.stat().st_size > 1500  # so that with room for the parts there is none for the output
    with room_for(room), pytest.raises(RunError, match="what was done stays, and the same command goes on"):
        ran(source, out)
    assert not out.exists()
    ran(source, out)
    assert out.read_bytes() == straight.read_bytes()


def test_a_model_that_was_reloaded_meanwhile_costs_its_shard(tmp_path, stand_in):
    source = written(tmp_path, *({"features": features(float(i))} for i in range(8)))
    ran(source, tmp_path / "straight.jsonl")
    checks = iter([True, False])
    stand_in.fits = lambda: next(checks)
    with pytest.raises(RunError, match=r"another configuration while rows 3 to 5 were asked; .* goes on with row 3"):
        ran(source)
    stand_in.fits = lambda: True
    assert ran(source).asked == 5
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


def test_an_input_that_changes_meanwhile_gets_no_answers_of_two(tmp_path, stand_in):
    rows = [{"features": features(float(i))} for i in range(8)]
    source = written(tmp_path, *rows)
    checks = iter(range(10))

    def fits():
        if next(checks) == 0:  # the first shard's answers are there
            source.write_text(source.read_text() + lines({"features": features(9.0)}))
        return True

    stand_in.fits = fits
    with pytest.raises(RunError, match="was changed while it was read"):
        ran(source)
    with pytest.raises(InputError, match="half of another job, which differs in input"):
        ran(source)
    assert ran(source, overwrite=True).rows == 9


def test_a_wish_that_the_model_cannot_have_is_refused_before_anything_is_loaded(tmp_path, capsys):
    source = written(tmp_path, {"features": features(0.5)})
    assert main(["batch", "--model", "trees", "--chat", "--in", str(source), "--out", str(tmp_path / "x.jsonl")]) == 2
    assert capsys.readouterr().err == "error: --chat: trees writes no text; allowed: a language model\n"


def test_a_stop_is_told_what_stays(tmp_path, capsys):
    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.to_its_end(stopped)
    assert capsys.readouterr().err == "stopped; what was done stays, and the same command goes on\n"


def test_a_clock_that_is_set_back_changes_neither_rate_nor_output(tmp_path, monkeypatch):
    source = written(tmp_path, *({"features": features(float(i))} for i in range(8)))
    ran(source, tmp_path / "straight.jsonl")
    real, calls = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: real() - 3600 * next(calls))
    seen = []
    result = job.run(job.Job(TREES, source, tmp_path / "out.jsonl"), seen.append)
    assert 0 < result.seconds < 60
    assert all(progress.rate_rps is None or progress.rate_rps > 0 for progress in seen)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


def test_progress_is_a_bar_with_rate_and_time_left(monkeypatch, capsys):
    monkeypatch.setattr(command.sys.stderr, "isatty", lambda: True)
    command.Shown()(job.Progress(25, 100, 5.0))
    command.Shown()(job.Progress(7, None, None))
    first, second = capsys.readouterr().err.split("\r")[1:]
    assert first.startswith("[#####...............]  25 % 25 of 100 rows, 5.0 rows/s, 0:15 left")
    assert second.startswith("7 rows")


def test_what_a_killed_job_left_half_written_is_no_part(tmp_path, monkeypatch):
    source = written(tmp_path, *({"features": features(float(i))} for i in range(8)))
    ran(source, tmp_path / "straight.jsonl")
    add, count = parts.Parts.add, iter(range(10))

    def killed(self, part):
        if next(count) == 1:
            Path(self.scratch("00000001.arrow.new")).write_bytes(b"half")
            raise KeyboardInterrupt
        add(self, part)

    monkeypatch.setattr(parts.Parts, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        ran(source)
    monkeypatch.setattr(parts.Parts, "add", add)
    assert ran(source).asked == 5
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()
