"""Real starts, through the runner: a model taken apart plain, remedied and in Triton; and one behind a runner that
scales to zero."""

import json

import pytest

from lab.run import catalogue, results, runner
from lab.run.folder import RunFolder
from lab.run.plan import settle
from lab.run.runner import Stop
from lab.run.text import lines
from lab.spec import Experiment

pytestmark = pytest.mark.triton


def ran(experiment: Experiment, run_id: str) -> dict:
    folder = runner.create(experiment, run_id, quick=True, settings=[], url=None)
    runner.run(experiment, folder, stop=Stop(), report=lambda line: None)
    document = results.document(RunFolder.open(run_id))
    json.dumps(document, allow_nan=False)
    return document


def test_a_cold_start_taken_apart_adds_up(triton_installed: None) -> None:
    ways = [{}, {"zygote": True, "mapped_weights": True, "compile_cache": True}, {"runtime": "triton"}]
    experiment = settle(
        catalogue.experiment("cold_start"),
        [("model", [{"name": "digits", "family": "digits", "precision": "fp32"}]), ("start", ways), ("repeats", 1)],
        quick=False,
    )
    document = ran(experiment, "20261130-040101-cold-start-real")
    plain, forked, inside = document["cold"]["cells"]
    assert [one["failed"] for one in (plain, forked, inside)] == [[], [], []]
    assert list(plain["stages"]) == [
        "process", "import_torch", "import_model", "read", "convert", "runtime", "warm_up", "first_answer",
    ]  # fmt: skip
    assert "server" in inside["stages"] and "import_torch" in inside["stages"]
    assert forked["stages"]["import_torch"]["mean"] < 0.1 * plain["stages"]["import_torch"]["mean"]
    assert forked["parent_bytes"] > 2**20 and "read" not in forked["stages"]
    assert all(one["memory_bytes"] > one["weight_bytes"] for one in (plain, inside))
    # The owner's clock against the sum of the process's own stamps: benchmarks/cold_start.py has the goal, beside
    # which a busy machine keeps a process waiting between two stages.
    assert abs(plain["unexplained_fraction"]) < 0.2
    assert "digits, fp32, plain start" in "\n".join(lines(document))


def test_a_runner_that_scales_to_zero_under_load(lab_home: object) -> None:
    experiment = settle(
        catalogue.experiment("serverless"),
        [
            ("model.name", "null"),
            ("serverless.idle_s", 0.3),
            ("serverless.start", {"page_cache": "warm"}),
            ("workload.arrival.rate_rps", [2.0, 12.0]),
            ("workload.duration_s", 2),
        ],
        quick=True,
    )
    document = ran(experiment, "20261130-040201-serverless-real")
    slow, fast = document["serverless"]["blocks"]
    assert slow["cold"] >= 1 and fast["cold"] >= 1  # each begins with nobody there
    # Unless a start takes as long here as the whole of a block.
    assert slow["cold_fraction"] > fast["cold_fraction"] or fast["cold_fraction"] == 1
    assert slow["answered"] == slow["requests"] > 0 and fast["answered"] == fast["requests"]
    assert slow["cold_mean_s"] > slow["warm_p50_s"] if slow["warm_p50_s"] else True
    assert document["serverless"]["curve"] and document["cells"]
    assert document["state"] == "done"
