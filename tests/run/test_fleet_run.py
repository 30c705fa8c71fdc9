"""A whole run of a fleet against the real Triton, small: three models, room for two."""

import json

import pytest

from lab.errors import InputError
from lab.measure.percentile import needed
from lab.run import interference, preflight, results, runner
from lab.run.fleet_bench import room_for
from lab.run.folder import new_run_id
from lab.run.text import lines
from lab.spec import ClosedLoop, Experiment, Fleet, Judge, ModelSpec, Slo, Workload, parse, set_path

SMALL = Experiment(
    id="small_fleet",
    question="Does it swap?",
    hypothesis="Three do not fit where two do.",
    model=ModelSpec(name="null"),
    fleet=Fleet(fit=2, pair_s=0.8),
    workload=Workload(arrival=ClosedLoop(concurrency=2), duration_s=5, warmup_s=0.3, timeout_s=30, protocol="http"),
    slo=Slo(latency_s=0.1),
    factors={"workload.models": (2, 3)},
    repeats=1,
    judge=Judge(factor="workload.models", baseline=2, primary="throughput_rps", expect="lower"),
)


@pytest.mark.triton
def test_two_fit_three_swap_and_nothing_is_left(triton_server):
    folder = runner.create(SMALL, new_run_id("small_fleet"), quick=False, settings=[], url=None)
    runner.run(SMALL, folder, stop=runner.Stop(), report=lambda line: None)
    document = results.document(folder)
    assert document["state"] == "done"
    json.dumps(document, allow_nan=False)
    fleet = document["fleet"]
    assert [entry["model"] for entry in fleet["filled"]] == ["null_1", "null_2", "null_3"]
    assert abs(fleet["fit_error_fraction"]) < 0.2  # small models: a megabyte is five percent
    two, three = fleet["cells"]
    assert (two["models"], two["hit_fraction"], two["swaps"]) == (2, 1.0, 0)
    assert three["miss_n"] + three["swaps"] > 0
    assert three["throughput_rps"] < two["throughput_rps"] / 2
    assert document["verdict"]["holds"] is True
    assert document["verdict"]["text"].startswith("The cliff lies between 2 and 3 models")
    alone, beside = fleet["pairs"]
    assert (alone["victim"], alone["disturber"], beside["disturber"]) == ("null_1", None, "null_2")
    assert alone["n"] > 0
    assert 0.0 <= fleet["residue_fraction"] < 0.1  # of 60 MiB; what the server set up for the first of its life too
    assert all(cell["summary"]["error_fraction"] == 0 for cell in document["cells"])
    report = "\n".join(lines(document))
    assert "Who slows whom" in report or "No model slows another" in report
    assert results.compute(folder, state="done")["fleet"] == fleet  # from the records alone


def test_a_pair_lasts_until_its_slow_model_has_the_answers_that_p99_needs():
    """459 answers at 12 a second, and three times their root more: (459 + 64) ÷ 12 and the warm-up."""
    fleet = Fleet(pair_s=20, pair_answers=needed(0.99))
    assert interference.duration_s(fleet, 12.0) == pytest.approx(0.5 + (459 + 64.27) / 12, abs=0.01)
    assert interference.duration_s(fleet, 300.0) == 20
    assert interference.duration_s(fleet, 0.1) == interference.MOST_PAIR_S
    assert interference.duration_s(Fleet(pair_s=2), 12.0) == 2


def test_what_contradicts_a_fleet_is_refused():
    with pytest.raises(InputError, match=r"workload.protocol 'grpc' with a fleet, whose proxy speaks HTTP"):
        set_path(SMALL, "workload.protocol", "grpc")
    with pytest.raises(InputError, match=r"workload.models 3 without a fleet to take them from"):
        parse(Experiment, {**SMALL.model_dump(mode="json"), "fleet": None, "factors": {}, "judge": None,
                           "workload": {**SMALL.workload.model_dump(mode="json"), "models": 3}})  # fmt: skip
    with pytest.raises(InputError, match="which only the lab's own Triton allows"):
        preflight.check(SMALL, "grpc://127.0.0.1:8001")


def test_a_budget_lies_half_way_between_what_fits_and_one_more():
    assert room_for([100, 200, 300, 380, 600], 4) == 490
    assert room_for([100, 200], 2) == 400  # nothing else is there to keep out
