"""Formats of a run: which quality is evaluated and which is only told, and which load a process's memory belongs to."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lab.errors import RunError
from lab.measure import ledger
from lab.measure.formats import format_label
from lab.measure.quality import Quality
from lab.measure.records import SERVER, Window
from lab.run import catalogue, floors, formats, ledgers, quality, results, runner, told
from lab.run.folder import RunFolder
from lab.run.plan import settle
from lab.serve import repository
from lab.spec import Experiment, ModelSpec
from lab.watch.probe import Probe
from tests.show import synthetic_llm


def folder_of(experiment: Experiment, home: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("LAB_HOME", str(home))
    return RunFolder.create("20261130-020202-formats", {"experiment": experiment.model_dump(mode="json")})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels that were evaluated; int8 is known before, int4 cannot be evaluated."""
    evaluated: list[str] = []

    def found(model: ModelSpec) -> Quality:
        return Quality(format_label(model), "bf16", False, (), (), (), 1.0)

    def evaluate(model: ModelSpec) -> Quality:
        evaluated.append(format_label(model))
        if model.precision == "int4":
            raise RunError("the quality of int4 RTN could not be evaluated: no room")
        return found(model)

    monkeypatch.setattr(quality, "known", lambda model: found(model) if model.precision == "int8" else None)
    monkeypatch.setattr(quality, "evaluate", evaluate)
    return evaluated


def evaluated(folder: RunFolder) -> dict[str, Any]:
    return {e["format"]: e for e in folder.events() if e["kind"] == "quality"}


def test_what_is_not_known_is_evaluated_and_a_failure_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    levels = [{"precision": "bf16"}, {"precision": "int8"}, {"precision": "int4", "quantizer": "rtn"}]
    experiment = settle(catalogue.experiment("quantization"), [("model", levels)], quick=True)
    folder = folder_of(experiment, tmp_path, monkeypatch)
    formats.evaluate(folder, experiment, lambda line: None)
    assert asked == ["bf16", "int4 RTN"]
    found = evaluated(folder)
    assert found["int8"]["quality"]["verdict"] and found["int8"]["reason"] is None
    assert found["int4 RTN"]["quality"] is None and "no room" in found["int4 RTN"]["reason"]


def test_a_single_load_tells_what_is_known_and_evaluates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    workload = {"arrival": {"kind": "closed", "concurrency": 1}, "duration_s": 1}
    load = catalogue.single({"name": "llm", "precision": "fp32"}, workload)
    folder = folder_of(load, tmp_path, monkeypatch)
    formats.evaluate(folder, load, lambda line: None)
    assert asked == []
    assert "not evaluated yet; `python -m lab run quantization` does" in evaluated(folder)["fp32"]["reason"]


def test_a_run_of_the_baseline_alone_has_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    experiment = catalogue.experiment("kv_cache")
    folder = folder_of(experiment, tmp_path, monkeypatch)
    formats.evaluate(folder, experiment, lambda line: None)
    assert (asked, evaluated(folder)) == ([], {})


def test_a_format_without_a_kernel_is_told_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = settle(catalogue.experiment("precision"), [], quick=True)
    folder = folder_of(experiment, tmp_path, monkeypatch)
    monkeypatch.setattr(formats.weights, "prepare", lambda model: None)
    monkeypatch.setattr(formats, "multiplies_bytes", lambda: False)
    formats.prepare(folder, experiment, lambda line: None)
    assert [e["text"] for e in folder.events() if e["kind"] == "problem"] == [
        "digits in int8 is right and no faster than fp32 here: this processor has no products of 8 bits (VNNI)."
    ]


@pytest.mark.parametrize(
    ("seconds", "device", "probes"), [(1.0, "cpu", [False]), (60.0, "cpu", [True]), (60.0, "gpu", [])]
)
def test_a_long_run_has_floors_of_its_own_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, device: str, probes: list[bool]
) -> None:
    experiment = settle(
        catalogue.experiment("llm_batching"),
        [("workload.duration_s", seconds), ("workload.warmup_s", 0.0), ("model.device", device)],
        quick=False,
    )
    folder = folder_of(experiment, tmp_path, monkeypatch)
    asked = []

    def probed(again: bool) -> Probe:
        asked.append(again)
        return Probe("cpu", 2, 20e9, 170e9, 60e9, 400e9)

    monkeypatch.setattr(formats, "probe", probed)
    monkeypatch.setattr(formats.weights, "prepare", lambda model: None)
    monkeypatch.setattr(formats.weights, "model_config", lambda model: {})
    formats.prepare(folder, experiment, lambda line: None)
    assert asked == probes
    machine = told.Told.by(folder.events()).machine
    assert (machine and machine.read_bandwidth_bytes_s) == (20e9 if probes else None)


def test_a_machine_by_what_it_multiplies() -> None:
    machine = told.machine_of(Probe("cpu", 2, 20e9, 170e9, 60e9, 400e9))
    assert machine.read_bandwidth_bytes_s == 20e9
    assert [machine.arithmetic(p) for p in ("bf16", "fp32", "int8", "int4")] == [170e9, 60e9, 400e9, 400e9]


def test_no_step_on_a_gpu_is_held_against_this_processor() -> None:
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 257, "max_position_embeddings": 128,
    }  # fmt: skip
    machine = told.machine_of(Probe("cpu", 2, 20e9, 170e9, 60e9, 400e9))
    here, there = (ModelSpec(name="llm", device=device) for device in ("cpu", "gpu"))
    assert floors.of_answer(here, config, machine, 32, 64, 0.01) is not None
    assert floors.of_answer(there, config, machine, 32, 64, 0.01) is None


def test_a_block_has_the_memory_of_its_own_load_and_the_loads_before_it() -> None:
    """Loaded, asked, block 0, block 1; then loaded anew for block 2."""
    model = ModelSpec(name="llm").model_dump(mode="json")
    workload = {"arrival": {"kind": "closed", "concurrency": 1}, "duration_s": 1.0}

    def event(kind: str, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "model": "llm", **more}

    def block(number: int, users: int) -> dict[str, Any]:
        arrival = {"kind": "closed", "concurrency": users}
        return event("block_start", block=number, workload={**workload, "arrival": arrival}) | {"model": model}

    events = [
        event("loaded") | {"model": model},
        event("idle", own_bytes=100),
        event("asked", workload=workload),
        block(0, 8),
        event("held", own_bytes=150),
        block(1, 2),
        event("held", own_bytes=151),
        event("loaded") | {"model": model},
        event("idle", own_bytes=90),
        block(2, 4),
        event("held", own_bytes=120),
    ]
    seen = [ledgers._since_load(events, "llm", number) for number in (0, 1, 2, 3)]
    idle = [found[0] and found[0]["own_bytes"] for found in seen]
    held = [found[1] and found[1]["own_bytes"] for found in seen]
    users = [[load.arrival.concurrency for load in loads] for _, _, loads in seen]
    assert idle[:3] == [100, 100, 90]
    assert held == [150, 151, 120, None]
    assert users[:3] == [[1, 8], [1, 8, 2], [4]]


@pytest.mark.parametrize(
    ("fields", "tokens", "in_use"),
    [
        ({}, 100, 100 * 24_000),  # of 8 × 256 places, each 24,000 bytes as allocated
        ({"max_tokens_in_cache": 512}, 100, 100 * 24_000),  # more is allocated than may be held
        ({"precision": "fp32"}, 100, 8 * 256 * 24_000),  # whose zeros are written at once
        ({}, None, None),
        ({}, 0, None),  # nobody looked while an answer was written
    ],
    ids=["by tokens", "with a limit", "at once", "not counted", "not seen"],
)
def test_the_cache_in_use_is_told_by_the_engine_s_counters(
    fields: dict[str, Any], tokens: int | None, in_use: float | None
) -> None:
    model = ModelSpec(name="llm", max_request_tokens=256, **fields)
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "vocab_size": 257, "max_position_embeddings": 1024,
    }  # fmt: skip
    summary: Any = SimpleNamespace(
        engine_cache_bytes=8 * 256 * 24_000, cache_tokens_used_peak=tokens, cache_tokens_total=8
    )
    assert ledgers._cache_in_use(model, summary, ledger.predict(config, model)) == in_use


def test_what_an_engine_says_of_itself_is_told_once_with_its_format() -> None:
    levels = [{"precision": "bf16"}, {"precision": "int8"}]
    experiment = settle(catalogue.experiment("quantization"), [("model", levels)], quick=True)
    rows = [(5, "engine_note", "no fast products"), (15, "engine_note", "no fast products"), (16, "engine_steps", None)]
    columns = {
        "t_ns": [t for t, _, _ in rows],
        "model": ["llm"] * 3,
        "field": [field for _, field, _ in rows],
        "value": [None, None, 1.0],
        "reason": [reason for _, _, reason in rows],
    }
    blocks: Any = [SimpleNamespace(cell=0, window=Window(20, 20, 30)), SimpleNamespace(cell=1, window=Window(0, 0, 18))]
    assert formats.engine_notes(experiment, blocks, pa.table(columns, SERVER)) == ["int8: no fast products."]


def test_a_format_beside_itself_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A/A through the whole of a run: threads that are given by number are those that the engine takes anyway."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    twins = 'model=[{"precision": "bf16"}, {"precision": "bf16", "threads": 2}]'
    found = results.document(synthetic_llm.run("quantization", "20261130-020205-itself", twins))
    effects = found["verdict"]["effects"]
    assert len(effects) >= 6 and {e["verdict"] for e in effects} <= {"no detectable difference", "not comparable"}
    assert found["verdict"]["holds"] is False
    same = next(e for e in effects if e["metric"] == "output_tokens_per_s")
    assert same["ci_low"] < 1 < same["ci_high"]


@pytest.mark.triton
def test_an_engine_without_its_kernels_says_so_in_the_run(
    triton_server: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a real Triton: the model's process lacks the compiled decoder, falls back to torch, and the run tells."""
    every = repository.imported
    monkeypatch.setattr(repository, "imported", lambda family: [m for m in every(family) if m != "compiled_decoder"])
    model = {"name": "lacking", "family": "llm", "weights": str(tiny_folder), "max_request_tokens": 128}
    load = {"arrival": {"kind": "closed", "concurrency": 2}, "duration_s": 1.2, "prompt_tokens": 4, "output_tokens": 4}
    chosen = catalogue.single(model, load)
    folder = runner.create(chosen, "20261130-020204-lacking", quick=False, settings=[], url=None)
    runner.run(chosen, folder, stop=runner.Stop(), report=lambda line: None)
    notes = [p["text"] for p in results.document(folder)["problems"] if p["code"] == "engine_note"]
    assert len(notes) == 1 and notes[0].startswith("bf16: without the compiled decoder, three times as slow: ")
    triton_server.unload("lacking")


@pytest.mark.triton
def test_a_run_of_formats_tells_speed_memory_and_quality_of_each(
    triton_server: Any, tiny_folder: Path, asked: list[str]
) -> None:
    settings = {
        "model.name": "tiny",
        "model.family": "llm",
        "model.weights": str(tiny_folder),
        "model": [{"precision": "bf16"}, {"precision": "int8"}],
        "workload.arrival.concurrency": [2],
        "workload.prompt_tokens": 8,
        "workload.output_tokens": 16,
        "workload.duration_s": 1.5,
        "workload.warmup_s": 0.2,
        "reference.duration_s": 1.0,
        "reference.warmup_s": 0.2,
    }
    experiment = settle(catalogue.experiment("quantization"), list(settings.items()), quick=True)
    folder = runner.create(experiment, "20261130-020203-formats", quick=True, settings=[], url=None)
    runner.run(experiment, folder, stop=runner.Stop(), report=lambda line: None)
    document = results.document(folder)
    assert document["state"] == "done" and document["answers"] is None
    assert list(document["formats"]) == ["bf16", "int8"] and all(f["quality"] for f in document["formats"].values())
    for cell in document["cells"]:
        rows = {row["name"]: row for row in cell["ledger"]}
        assert cell["summary"]["output_tokens_per_s"] > 0
        assert rows["runtime"]["measured_bytes"] > 50 * 2**20
        assert rows["in all"]["measured_bytes"] > rows["runtime"]["measured_bytes"]
        seen = cell["summary"]["cache_tokens_used_peak"]  # by a look now and then, which such short answers may escape
        in_use = rows["KV cache, in use"]["measured_bytes"]
        assert 0 < in_use <= rows["KV cache, room"]["measured_bytes"] if seen else in_use is None
        assert cell["floor"].startswith("A step reads ")
    scales = {cell["format"]: cell["summary"]["engine_scale_bytes"] for cell in document["cells"]}
    assert scales["bf16"] == 0 < scales["int8"]
    assert "int8" in document["verdict"]["text"] and "no measurable loss of quality" in document["verdict"]["text"]


def test_a_change_of_the_model_within_the_figures_is_seen() -> None:
    """What a mean step over two models is of, nobody can say; a change of the load leaves the model."""
    events = [{"kind": "change", "t_ns": 50, "field": "model"}, {"kind": "change", "t_ns": 90, "field": "rate_rps"}]
    assert told.model_changed(events, 0, None) and told.model_changed(events, 40, 60)
    assert not told.model_changed(events, 60, None) and not told.model_changed(events, 0, 40)


@pytest.mark.parametrize(("changes", "words"), [(1, "1 time while"), (2, "2 times while")])
def test_changes_are_counted_in_words(changes: int, words: str) -> None:
    folder: Any = SimpleNamespace(document={"quick": False}, read=lambda name: SERVER.empty_table())
    events = [{"kind": "change", "t_ns": n, "field": "model"} for n in range(changes)]
    (found,) = results._problems(folder, catalogue.experiment("batching"), events, [], "done")
    assert words in found["text"]
