"""The page Quantization on a simulated run: speed, memory and quality together, answers, and what the form starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.measure.steps import TOO_QUICK
from lab.run import catalogue, launch, results
from lab.run.folder import RunFolder
from lab.run.text import lines
from lab.show.ui import reads
from lab.spec import ModelSpec
from tests.show import synthetic_llm
from tests.show.conftest import QUANTIZATION
from tests.show.pages import GOING, charts, open_page, sent, words
from tests.show.synthetic import Author

pytestmark = pytest.mark.pages


def test_speed_memory_and_quality_stand_together(full_home: Path) -> None:
    app = open_page("quantization", run=QUANTIZATION)
    headline = next(m.value for m in app.markdown if m.value.startswith("####"))
    assert (
        "int8 writes" in headline and "the peak memory (" in headline and "perplexity 11.92 against 11.89" in headline
    )
    titles = [c["alt"] for c in charts(app)]
    assert any("no other format beats these" in alt for alt in titles)
    assert any("int8: perplexity: loss of" in alt for alt in titles)
    assert any("of it weights and scales" in alt for alt in titles)
    assert any("limited by reading" in alt or "limited by arithmetic" in alt for alt in titles)


def test_a_run_that_ended_early_still_shows_the_quality_that_it_found(full_home: Path) -> None:
    folder = RunFolder.open(QUANTIZATION)
    (folder.path / "summary.json").unlink()
    events = [event for event in folder.events() if not event["kind"].startswith("block")]
    (folder.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    status = json.loads((folder.path / "status.json").read_text())
    (folder.path / "status.json").write_text(json.dumps({**status, "state": "cancelled"}))
    app = open_page("quantization", run=QUANTIZATION)
    assert not app.exception and not app.error
    (drawn,) = charts(app)
    assert "int8: perplexity: loss of" in drawn["alt"]


def test_the_answers_differ_where_they_are_marked(full_home: Path) -> None:
    app = open_page("quantization", run=QUANTIZATION, q_level="int4 GPTQ")
    assert "The first of 9 tokens that differs is number 5." in words(app)
    assert "The base weights were 4 bits before." in words(app)
    assert any("<mark>" in str(element.proto) for element in app.get("html"))


def test_the_document_and_the_terminal_tell_no_speed_without_its_price(full_home: Path) -> None:
    document = results.document(results.RunFolder.open(QUANTIZATION))
    assert set(document["formats"]) == {"bf16", "int8", "int4 RTN", "int4 GPTQ"}
    assert all(f["quality"]["verdict"] for f in document["formats"].values())
    assert all(cell["ledger"] and cell["floor"] for cell in document["cells"])
    assert all((cell["beside"] is None) == (cell["format"] == "bf16") for cell in document["cells"])
    told = "\n".join(lines(document))
    assert "memory, measured  weights" in told
    assert "int4 RTN: perplexity: loss of 11.05 ± 0.11 %" in told
    assert "int8 reads 0.51× the bytes of bf16 a step" in told
    json.dumps(document, allow_nan=False)


def test_no_limit_is_named_where_a_step_went_below_its_floor(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {**synthetic_llm.MACHINE, "read_bandwidth_bytes_s": 1e9}
    monkeypatch.setattr(synthetic_llm, "MACHINE", slow)
    folder = synthetic_llm.run("quantization", QUANTIZATION)
    document = results.document(folder)
    assert max(cell["step"]["fraction"] for cell in document["cells"]) > 1
    assert {cell["step"]["limiting"] for cell in document["cells"]} == {None}
    assert [p["text"] for p in document["problems"] if p["code"] == "floor"] == [TOO_QUICK]
    page = words(open_page("quantization", run=QUANTIZATION))
    for told in ("\n".join(lines(document)), page):
        assert TOO_QUICK in told
        assert not any(claim in told for claim in ("imits it", "both wait for", "its products", "neither reading"))
    # What an older lab kept is not believed.
    path = folder.path / "summary.json"
    kept = json.loads(path.read_text())
    kept["cells"][0]["step"]["limiting"] = "compute"
    path.write_text(json.dumps(kept))
    assert results.document(RunFolder.open(QUANTIZATION))["cells"][0]["step"]["limiting"] is None


def test_the_form_runs_the_formats_that_were_chosen(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launch, "start", lambda *given: started.append(given[:4]))
    app = open_page("quantization")
    app.button_group(key="q_formats").set_value(["int8", "int4 AWQ"]).run()
    app.button(key="run_ab").click().run()
    (name, settings, quick, _) = started[0]
    assert (name, quick) == ("quantization", True)
    levels = json.loads(settings[0].removeprefix("model="))
    assert levels == [{"precision": "bf16"}, {"precision": "int8"}, {"precision": "int4", "quantizer": "awq"}]


def test_formats_that_are_here_can_be_tried(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "is_here", lambda spec: spec.precision in ("bf16", "int8"))
    monkeypatch.setattr(reads, "known_quality", lambda spec: None)
    app = open_page("try_it")
    assert app.selectbox(key="t_format").options == ["bf16", "int8", "int8 SmoothQuant", "bf16, KV cache in int8"]
    app.selectbox(key="t_format").set_value("int8").run()
    assert "int8: its quality was not evaluated yet." in words(app)
    assert "int4 GPTQ" in app.selectbox(key="t_format").help
    assert "fp16" not in app.selectbox(key="t_format").help  # which only a GPU has
    app.toggle(key="t_cache").set_value(False).run()
    assert app.selectbox(key="t_format").options == ["bf16", "int8", "int8 SmoothQuant"]
    assert ModelSpec(name="llm").precision == "bf16"


def test_the_format_is_changed_while_the_load_goes_on(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "is_here", lambda spec: spec.precision in ("bf16", "int4"))
    monkeypatch.setattr(reads, "known_quality", lambda spec: None)
    workload = {"arrival": {"kind": "poisson", "rate_rps": 2}, "duration_s": 60}
    folder = Author(catalogue.single({"name": "llm"}, workload, []), GOING, quick=False).folder
    folder.set_status("running", progress=0.5)
    app = open_page("live", run=GOING)
    choice = app.selectbox(key=f"l_format_{GOING}")
    offered = ["bf16", "int4 RTN", "int4 GPTQ", "int4 AWQ", "bf16, KV cache in int8"]
    assert (choice.value, choice.options) == ("bf16", offered)
    choice.set_value("int4 GPTQ").run()
    assert sent(folder) == [{"model": {"precision": "int4", "quantizer": "gptq", "kv_cache_precision": None}}]
    assert "int4 GPTQ: its quality was not evaluated yet." in words(app)
    app.selectbox(key=f"l_format_{GOING}").set_value("bf16, KV cache in int8").run()
    assert sent(folder)[1] == {"model": {"precision": "bf16", "quantizer": "rtn", "kv_cache_precision": "int8"}}


@pytest.mark.parametrize("page", ["try_it", "live"])
def test_where_a_format_is_chosen_what_belongs_beside_its_quality_is_said(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setattr(reads, "is_here", lambda spec: spec.precision in ("bf16", "int4"))
    monkeypatch.setattr(reads, "known_quality", lambda spec: synthetic_llm.quality("int4 GPTQ"))
    if page == "live":
        workload = {"arrival": {"kind": "poisson", "rate_rps": 2}, "duration_s": 60}
        model = {"name": "llm", "precision": "int4", "quantizer": "gptq"}
        Author(catalogue.single(model, workload, []), GOING, quick=False).folder.set_status("running", progress=0.5)
        app = open_page("live", run=GOING)
    else:
        app = open_page("try_it")
        app.selectbox(key="t_format").set_value("int4 GPTQ").run()
    assert not app.exception
    assert "The base weights were 4 bits before." in words(app)


def test_experiments_on_precision_without_a_page_start_from_this_one(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launch, "start", lambda *given: started.append(given[:3]))
    for name in ("precision", "kv_precision"):
        open_page("quantization").button(key=f"q_{name}").click().run()
    assert started == [("precision", [], True), ("kv_precision", [], True)]
