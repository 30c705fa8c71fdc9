"""A language model through the whole bench: a conversation, an experiment, a toggle under load, a foreign server."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.errors import InputError, ServerError
from lab.measure.records import CANCELLED, OK
from lab.run import conversation, formats, results, runner
from lab.run.catalogue import experiment, single
from lab.run.control import send
from lab.run.lock import MeasureLock
from lab.run.plan import settle
from lab.spec import ModelSpec
from tests.load.fakes.streams import Chunk, Story, openai_server
from tests.waiting import LIMIT_S, until

TINY = "model.name=tiny"


@pytest.fixture
def tiny_spec(tiny_folder):
    return ModelSpec(name="tiny", family="llm", precision="fp32", weights=str(tiny_folder), max_request_tokens=128)


def run(chosen, run_id, *, url=None):
    folder = runner.create(chosen, run_id, quick=True, settings=[], url=url)
    runner.run(chosen, folder, stop=runner.Stop(), report=lambda line: None, url=url)
    return results.document(folder)


def loaded(tiny_folder, experiment_id, **changes):
    settings = {
        "model.name": "tiny",
        "model.family": "llm",
        "model.precision": "fp32",
        "model.weights": str(tiny_folder),
        "model.max_request_tokens": 128,
        "workload.duration_s": 1.5,
        "workload.warmup_s": 0.0,  # so that the first answers count, which may be all that a slow machine gives
        "workload.timeout_s": LIMIT_S,
        "reference.duration_s": 1.0,
        "reference.warmup_s": 0.0,
        **changes,
    }
    return settle(experiment(experiment_id), list(settings.items()), quick=True)


@pytest.mark.triton
def test_a_conversation_comes_piece_by_piece_and_adds_up(triton_server, tiny_spec):
    url = conversation.prepare(tiny_spec)
    pieces = list(conversation.say("hello", grpc_url=url, model="tiny", max_tokens=12, chat=False))
    again = list(conversation.say("hello", grpc_url=url, model="tiny", max_tokens=12, chat=False))
    assert "".join(piece.text for piece in pieces) == "".join(piece.text for piece in again)
    assert {piece.prompt_tokens for piece in pieces} == {5}  # the tiny tokenizer has a token a byte
    assert [piece.output_tokens for piece in pieces] == list(itertools.accumulate(piece.tokens for piece in pieces))
    assert all(a.t_ns <= b.t_ns for a, b in itertools.pairwise(pieces))
    assert pieces[-1].finish_reason in ("length", "stop")
    assert {piece.finish_reason for piece in pieces[:-1]} <= {None}


@pytest.mark.triton
def test_a_conversation_loads_anew_only_what_differs(triton_server, tiny_spec):
    conversation.prepare(tiny_spec)
    before = triton_server.config("tiny")
    conversation.prepare(tiny_spec)
    assert triton_server.config("tiny") == before
    conversation.prepare(tiny_spec.model_copy(update={"kv_cache": False}))
    assert triton_server.config("tiny")["parameters"]["kv_cache"]["string_value"] == "false"


@pytest.mark.triton
def test_what_the_model_refuses_is_told_in_one_line(triton_server, tiny_spec):
    url = conversation.prepare(tiny_spec)
    with pytest.raises(ServerError, match=r"tiny: .*allowed: 128") as caught:
        list(conversation.say("x" * 200, grpc_url=url, model="tiny", chat=False))
    assert "\n" not in str(caught.value)


@pytest.mark.triton
def test_nobody_talks_while_a_run_measures(triton_server, tiny_spec):
    with MeasureLock("20261130-000000-load-0000") as lock:
        lock.acquire(lambda place, holder: None)
        assert "20261130-000000-load-0000" in str(conversation.why_not(tiny_spec))
        with pytest.raises(ServerError, match="measures now"):
            conversation.prepare(tiny_spec)
    assert conversation.why_not(tiny_spec) is None


@pytest.mark.triton
def test_the_cache_experiment_runs_and_both_levels_write_the_same(triton_server, tiny_folder, monkeypatch):
    # How well it writes is tests/run/test_quality.py's, and takes longer than all else of this.
    monkeypatch.setattr(formats, "evaluate", lambda *_: None)
    chosen = loaded(tiny_folder, "kv_cache", **{"workload.output_tokens": [16], "workload.prompt_tokens": 16})
    document = run(chosen, "kv-cache-tiny-run")
    assert document["state"] == "done"
    assert [level["equal"] for level in document["answers"]["levels"]] == [True, True]
    summaries = [cell["summary"] for cell in document["cells"]]
    assert all(summary["error_fraction"] == 0 for summary in summaries)
    assert all(summary["prompt_tokens_mean"] == 16 for summary in summaries)
    assert all(summary["output_tokens_mean"] == 16 for summary in summaries)
    totals = {cell["factors"]["model.kv_cache"]: cell["summary"]["cache_tokens_total"] for cell in document["cells"]}
    assert totals[True] > 0
    assert not totals[False]


@pytest.mark.triton
def test_the_scheduler_is_toggled_under_load(triton_server, tiny_folder):
    model = {
        "name": "tiny",
        "family": "llm",
        "precision": "fp32",
        "weights": str(tiny_folder),
        "max_request_tokens": 128,
    }
    arrival = {"kind": "closed", "concurrency": 4}
    chosen = single(
        model, {"arrival": arrival, "duration_s": 29, "prompt_tokens": 8, "output_tokens": 8, "timeout_s": LIMIT_S}
    )
    folder = runner.create(chosen, "toggled-under-load", quick=False, settings=[], url=None)

    def changes():
        return [event for event in folder.events() if event["kind"] == "change"]

    def due_since(t_ns):
        return int((folder.read("requests")["due_ns"].to_numpy() > t_ns).sum())

    def toggle():
        try:
            until(lambda: folder.read("requests").num_rows > 10)
            send(folder.run_id, {"scheduler": "static"})
            until(changes)
            until(lambda: due_since(changes()[0]["t_ns"]) > 10)
        finally:
            send(folder.run_id, {"stop": True})

    with ThreadPoolExecutor(1) as hand:
        toggled = hand.submit(toggle)
        runner.run(chosen, folder, stop=runner.Stop(), report=lambda line: None)
        toggled.result(LIMIT_S)
    (change,) = changes()
    assert (change["field"], change["to"]) == ("scheduler", "static")
    assert triton_server.config("tiny")["parameters"]["scheduler"]["string_value"] == "static"
    assert set(folder.read("requests")["outcome"].to_pylist()) <= {OK, CANCELLED}  # by the stop


@pytest.mark.processes
def test_a_foreign_openai_server_is_measured_by_url(lab_home):
    story = Story([Chunk(0.02, 1), Chunk(0.03, 1), Chunk(0.04, 1)])
    workload = {"arrival": {"kind": "closed", "concurrency": 2}, "duration_s": 1.0, "protocol": "openai"}
    with openai_server(story) as server:
        document = run(
            single({"name": "llm"}, {**workload, "served_model": "org/Small-1B"}),
            "foreign-openai-run",
            url=f"openai+http://{server.url}/v1",
        )
    assert document["state"] == "done"
    assert {request["model"] for request in story.requests} == {"org/Small-1B"}
    summary = document["cells"][0]["summary"]
    assert summary["output_tokens_mean"] == 3
    assert summary["ttft_mean_s"] >= 0.02
    assert summary["queue_mean_s"] is None


def test_a_batch_setting_of_another_family_is_refused():
    with pytest.raises(InputError, match="batches token by token"):
        single(
            {"name": "llm", "batching": {"max_batch_size": 8}},
            {"arrival": {"kind": "closed", "concurrency": 1}, "duration_s": 1},
        )
