"""The page Serving patterns: both sections with a finished run each, and rules that were not measured."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from lab.load.schedule import arrivals
from lab.measure import autoscale_sim
from lab.measure.autoscale_sim import Starts
from lab.run import catalogue, results
from lab.run.plan import cell_blocks, settle
from lab.show.drills.deck import DRILLS
from lab.show.drills.drill import pose
from lab.show.drills.source import Source
from tests.show.synthetic import SECOND, Author, Served
from tests.show.synthetic_llm import run as llm_run

pytestmark = pytest.mark.pages

PROJECT = Path(__file__).parents[2]
WAYS, SCALED = "20261130-020801-patterns-done", "20261130-020802-autoscaling-done"


def scaled_run(run_id, up_s=0.8):
    """As the bench writes it; the queue and the rules are the simulator's, with a service time that is 10 ms longer
    than asked for."""
    experiment = settle(catalogue.experiment("autoscaling"), [], quick=True)
    blocks = cell_blocks(experiment)
    author = Author(experiment, run_id, seconds=sum(block.workload.duration_s + 5 for block in blocks))
    for index, block in enumerate(blocks):
        workload, model = block.workload, block.model
        due_s = arrivals(workload.arrival, workload.duration_s, workload.seed) / 1e9
        slept = np.array(workload.sleep_s)[
            np.random.default_rng(index).integers(len(workload.sleep_s), size=len(due_s))
        ]
        found = autoscale_sim.simulate(
            due_s,
            slept + 0.01,
            Starts([up_s], [0.2]),
            first=model.instances,
            rules=model.scaling,
            end_s=workload.duration_s,
            replaces=True,
        )
        start_ns = author.now_ns
        author.folder.event(
            "block_start", block=index, role="cell", cell=block.cell, repeat=0, planned=len(due_s),
            workload=workload.model_dump(mode="json"), model=model.model_dump(mode="json"), start_ns=start_ns,
            measured_from_ns=start_ns + int(workload.warmup_s * SECOND),
            end_ns=start_ns + int(workload.duration_s * SECOND), t_ns=start_ns,
        )  # fmt: skip
        for change in found.changes:
            author.folder.event(
                "scaled", block=index, model=model.name, before=change.before, after=change.after,
                asked_ns=start_ns + int(change.asked_s * SECOND), done_ns=start_ns + int(change.t_s * SECOND),
                t_ns=start_ns + int(change.t_s * SECOND),
            )  # fmt: skip
        ones = np.ones(len(due_s), int)
        served = Served(due_s, found.start_s, found.done_s, ones, Counter({1: len(due_s)}))
        author.requests(index, start_ns, served, workload.timeout_s, None)
        author.server(model, start_ns, served, float(found.done_s.max()) + 0.5)
        end_ns = start_ns + int(workload.duration_s * SECOND)
        author.folder.event("block_end", block=index, planned=len(due_s), end_ns=end_ns, t_ns=end_ns)
        author.now_ns = start_ns + int((float(found.done_s.max()) + 1) * SECOND)
    return author.end("done")


@pytest.fixture
def app(empty_home):
    return AppTest.from_file(str(PROJECT / "app.py"), default_timeout=60).run()


def opened(app, run_id):
    app.switch_page("pages/patterns.py")
    app.query_params["run"] = run_id
    app.run()
    assert not app.exception
    return app


def words(app):
    kinds = ("title", "subheader", "markdown", "caption", "info", "warning", "error")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def alts(app):
    nodes = [json.loads(node.proto.mixed.json or node.proto.json) for node in app.get("bidi_component")]
    return [node["alt"] for node in nodes if "alt" in node]


def asked(folder):
    source = Source(folder.run_id, results.document(folder), folder.document["experiment"], folder.events())
    return {drill.id: posed for drill in DRILLS if (posed := pose(drill, [source])) is not None}


def test_ways_beside_each_other(app):
    folder = llm_run("patterns", WAYS, saturation_rps=6.0)
    found = results.document(folder)["patterns"]
    assert [way["pattern"] for way in found["ways"]] == ["online", "streaming", "batch"]
    assert found["targets"][2]["suits"] == "batch"
    said = words(opened(app, WAYS))
    assert "Online, streaming or batch?" in said and "For a deadline in 4 h, batch:" in said
    assert any("batch makes the most" in alt for alt in alts(app))
    drills = asked(folder)
    assert {"packed", "rows_by_then"} <= drills.keys()
    online, batch = found["ways"][0], found["ways"][2]
    assert drills["packed"].truth == pytest.approx(batch["output_tokens_per_s"] / online["output_tokens_per_s"])
    assert drills["rows_by_then"].truth == round(batch["throughput_rps"] * 4 * 3600)


def test_instances_that_come_and_go(app):
    folder = scaled_run(SCALED)
    found = results.document(folder)["autoscaling"]
    always, *scaled = found["blocks"]
    assert always["measured"]["instances_mean"] == 5.0
    for block in scaled:
        assert block["measured"]["changes"] > 1 and block["up_s"] == pytest.approx(0.8)
        # Its own queue, but other draws of the service times, whose mean it was told.
        assert abs(block["off_p95"]) < 0.25
    assert "One repeat only" in results.document(folder)["verdict"]["text"]
    assert "unsteady" not in {problem["code"] for problem in results.document(folder)["problems"]}
    said = words(opened(app, SCALED))
    assert "Instances that come and go" in said and "Other rules, modelled" in said
    assert "An instance was there 800 ms after it was asked for" in said
    assert any(alt.startswith("Measured: ") and "Modelled: " in alt for alt in alts(app))
    (costs,) = [frame.value for frame in app.dataframe if "an hour" in frame.value]
    assert list(costs["instances"]) == [block["label"] for block in found["blocks"]]
    drills = asked(folder)
    assert drills["wanted"].truth == 4  # ⌈14 × 0.2 ÷ 0.7⌉
    kept = min(block["measured"]["instances_mean"] for block in scaled)
    assert drills["saved"].truth == pytest.approx(100 * (1 - kept / 5.0))
    assert "late" in drills


def test_other_rules_are_modelled_at_once(app):
    scaled_run(SCALED)
    opened(app, SCALED)
    before = [metric.value for metric in app.metric if metric.label in ("Instances, mean", "Changes")]
    app.number_input(key="a_most").set_value(2)
    app.run()
    assert not app.exception
    after = [metric.value for metric in app.metric if metric.label in ("Instances, mean", "Changes")]
    assert float(after[0]) <= 2 < float(before[0])
    assert "2 instances all the time would be 80." in words(app)
    app.number_input(key="a_most").set_value(5)
    app.run()
    (soon,) = [metric.value for metric in app.metric if metric.label == "In time"]
    app.number_input(key="a_start").set_value(30.0)
    app.run()
    (late,) = [metric.value for metric in app.metric if metric.label == "In time"]
    assert float(late.split()[0]) < float(soon.split()[0])
    app.number_input(key="a_least").set_value(7)
    app.run()
    assert not app.exception and any("least 7 is above most 5" in info.value for info in app.info)
