"""How an answer of SmolLM2 behind a real Triton ends before its time: given up (P10), or its server killed (P9)."""

import os
import signal
import time

import psutil
import pytest
from tritonclient.utils import InferenceServerException

from lab.serve.metrics import scrape
from lab.spec import ModelSpec
from tests.serve.stream import Stream, ask
from tests.waiting import until

pytestmark = pytest.mark.triton

LONG = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def load(triton_server):
    """Loads SmolLM2 with other fields, its counters at 0; the URL to ask at."""

    def loaded(**fields):
        triton_server.load(ModelSpec(name="llm", **fields))
        return triton_server.grpc_url

    return loaded


def engine(server):
    rows = scrape(server, ["llm"]).to_pylist()
    return {row["field"]: row["value"] for row in rows if row["model"] == "llm" and row["field"].startswith("engine_")}


@pytest.mark.alone
def test_a_request_that_is_given_up_stops_within_two_tokens(load, triton_server):
    """P10. The token that is being computed when the client gives up, and one more. One thread computes, so that this
    process is not kept waiting and gives up when it means to."""
    stream = Stream(load(threads=1), "llm", "Once upon a time", LONG)
    chunks = iter(stream)
    for _ in range(15):
        next(chunks)
    had = 15 + stream.unread
    stream.cancel()
    until(lambda: engine(triton_server)["engine_cancelled"] == 1)
    until(lambda: engine(triton_server)["engine_running"] == 0)
    on_its_way = 1  # written before, and not here yet
    assert had <= engine(triton_server)["engine_output_tokens"] <= had + on_its_way + 2


def test_a_whole_answer_that_is_given_up_stops_too(load, triton_server):
    stream = Stream(load(), "llm", "Once upon a time", {**LONG, "max_tokens": 900}, stream=False)
    until(lambda: engine(triton_server)["engine_output_tokens"] > 0)
    stream.cancel()
    until(lambda: engine(triton_server)["engine_cancelled"] == 1)
    assert engine(triton_server)["engine_output_tokens"] < 900


def test_a_waiting_request_that_is_given_up_leaves_the_queue_and_not_the_running_one(load, triton_server):
    """The running one lasts as long as the figures of a busy machine may take to be told, and is given up then."""
    url = load(scheduler="one")
    running = Stream(url, "llm", "Once upon a time", {**LONG, "max_tokens": 1000})
    chunks = iter(running)
    next(chunks)
    waiting = Stream(url, "llm", "In the beginning", LONG)
    until(lambda: engine(triton_server)["engine_waiting"] == 1)
    waiting.cancel()
    until(lambda: engine(triton_server)["engine_cancelled"] == 1)
    assert engine(triton_server)["engine_waiting"] == 0
    for _ in range(running.unread + 20):
        assert not next(chunks).final
    running.cancel()
    until(lambda: engine(triton_server)["engine_cancelled"] == 2)


def test_a_killed_server_ends_the_stream_with_an_error_at_once(load, triton_server):
    """P9: SIGKILL at token 20 of 400."""
    chunks = iter(Stream(load(), "llm", "Once upon a time", LONG))
    for _ in range(20):
        next(chunks)
    os.kill(triton_server.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(InferenceServerException):
        list(chunks)
    assert time.monotonic() - killed < 40  # its own limit for a word that does not come is 60
    until(lambda: not triton_server.alive())  # the next test needs another one


def test_a_killed_model_process_is_named_refuses_and_serves_again_after_a_load(load, triton_server):
    """Triton never ends a stream whose model process died (2.51): what can be had is that the lab knows it at once,
    that the next requests fail in bounded time, and that a load mends it. The client's own limit ends the stream."""
    url = load()
    next(iter(Stream(url, "llm", "Once upon a time", LONG)))
    for process in psutil.Process(triton_server.pid).children():
        if any(word.endswith("/llm/1/model.py") for word in process.cmdline()):
            process.kill()
    until(lambda: triton_server.state("llm").reason == "0 of its 1 processes live; load it again")
    with pytest.raises(InferenceServerException, match="not healthy"):
        ask(url, "llm", "Hello", {**LONG, "max_tokens": 2})
    load()
    assert len(ask(url, "llm", "Hello", {**LONG, "max_tokens": 2})) == 3
