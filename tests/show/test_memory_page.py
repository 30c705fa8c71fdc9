"""The page Multi-model memory: its form, its plan, and a finished run of a fleet with a cliff in it."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from lab.measure.footprint import Footprint
from lab.measure.records import OK, TELEMETRY, WAITS
from lab.measure.words import format_bytes
from lab.run import cassette, catalogue, footprints, prices, results
from lab.run.fleet_bench import members
from lab.run.folder import RunFolder
from lab.run.plan import cell_blocks, settle, with_rate
from lab.run.sides import Name
from lab.show.report import report
from lab.show.report_html import to_html
from lab.show.ui.fleet import plan_of
from lab.spec import ModelSpec
from tests.show.synthetic import MIB, SECOND, Author

pytestmark = pytest.mark.pages

PROJECT = Path(__file__).parents[2]
RUN = "20261130-010801-multi-model-done"


def fleet_run(run_id, going=False):
    """Two and four models that fit (300 req/s), then five and eight, of which each miss takes 2 s."""
    experiment = catalogue.experiment("multi_model").when_quick()
    author = Author(experiment, run_id, seconds=60)
    folder, models = author.folder, members(experiment, 8)
    totals = np.cumsum([250, 250, 20, 150, 180, 20, 150, 180]) * MIB
    for model, total in zip(models, totals.tolist(), strict=True):
        folder.event(
            "filled", model=model.name, family=model.family, load_s=1.0, first_answer_s=0.02,
            alone_bytes=250 * MIB, own_bytes=150 * MIB, total_bytes=total, planned_bytes=total * 1.01,
            predicted_bytes=total, pss_bytes=total, host_bytes=total,
        )  # fmt: skip
    folder.event("fleet", budget_bytes=680 * MIB, stated=False, filled=8)
    for index, planned in enumerate(cell_blocks(experiment)):
        block = with_rate(planned, None)
        n, start_ns = block.workload.models, author.now_ns
        end_ns, from_ns = start_ns + 10 * SECOND, start_ns + SECOND
        misses = 0 if n <= 4 else 10
        hits = 2700 if n <= 4 else 90
        folder.event(
            "block_start", block=index, role="cell", cell=block.cell, repeat=0, planned=None,
            workload=block.workload.model_dump(mode="json"), model=block.model.model_dump(mode="json"),
            start_ns=start_ns, measured_from_ns=from_ns, end_ns=end_ns, t_ns=start_ns,
        )  # fmt: skip
        due = from_ns + np.sort(author.rng.integers(0, 7 * SECOND, hits + misses))
        waited = np.where(np.arange(hits + misses) < misses, 2 * SECOND, 0)
        author.write(
            {
                "block": [index] * len(due),
                "request": np.arange(len(due)),
                "due_ns": due,
                "sent_ns": due,
                "done_ns": due + waited + 4_000_000,
                "outcome": np.full(len(due), OK, np.uint8),
            }
        )
        rows = [due, [models[0].name] * len(due), np.arange(len(due)), waited, [None] * len(due)]
        folder.append("waits", pa.table(dict(zip(WAITS.names, rows, strict=True)), schema=WAITS))
        for k in range(misses // 2):
            at = from_ns + k * SECOND
            folder.event("model_unloaded", model=models[k % 4].name, seconds=1.2, why="evicted", t_ns=at)
            folder.event("model_loaded", model=models[4].name, seconds=0.5, t_ns=at + SECOND // 2)
        looks = [(start_ns + s * SECOND, "model:digits_1", "memory_bytes", 250.0 * MIB, None) for s in range(10)]
        columns = dict(zip(TELEMETRY.names, zip(*looks, strict=True), strict=True))
        folder.append("telemetry", pa.table({k: list(v) for k, v in columns.items()}, schema=TELEMETRY))
        folder.event("block_end", block=index, planned=None, end_ns=end_ns, t_ns=end_ns)
        author.now_ns = end_ns + SECOND // 5
    if going:
        folder.set_status("running", phase="block 4 of 4", progress=0.9)
        return folder
    return author.end("done")


@pytest.fixture
def app(empty_home):
    fleet_run(RUN)
    return AppTest.from_file(str(PROJECT / "app.py"), default_timeout=60).run()


def words(app):
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def alts(app):
    nodes = [json.loads(node.proto.mixed.json or node.proto.json) for node in app.get("bidi_component")]
    return [node["alt"] for node in nodes if "alt" in node]


def test_a_finished_run_tells_the_cliff_and_draws_who_was_there(app):
    app.switch_page("pages/memory.py")
    app.query_params["run"] = RUN
    app.run()
    assert not app.exception
    said = words(app)
    assert "The cliff lies between 4 and 5 models" in said
    assert "8 models take" in said
    drawn = alts(app)
    assert sum("cliff lies between" in alt for alt in drawn) == 1
    assert any("times one had to go so that another fitted" in alt for alt in drawn)
    assert any("All models together take at most 250 MiB" in alt for alt in drawn)
    assert any("pairs of models were not measured in this run" in alt for alt in drawn)


def test_a_report_of_many_models_has_their_charts(empty_home):
    fleet_run(RUN)
    html = to_html(report([Name.read(RUN)], price=prices.find("lambda-us-east-1-cpu-4vcpu-16gib-x1-on-demand")))
    for title in ("Throughput against models", "What a hit and a miss take", "What each model adds", "Who slows whom"):
        assert title in html
    assert html.count("The cliff lies between 4 and 5 models") >= 1


def test_the_plan_says_what_would_fit_before_anything_is_loaded(app):
    footprints.keep(ModelSpec(name="digits"), Footprint(150 * MIB, {"torch": 100 * MIB}))
    app.switch_page("pages/memory.py")
    app.query_params["m_kinds"] = "digits"
    app.query_params["m_budget"] = "560"
    app.run()
    experiment = catalogue.experiment("multi_model")
    settings = [("model.name", "digits"), ("fleet.others", []), ("fleet.budget_bytes", 560 * MIB)]
    chart = plan_of(settle(experiment, settings, quick=False))
    assert chart.alt == "3 of 10 models would fit: together they take 550 MiB of the 560 MiB that they may take."
    unstated = plan_of(
        settle(experiment, settings[:2], quick=False)
    )  # the budget is then what the first four take, and a little
    assert unstated.alt == "4 of 10 models would fit: together they take 700 MiB of the 775 MiB that they may take."
    assert not app.exception


def test_a_plan_by_a_recording_has_the_budget_that_the_recorded_run_had(empty_home):
    recorded = RunFolder.open(cassette.of_experiment("multi_model").run)
    found = results.document(recorded)["fleet"]
    chart = plan_of(settle(catalogue.experiment("multi_model"), [], quick=True))
    assert f"of the {format_bytes(found['budget_bytes'])} that they may take" in chart.alt
    assert chart.table["together, MiB"][0] == pytest.approx(found["filled"][0]["planned_bytes"] / MIB)
    assert chart.notes == (
        f"None was loaded here yet: sizes as predicted for the recorded run on {machine_of(recorded)}.",
    )


def machine_of(recorded):
    return recorded.document["recorded"]["machine"]


def test_kinds_that_were_never_loaded_can_be_measured_from_the_plan(app):
    footprints.keep(ModelSpec(name="digits"), Footprint(150 * MIB, {"torch": 100 * MIB}))
    app.query_params.clear()
    app.switch_page("pages/memory.py").run()
    assert not app.exception
    assert "Load embedder and sleeper once and measure" in [button.label for button in app.button]
    assert any(
        "is not predicted: no model of its kind was loaded here before" in said for said in words(app).split("\n")
    )


def test_with_a_gpu_the_form_asks_where_evicted_models_go(app, monkeypatch):
    monkeypatch.setattr("lab.serve.installation.gpus", lambda: 1)
    app.switch_page("pages/memory.py")
    app.query_params["m_device"] = "gpu"
    app.query_params["m_evict"] = "host memory"
    app.run()
    assert not app.exception
    assert app.segmented_control(key="m_evict").value == "host"
    assert app.button_group(key="m_kinds_gpu").options == ["digits", "embedder"]  # the others compute on CPUs only


def test_while_it_runs_the_page_shows_who_is_loaded(app):
    fleet_run("20261130-010901-multi-model-goes", going=True)
    app.switch_page("pages/memory.py")
    app.query_params["run"] = "20261130-010901-multi-model-goes"
    app.run()
    assert not app.exception
    given = [json.loads(node.proto.mixed.json or node.proto.json) for node in app.get("bidi_component")]
    assert [data["phase"] for data in given if "phase" in data] == ["block 4 of 4"]
    assert any("times one had to go so that another fitted" in alt for alt in alts(app))
