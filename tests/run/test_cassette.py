"""A cassette gives back what was recorded, names nothing of the machine it is from, and one that is torn, newer or
hostile is one line."""

import gzip
import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.__main__ import main
from lab.errors import FolderError, InputError
from lab.measure.records import REQUESTS, Requests, Window
from lab.measure.summary import summarize
from lab.run import cassette, cassette_lines, cassette_record, results
from lab.run.cassette import SHIPPED
from lab.run.folder import RunFolder, runs
from lab.spec import Experiment, parse
from tests.show.synthetic import batching_run
from tests.show.synthetic_llm import load_run

BATCHING, LLM = "20261130-010101-batching-tape", "20261130-010601-load-tape"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.jsonl"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, lab_home: Path) -> Any:
    own = tmp_path_factory.mktemp("tapes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(own))
        batching_run(BATCHING, duration_s=1.0)
        load_run(LLM, 8.0)
        yield own


@pytest.fixture(scope="module")
def text(home: Path) -> str:
    return cassette_record.record(LLM)[0]


def kept(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_what_is_read_is_what_was_recorded_to_a_microsecond(home: Path, text: str, tmp_path: Path) -> None:
    found = cassette.read(kept(tmp_path, text))
    assert found.manifest.whole
    was, now = RunFolder.open(LLM).read("requests"), found.tables["requests"]
    assert now.schema.equals(REQUESTS, check_metadata=True) and now.num_rows == was.num_rows
    was, now = was.sort_by("due_ns"), now.sort_by("due_ns")
    for name in ("request", "outcome", "prompt_tokens", "output_tokens", "chunk_tokens"):
        assert now[name].to_pylist() == was[name].to_pylist(), name
    origin = was["due_ns"].to_numpy() - now["due_ns"].to_numpy()
    assert np.ptp(origin) <= 1_000
    for name in ("sent_ns", "done_ns"):
        assert np.abs(was[name].to_numpy() - now[name].to_numpy() - origin).max() <= 2_000, name
    for before, after, shift in zip(was["chunk_ns"].to_pylist(), now["chunk_ns"].to_pylist(), origin, strict=True):
        assert np.abs(np.array(before) - np.array(after) - shift).max() <= 100_000


def test_its_figures_are_the_whole_runs_whatever_was_thinned(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = results.document(RunFolder.open(BATCHING))
    text, manifest = cassette_record.record(BATCHING, 130_000)
    assert manifest.requests_one_in > 1
    assert any(f"1 in {manifest.requests_one_in} is kept" in told for told in manifest.thinned)
    path = kept(tmp_path, text)
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "elsewhere"))
    folder = cassette.unpacked(path, manifest)
    now = results.document(folder)
    assert now["verdict"]["text"] == was["verdict"]["text"]
    for before, after in zip(was["cells"], now["cells"], strict=True):
        for name in ("throughput_rps", "latency_p99_s", "goodput_rps", "latency_n"):
            assert after["summary"][name] == (
                None if before["summary"][name] is None else pytest.approx(before["summary"][name], rel=1e-5)
            )
        assert after["summary"]["notes"] == before["summary"]["notes"]
    assert now["problems"][0]["code"] == "recorded" and manifest.commit in now["problems"][0]["text"]
    share = folder.read("requests").num_rows / rows_of_cells(home)
    assert share == pytest.approx(1 / manifest.requests_one_in, rel=0.1)


def rows_of_cells(home: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(home))
        folder = RunFolder.open(BATCHING)
        cells = [e["block"] for e in folder.events() if e["kind"] == "block_start" and e["role"] == "cell"]
        return sum(len(Requests.from_table(folder.read("requests"), block=block)) for block in cells)


def test_an_unpacked_one_is_beside_the_runs_and_never_among_them(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "elsewhere"))
    path = kept(tmp_path, text)
    found = cassette.read(path)
    folder = cassette.unpacked(path, found.manifest)
    assert folder.status().state == "done" and runs() == []
    stamp = (folder.path / "run.json").stat().st_mtime_ns
    assert (cassette.unpacked(path, found.manifest).path / "run.json").stat().st_mtime_ns == stamp  # not done again
    for damage in ("unlink", "stale"):  # an interrupted one, and one of an older lab, are made anew
        mark = folder.path / cassette.MARK
        mark.unlink() if damage == "unlink" else mark.write_text("0")
        assert (cassette.unpacked(path, found.manifest).path / cassette.MARK).read_text() == found.manifest.sha256


def test_a_block_of_one_answer_is_read_as_it_was(home: Path) -> None:
    rows = RunFolder.open(LLM).read("requests").slice(0, 1)
    block, due_ns = rows["block"][0].as_py(), rows["due_ns"][0].as_py()
    line = cassette_lines.requests(rows, block, due_ns)
    read = cassette_lines.tables({"requests": [line], "server": [], "telemetry": [], "waits": []})["requests"]
    first = (np.array(rows["chunk_ns"][0].as_py()) - due_ns) / 1e3
    assert (np.array(read["chunk_ns"][0].as_py()) - read["due_ns"][0].as_py()) / 1e3 == pytest.approx(first, abs=51)


def test_a_place_that_cannot_be_written_is_a_mistake_in_the_input(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "no such folder" / "tape.jsonl"
    assert main(["cassette", "record", LLM, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert str(out) in said and "allowed: a file that can be written" in said and said.count("\n") == 1


# --- what comes with the lab ----------------------------------------------------------------------------------------


def test_there_is_one_for_every_experiment_with_a_page_and_one_that_plays() -> None:
    found = cassette.shipped()
    assert {manifest.experiment for manifest in found.values()} >= {
        *("batching", "kv_cache", "llm_batching", "quantization", "multi_model", "cold_start", "serverless"),
        *("patterns", "autoscaling", "canary", "blue_green", "search", "sweep", "factorial", "load", "lora"),
    }
    assert any(manifest.plays for manifest in found.values())
    assert [*found] == NAMES
    sizes = [(SHIPPED / f"{name}.jsonl").stat().st_size for name in found]
    assert max(sizes) <= cassette_record.LIMIT_BYTES and sum(sizes) < 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_each_opens_as_a_run_and_names_nothing_of_its_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    written = (SHIPPED / f"{name}.jsonl").read_text()
    for line in written.splitlines():
        for said in strings(json.loads(line)):
            assert not cassette_record.PATH.search(said), said
            assert not cassette_record.ADDRESS.search(said), said
    for secret in (platform.node(), platform.release()):
        assert len(secret) < 4 or secret not in written
    manifest = cassette.shipped()[name]
    folder = RunFolder.open(manifest.run)
    document = results.document(folder)
    assert folder.document["recorded"]["machine"] and (document["cells"] or document["cold"])
    parse(Experiment, folder.document["experiment"])
    assert "kernel" not in folder.document["environment"]
    if manifest.experiment == "load":  # its figures can be made again from its records
        (start,) = [e for e in folder.events() if e["kind"] == "block_start"]
        requests = Requests.from_table(folder.read("requests"))
        window = Window(start["start_ns"], start["measured_from_ns"], start["end_ns"])
        slo = parse(Experiment, folder.document["experiment"]).slo
        again = summarize(requests, window=window, planned=None, slo=slo)
        assert again.throughput_rps == pytest.approx(document["cells"][0]["summary"]["throughput_rps"], rel=0.01)
        assert again.latency_p50_s == pytest.approx(document["cells"][0]["summary"]["latency_p50_s"], rel=0.01)


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for part in parts for text in strings(part)]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("/home/ann/lab/x.py: no such file", "…/x.py: no such file"),
        ("see ~/lab/notes/a.md", "see …/a.md"),
        ("187 tok/s and/or req/s", "187 tok/s and/or req/s"),
        ("at 10.1.2.3:8001 it", "at … it"),
        ("openai/v1/models", "openai/v1/models"),
    ],
)
def test_paths_and_addresses_are_scrubbed_and_units_are_not(said: str, left: str) -> None:
    assert cassette_record.scrubbed({"x": [said]}) == {"x": [left]}


# --- hostile ----------------------------------------------------------------------------------------------------------


def resigned(text: str, change: Callable[[dict[str, Any], list[dict[str, Any]]], None]) -> str:
    """The cassette with a change to manifest and lines, and a checksum that fits it again."""
    first, *lines = [json.loads(line) for line in text.splitlines()]
    change(first, lines)
    body = "".join(json.dumps(line) + "\n" for line in lines)
    first |= {"lines": len(lines), "sha256": hashlib.sha256(body.encode()).hexdigest()}
    return json.dumps(first) + "\n" + body


def line_of(kind: str, lines: list[dict[str, Any]]) -> Any:
    return next(line[kind] for line in lines if kind in line)


def bomb(lines: list[dict[str, Any]]) -> None:
    """A few bytes that stand for 10^9 rows: half a million readings of two thousand counters."""
    line = {"of": "m", "t": [0] * 200_000, "missing": {}}
    line["fields"] = {f"f{n}": {"unit": 1, "v": {"all": 1}} for n in range(2_000)}
    lines.append({"server": line})


TRACES: dict[str, Any] = {"block": 0, "model": "llm", "request": [0, 1], "first": [5, 5], "after": [[1, 1]] * 6}

HOSTILE: dict[str, Callable[[dict[str, Any], list[dict[str, Any]]], None]] = {
    "a newer format": lambda first, lines: first.update(format=2),
    "a newer schema": lambda first, lines: first.update(schema_version="99"),
    "a path for an id": lambda first, lines: first.update(run="../../../etc/passwd"),
    "an absolute path": lambda first, lines: first.update(run="/etc/passwd"),
    "another run inside": lambda first, lines: line_of("run", lines).update(run="20261130-000000-other-0000"),
    "a manifest with more": lambda first, lines: first.update(command="rm"),
    "a count of no kind": lambda first, lines: first.update(requests_one_in=True),
    "a line of no kind": lambda first, lines: lines.append({"file": "../../x"}),
    "two kinds in a line": lambda first, lines: lines.append({"event": {}, "run": {}}),
    "no run": lambda first, lines: lines.pop(0),
    "an experiment of no kind": lambda first, lines: line_of("run", lines).update(experiment=[1]),
    "an unknown field": lambda first, lines: line_of("run", lines)["experiment"].update(evil=1),
    "columns of two lengths": lambda first, lines: line_of("requests", lines)["due"].append(1),
    "an outcome of none": lambda first, lines: line_of("requests", lines).update(outcome={"all": 77}),
    "a time beyond time": lambda first, lines: line_of("requests", lines)["took"].__setitem__(0, 10**18),
    "a text for a number": lambda first, lines: line_of("requests", lines)["due"].__setitem__(0, "x"),
    "rows for a gigabyte": lambda first, lines: bomb(lines),
    "a text a thousandfold": lambda first, lines: line_of("requests", lines).update(detail={"all": "x" * 1_000}),
    "chunks by multiplication": lambda first, lines: line_of("requests", lines).update(chunk={"all": [1] * 9_999}),
    "traces of two lengths": lambda first, lines: lines.append({"traces": {**TRACES, "first": [1]}}),
    "traces of a path": lambda first, lines: lines.append({"traces": {**TRACES, "block": "../../x"}}),
    "traces beyond time": lambda first, lines: lines.append({"traces": {**TRACES, "first": [1, 10**18]}}),
    "a block of no cell": lambda first, lines: next(
        line["event"] for line in lines if line.get("event", {}).get("kind") == "block_start"
    ).update(cell=7),
    "an event without time": lambda first, lines: lines.append({"event": {"kind": "x"}}),
    "a summary of no kind": lambda first, lines: line_of("summary", lines).update(cells=5),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_hostile_one_is_one_line_and_leaves_nothing(
    harm: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    path = kept(tmp_path, resigned(text, HOSTILE[harm]))
    with pytest.raises(FolderError) as error:
        cassette.read(path)
    assert str(error.value).startswith("cassette 'tape': ") and "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    assert main(["cassette", "play", str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "home" / "cassettes").exists() and runs() == []


RAW: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in half": (lambda data: data[: len(data) // 2], "cut short or changed"),
    "one digit changed": (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "cut short or changed"),
    "a torn first line": (lambda data: data[:40], "no manifest"),
    "nothing": (lambda data: b"", "no manifest"),
    "compressed": (gzip.compress, "no manifest"),
    "too large": (lambda data: data + b" " * cassette.MAX_BYTES, "larger than 4 MiB"),
    "nested without end": (lambda data: b"[" * 100_000, "no manifest"),
    "not a number": (lambda data: b'{"format": NaN}\n', "no manifest"),
}


@pytest.mark.parametrize("harm", RAW)
def test_what_is_torn_compressed_or_huge_is_one_line(harm: str, text: str, tmp_path: Path) -> None:
    spoil, said = RAW[harm]
    with pytest.raises(FolderError, match=said) as error:
        cassette.read(kept(tmp_path, spoil(text.encode())))
    assert "\n" not in str(error.value)


def test_a_name_that_leads_nowhere_is_told_what_there_is() -> None:
    for name in ("nothing", "../../etc/shadow-of-nothing"):
        with pytest.raises(InputError, match="there is none; allowed: "):
            cassette.find(name)
        with pytest.raises(InputError, match=r"run id .*: allowed are|no run"):
            cassette_record.record(name)


def test_only_a_finished_run_of_this_machine_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    with pytest.raises(InputError, match="a recording already"):
        cassette_record.record(cassette.shipped()["load_llm"].run)
    batching_run(BATCHING, duration_s=1.0, state="cancelled")
    with pytest.raises(InputError, match="is cancelled; allowed: a run that is done"):
        cassette_record.record(BATCHING)
