"""Whole runs against the real Triton: done, stopped, server killed, wrong from the first request; nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab.errors import RunError
from lab.measure.records import OK
from lab.run import control, results, runner
from lab.run.catalogue import single
from lab.run.folder import RunFolder, new_run_id
from lab.serve.triton import Server
from lab.spec import Batching, Experiment, Judge, ModelSpec, Poisson, Reference, Slo, Workload, parse
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.triton
PROJECT = Path(__file__).parents[2]


def start(experiment, stop=None):
    folder = runner.create(experiment, new_run_id(experiment.id), quick=False, settings=[], url=None)
    runner.run(experiment, folder, stop=stop or runner.Stop(), report=lambda line: None)
    return folder


def short(model="null", rate_rps=50.0, duration_s=2.0, **more):
    arrival = {"kind": "poisson", "rate_rps": rate_rps}
    timed = {"duration_s": duration_s, "warmup_s": 0.3, "timeout_s": LIMIT_S}
    return single({"name": model}, {"arrival": arrival, **timed, **more}, [])


def answered_rps(folder):
    """By the records: how many answers a second came in the window of the run's one block."""
    (block,) = results.block_results(folder, parse(Experiment, folder.document["experiment"]))
    done_ns, window = block.requests.done_ns, block.window
    came = (block.requests.outcome == OK) & (done_ns >= window.measured_from_ns) & (done_ns < window.end_ns)
    return pytest.approx(came.sum() / window.seconds)


def test_a_run_ends_done_with_every_request_accounted_for(triton_server):
    folder = start(short())
    document = results.document(folder)
    assert document["state"] == "done"
    (cell,) = document["cells"]
    summary = cell["summary"]
    assert summary["planned"] == summary["sent"] == summary["ok"] > 0
    assert summary["throughput_rps"] == answered_rps(folder)
    assert summary["offered_rps"] == pytest.approx(50, rel=0.5)  # 85 by a schedule that its seed decides
    assert document["environment"]["triton"].startswith("2.")
    json.dumps(document, allow_nan=False)


def test_the_kept_summary_is_rebuilt_exactly_from_the_records(triton_server):
    folder = start(short())
    assert json.loads(json.dumps(results.compute(folder, state="done"))) == folder.summary


def test_an_experiment_finds_saturation_compares_answers_and_judges(triton_server):
    trial = Experiment(
        id="trial",
        question="Does batching pay for the sleeper?",
        hypothesis="Eight sleepers in one batch sleep as long as one.",
        model=ModelSpec(name="sleeper"),
        workload=Workload(arrival=Poisson(saturation_fraction=2.0), duration_s=3, warmup_s=0.5, sleep_s=(0.01,)),
        slo=Slo(latency_s=0.1),
        factors={"model.batching": (None, Batching(max_batch_size=16))},
        repeats=2,
        reference=Reference(concurrency=8, duration_s=1.5, warmup_s=0.3),
        judge=Judge(factor="model.batching"),
    )
    document = results.document(start(trial))
    roles = [cell["role"] for cell in document["cells"]]
    assert roles == ["saturation"] * 2 + ["cell"] * 4
    # One at a time at 10 ms each is at most 100 a second; that is what the sleeper is for.
    off, on = (cell["summary"]["throughput_rps"] for cell in document["cells"][:2])
    assert off <= 101
    assert on > 2 * off
    assert document["answers"]["levels"][1]["equal"] is True
    assert document["verdict"]["holds"] is True
    # Not the ratio: at twice its saturation the baseline may serve none in time.
    (goodput,) = [e for e in document["verdict"]["effects"] if e["metric"] == "goodput_rps"]
    assert goodput["b"] > 1.2 * goodput["a"]


def test_stop_keeps_what_was_measured(triton_server):
    experiment = short(duration_s=60.0)
    stop = runner.Stop()
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    thread = threading.Thread(
        target=runner.run, args=(experiment, folder), kwargs={"stop": stop, "report": lambda line: None}
    )
    thread.start()
    until(lambda: folder.read("requests").num_rows > 20)
    control.send(folder.run_id, {"stop": True})
    thread.join(60)
    assert not thread.is_alive()
    document = results.document(folder)
    assert document["state"] == "cancelled"
    summary = document["cells"][0]["summary"]
    assert summary["ok"] >= 20
    assert "cut_short" in {problem["code"] for problem in document["problems"]}


def test_rate_and_batching_change_under_load_and_the_moments_are_kept(triton_server):
    experiment = short(rate_rps=20.0, duration_s=60.0)
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    stop = runner.Stop()
    thread = threading.Thread(
        target=runner.run, args=(experiment, folder), kwargs={"stop": stop, "report": lambda line: None}
    )
    thread.start()
    try:
        until(lambda: folder.read("requests").num_rows > 10)
        control.send(folder.run_id, {"rate_rps": 300})
        control.send(folder.run_id, {"batching": {"max_batch_size": 8, "max_queue_delay_us": 1000}})
        control.send(folder.run_id, {"concurrency": 3})
        until(lambda: sum(e["kind"] == "change" for e in folder.events()) == 2)
        moment = next(e["t_ns"] for e in folder.events() if e["kind"] == "change" and e["field"] == "rate_rps")
        until(lambda: _due_between(folder, moment, moment + 1_000_000_000) > 200)
    finally:
        stop.set()
        thread.join(60)
    assert any("concurrency" in e["text"] for e in folder.events() if e["kind"] == "problem")
    assert _due_between(folder, moment - 1_000_000_000, moment) < 60
    assert triton_server.config("null")["max_batch_size"] == 8
    outcomes = folder.read("requests")["outcome"].to_pylist()
    assert set(outcomes) <= {0, 3}, "a reload under load must lose no request"


def _due_between(folder, from_ns, to_ns):
    due = folder.read("requests")["due_ns"].to_numpy()
    return int(((due >= from_ns) & (due < to_ns)).sum())


def test_a_server_killed_in_mid_run_ends_it_failed_with_the_time_of_death(triton_installed):
    experiment = short(duration_s=60.0)
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    caught = []

    def measure():
        try:
            runner.run(experiment, folder, stop=runner.Stop(), report=lambda line: None)
        except RunError as error:
            caught.append(str(error))

    thread = threading.Thread(target=measure)
    thread.start()
    until(lambda: folder.read("requests").num_rows > 20)
    os.kill(Server.attach().pid, signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    assert "died" in caught[0]
    document = results.document(folder)
    assert document["state"] == "failed"
    died = next(e for e in folder.events() if e["kind"] == "died")
    assert folder.read("requests")["done_ns"].to_numpy().min() < died["t_ns"]
    summary = document["cells"][0]["summary"]
    assert summary["ok"] >= 20
    # The figures end with the server, not with the minute that was planned.
    assert summary["window_s"] is None or summary["window_s"] < 20


def test_kill_9_of_the_runner_shows_interrupted_and_keeps_every_flushed_record(triton_server, lab_home):
    run_id = new_run_id("load")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lab",
            "load",
            "--model",
            "null",
            "--rate",
            "100",
            "--duration",
            "29",
            "--warmup",
            "0",
            "--run-id",
            run_id,
        ],
        cwd=PROJECT,
        env={**os.environ, "LAB_HOME": str(lab_home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: (lab_home / "runs" / run_id).is_dir())
    folder = RunFolder.open(run_id)
    until(lambda: folder.read("requests").num_rows > 100)
    process.kill()
    process.wait(60)
    until(lambda: folder.status().state == "interrupted")
    rows = folder.read("requests").num_rows
    assert rows > 100
    summary = results.document(folder)["cells"][0]["summary"]
    assert summary["ok"] > 0
    # Figures cover what is known, not all that was planned.
    assert summary["window_s"] < 29 and summary["throughput_rps"] == answered_rps(folder)
    # The next run is not held up by the dead one, nor by workers that it left behind.
    assert results.document(start(short()))["state"] == "done"
    assert folder.read("requests").num_rows - rows < 300


def test_every_request_failing_is_a_failed_run(triton_server):
    # A sleeper asked for 2 s with a time limit of 0.2 s never answers in time.
    experiment = short(model="sleeper", rate_rps=5.0, duration_s=2.0, sleep_s=[2.0], timeout_s=0.2, warmup_s=0.0)
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    with pytest.raises(RunError, match="timeout"):
        runner.run(experiment, folder, stop=runner.Stop(), report=lambda line: None)
    document = results.document(folder)
    assert document["state"] == "failed"
    summary = document["cells"][0]["summary"]
    assert summary["throughput_rps"] == 0
    assert summary["latency_p50_s"] is None


def test_a_truncated_summary_is_made_anew_from_the_records(triton_server):
    folder = start(short())
    whole = results.document(folder)
    (folder.path / "summary.json").write_text('{"run": "half a doc')
    assert json.loads(json.dumps(results.document(folder))) == whole
    (folder.path / "summary.json").write_text("{}")
    assert json.loads(json.dumps(results.document(folder))) == whole
