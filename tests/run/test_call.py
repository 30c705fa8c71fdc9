"""Somebody else's Triton, really: models that the lab doesn't know, called, loaded, and put back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.errors import InputError, ServerError
from lab.run.call import call
from lab.run.given import Wishes, first_request, given_of
from lab.serve import borrowed, traces
from lab.serve.described import describe
from lab.serve.triton import Server
from lab.spec import Batching
from tests.serve import given_models
from tests.waiting import until

pytestmark = pytest.mark.triton
MODELS = {
    "my_model": given_models.EXAMPLE,
    "echo": given_models.ECHO,
    "repeat": given_models.REPEAT,
    "counter": given_models.COUNTER,
}


@pytest.fixture
def server(triton_server: Server) -> Iterator[Server]:
    """The session's server as a stranger sees it, with MODELS in it."""
    assert triton_server.managed is not None
    for name in set(MODELS) - {state.name for state in triton_server.states() if state.ready}:
        given_models.write(Path(triton_server.managed.repository), name, MODELS[name])
        triton_server.client.load_model(name)
    with Server.at(f"grpc://{triton_server.grpc_url}") as stranger:
        yield stranger


@pytest.mark.parametrize("over_http", [False, True])
def test_the_example_of_the_source_material_is_answered(server: Server, over_http: bool) -> None:
    given = given_of(describe(server, "my_model"), Wishes(batch=2))
    request = first_request(given)
    found = call(server, "my_model", request, over_http=over_http, decoupled=False)
    assert [(t.name, t.datatype, t.shape) for t in found.got] == [("output_node", "FP32", (2, 1))]
    sent, got = ([float(v) for v in t.values.split(", ")] for t in (found.sent[0], found.got[0]))
    assert got == pytest.approx([2 * v for v in sent], rel=1e-5)


@pytest.mark.parametrize("over_http", [False, True])
def test_texts_open_dimensions_and_an_answer_of_ten_megabytes(server: Server, over_http: bool) -> None:
    size = 10_000_000
    wishes = Wishes(shapes={"TEXT": (2,), "IDS": (3, 2)}, optional=("SIZE",), ranges={"SIZE": (size, size)})
    request = first_request(given_of(describe(server, "echo"), wishes))
    found = {t.name: t for t in call(server, "echo", request, over_http=over_http, decoupled=False).got}
    assert found["BULK"].bytes == size and found["IDS_OUT"].shape == (3, 2)
    assert found["TEXT_OUT"].values.startswith('"') and found["TEXT_OUT"].shape == (2,)


def test_a_decoupled_model_answers_in_several_responses(server: Server) -> None:
    described = describe(server, "repeat")
    request = first_request(given_of(described, Wishes(ranges={"TIMES": (5, 5)})))
    found = call(server, "repeat", request, over_http=False, decoupled=described.decoupled)
    assert found.responses == 5 and found.got[0].values == "0"


def test_a_sequence_has_its_id_and_an_error_is_the_servers_own_line(server: Server) -> None:
    described = describe(server, "counter")
    assert (described.sequences, described.sequence_places) == (True, 4)
    request = first_request(given_of(described, Wishes()))
    assert call(server, "counter", request, over_http=False, decoupled=False).got[0].values == "1"
    with pytest.raises(ServerError, match="must specify a non-zero or non-empty correlation ID"):
        call(server, "counter", dict(request), over_http=False, decoupled=False)
    with pytest.raises(InputError, match="none of that name; did you mean"):
        describe(server, "countr")


def command(server: Server, *more: str) -> list[str]:
    where = ["--url", f"grpc://{server.grpc_url}", "--model", "my_model", "--concurrency", "2"]
    return [sys.executable, "-m", "lab", "load", *where, "--duration", "30", "--batching", "8:3000", *more]


def batching_of(server: Server) -> Batching | None:
    return describe(server, "my_model").batching


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_batching_is_put_back_however_the_run_ends(server: Server, end: signal.Signals) -> None:
    before = server.client.get_model_config("my_model").config
    assert batching_of(server) is None
    load = subprocess.Popen(command(server), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: batching_of(server) == Batching(max_batch_size=8, max_queue_delay_us=3000))
        os.kill(load.pid, end)
        load.wait(60)
        until(lambda: server.client.get_model_config("my_model").config == before)
    finally:
        load.kill()
        load.wait()


def test_what_batching_a_model_cannot_have_is_one_line(server: Server) -> None:
    without = server.client.get_model_config("echo").config
    with pytest.raises(InputError, match="has no batch dimension"):
        borrowed.with_batching(without, Batching(max_batch_size=8))
    sequences = server.client.get_model_config("counter").config
    with pytest.raises(InputError, match="scheduled otherwise"):
        borrowed.with_batching(sequences, None)


@pytest.mark.alone
def test_a_traced_run_says_where_each_request_was(triton_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The means of the parts are the mean of the latency, nearly every answer is traced, and the files are gone."""
    arguments = ["--model", "null", "--rate", "200", "--duration", "1.5", "--warmup", "0.3", "--trace", "--json"]
    assert main(["load", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    traced = found["trace"]
    assert traced["traced"] >= 0.95 * traced["of"] > 100
    means = {name: part["mean"] for name, part in traced["parts"].items()}
    latency = means.pop("latency")
    assert sum(means.values()) == pytest.approx(latency) and min(means.values()) >= 0
    assert means["queue"] == pytest.approx(found["summary"]["queue_mean_s"], rel=0.5, abs=2e-4)
    assert len(traced["slowest"]) == 5 and triton_server.managed is not None
    assert traces.files(Path(triton_server.managed.log)) == []
