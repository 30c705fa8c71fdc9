"""Reported problems with a known right answer, run through the lab against the real Triton."""

import os
import signal
import threading

import pytest

from lab.run import results, runner
from lab.run.catalogue import single
from lab.run.folder import new_run_id
from lab.serve import repository
from lab.watch.host import model_processes
from tests.waiting import until

pytestmark = pytest.mark.triton


def summary_of(model, workload):
    experiment = single(model, workload)
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    runner.run(experiment, folder, stop=runner.Stop(), report=lambda line: None)
    return results.document(folder)["cells"][0]["summary"]


@pytest.mark.alone
def test_a_queue_delay_punishes_a_lone_user(triton_server):
    # One user in a closed loop never has company: with a 20 ms delay each answer takes at least 20 ms, so throughput
    # falls to at most 1/(delay + service) = 50 req/s.
    workload = {"arrival": {"kind": "closed", "concurrency": 1}, "duration_s": 2.5, "warmup_s": 0.5}
    batching = {"max_batch_size": 8, "max_queue_delay_us": 20_000}
    delayed = summary_of({"name": "null", "batching": batching}, workload)
    plain = summary_of({"name": "null", "batching": {"max_batch_size": 8}}, workload)
    assert 0.020 <= delayed["latency_p50_s"] < 0.060
    assert 0 < delayed["throughput_rps"] <= 50
    assert plain["latency_p50_s"] < delayed["latency_p50_s"] - 0.010
    assert delayed["batch_mean"] == 1.0


@pytest.mark.alone
def test_refusals_that_triton_does_not_count_are_counted_by_the_client(triton_server):
    # One runs, two may wait, each takes 1 s: of 8 that come within 0.1 s five are turned away at once, and Triton's own
    # failure counter does not move.
    workload = {
        "arrival": {"kind": "constant", "rate_rps": 80},
        "duration_s": 0.1,
        "sleep_s": [1.0],
        "timeout_s": 60,
    }
    found = summary_of({"name": "sleeper", "batching": {"max_batch_size": 1, "max_queue_size": 2}}, workload)
    assert (found["planned"], found["ok"], found["refused"]) == (8, 3, 5)
    assert found["sent"] == found["ok"] + found["refused"]
    assert found["latency_n"] == 3


def test_batches_that_form_are_what_the_server_says_they_are(triton_server):
    # 32 users on a model that sleeps 20 ms whatever the batch: after the first execution all that wait ride together.
    workload = {
        "arrival": {"kind": "closed", "concurrency": 32},
        "duration_s": 3,
        "warmup_s": 0.5,
        "sleep_s": [0.02],
    }
    found = summary_of({"name": "sleeper", "batching": {"max_batch_size": 32}}, workload)
    sizes = {int(size): count for size, count in found["batch_sizes"].items()}
    inferences = sum(size * count for size, count in sizes.items())
    # Triton counts a batch and its members one after the other: a reading at either end may fall in between.
    assert abs(found["batch_mean"] * found["executions"] - inferences) <= 2 * 32
    assert abs(found["executions"] - sum(sizes.values())) <= 2
    assert found["batch_mean"] > 8


def test_without_batching_every_request_runs_alone(triton_server):
    workload = {"arrival": {"kind": "closed", "concurrency": 8}, "duration_s": 2, "warmup_s": 0.3, "sleep_s": [0.01]}
    found = summary_of({"name": "sleeper"}, workload)
    assert found["batch_mean"] == 1.0
    assert list(found["batch_sizes"]) == ["1"]


@pytest.mark.alone
def test_http_and_grpc_measure_the_same_server_alike(triton_server):
    workload = {"arrival": {"kind": "constant", "rate_rps": 20}, "duration_s": 3, "warmup_s": 0.5, "sleep_s": [0.03]}
    by_grpc = summary_of({"name": "sleeper"}, workload)
    by_http = summary_of({"name": "sleeper"}, workload | {"protocol": "http"})
    for found in (by_grpc, by_http):
        assert found["ok"] == found["planned"]
        assert 0.030 <= found["service_p50_s"] < 0.060
    assert by_http["service_p50_s"] == pytest.approx(by_grpc["service_p50_s"], abs=0.010)


SLOW_AT_FIRST = """

class TritonPythonModel(TritonPythonModel):
    warm = False

    def execute(self, requests):
        if not self.warm:
            import time
            self.warm = True
            time.sleep(0.3)
        return super().execute(requests)
"""


@pytest.mark.alone
def test_the_first_call_is_in_the_warm_up_and_in_no_figure(triton_server, tmp_path, monkeypatch):
    """P16: 300 ms of lazy work in the first `execute`. Each level of batching has its own: that the model was warm in
    batches of one does not count for batches of two, since it is loaded anew between the blocks."""
    (tmp_path / "null.py").write_text((repository.MODELS / "null.py").read_text() + SLOW_AT_FIRST)
    monkeypatch.setattr(repository, "MODELS", tmp_path)
    workload = {"arrival": {"kind": "closed", "concurrency": 2}, "duration_s": 2, "warmup_s": 1}
    levels = 'factors={"model.batching": [{"max_batch_size": 1}, {"max_batch_size": 2}]}'
    experiment = single({"name": "null"}, workload, [levels])
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    runner.run(experiment, folder, stop=runner.Stop(), report=lambda line: None)
    blocks = results.block_results(folder, experiment)
    assert len(blocks) == 2
    for block in blocks:
        requests, measured_from_ns = block.requests, block.window.measured_from_ns
        service_s = (requests.done_ns - requests.sent_ns) / 1e9
        first = requests.due_ns.argsort()[0]
        assert service_s[first] >= 0.3 and requests.done_ns[first] < measured_from_ns
        measured = (requests.due_ns >= measured_from_ns) & (requests.due_ns < block.window.end_ns)
        latency_s = (requests.done_ns - requests.due_ns)[measured] / 1e9
        assert block.summary.latency_n == len(latency_s) > 10
        assert block.summary.latency_max_s == pytest.approx(max(latency_s))
    triton_server.unload("null")  # the next test shall have the lab's own


def test_a_model_whose_process_dies_is_named_and_its_timeouts_are_failures(triton_server):
    # Triton stays "ready" with a dead stub; 40 req/s for 4 s, killed after about a second.
    experiment = single(
        {"name": "null"},
        {"arrival": {"kind": "constant", "rate_rps": 40}, "duration_s": 4, "timeout_s": 3},
    )
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)

    def kill() -> None:
        until(lambda: folder.read("requests").num_rows >= 20)
        for pid in model_processes(triton_server.pid)["null"]:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    runner.run(experiment, folder, stop=runner.Stop(), report=lambda line: None)
    killer.join()
    document = results.document(folder)
    summary = document["cells"][0]["summary"]
    assert summary["ok"] >= 20
    assert summary["error_fraction"] == pytest.approx(1 - summary["ok"] / 160, abs=0.01)
    assert any("null no longer serves" in problem["text"] for problem in document["problems"])
