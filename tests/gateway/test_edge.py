"""What is refused before any model is asked, predictions, health and counts; OpenAI's shape for every error."""

from __future__ import annotations

import base64
import errno
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as pb

from lab.errors import InputError
from lab.gateway import asking, bodies, predicting
from lab.gateway.chat import ChatTemplate
from lab.gateway.refusals import Refusal
from lab.serve.metrics import parse_prometheus
from lab.serve.repository import config
from lab.spec import ModelSpec, parse
from lab.track import rollout
from lab.track.routes import Routes
from lab.track.routing import Route
from tests.gateway.conftest import Running, running, two_versions
from tests.load.fakes.servers import free_port
from tests.load.fakes.streams import Chunk, Story, grpc_stream_server
from tests.waiting import until

BODY = {"model": "llm", "prompt": "x"}
CHATS = {"model": "llm", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("strict"), two_versions("grpc://127.0.0.1:1"), body_limit_bytes=2000) as run:
        yield run


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "param"),
    [
        ("/v1/completions", b"{", {}, 400, None),
        ("/v1/completions", b"[1]", {}, 400, None),
        ("/v1/completions", b"\xff\xfe", {}, 400, None),
        ("/v1/completions", {"prompt": "x"}, {}, 400, "model"),
        ("/v1/completions", {"model": 3, "prompt": "x"}, {}, 400, "model"),
        ("/v1/completions", {"model": "lm", "prompt": "x"}, {}, 404, "model"),
        ("/v1/completions", {"model": "llm"}, {}, 400, "prompt"),
        ("/v1/completions", {**BODY, "prompt": [1, 2]}, {}, 400, "prompt"),
        ("/v1/completions", {**BODY, "max_tokens": "many"}, {}, 400, "max_tokens"),
        ("/v1/completions", {**BODY, "max_tokens": True}, {}, 400, "max_tokens"),
        ("/v1/completions", {**BODY, "temperature": -1}, {}, 400, "temperature"),
        ("/v1/completions", {**BODY, "stream": "yes"}, {}, 400, "stream"),
        ("/v1/completions", {**BODY, "logprobs": 3}, {}, 400, "logprobs"),
        ("/v1/completions", {**BODY, "temprature": 0}, {}, 400, "temprature"),
        ("/v1/completions", BODY, {"X-Request-Timeout": "soon"}, 400, "X-Request-Timeout"),
        ("/v1/completions", BODY, {"X-Request-Id": "a b"}, 400, "X-Request-Id"),
        ("/v1/completions", BODY, {"X-Model-Version": "9"}, 404, "X-Model-Version"),
        ("/v1/completions", b"x" * 3000, {}, 413, None),
        ("/v1/chat/completions", {**CHATS, "messages": []}, {}, 400, "messages"),
        ("/v1/chat/completions", {**CHATS, "messages": [{"role": "king", "content": "x"}]}, {}, 400, "messages.0.role"),
        ("/v1/chat/completions", {**CHATS, "tools": [{}]}, {}, 400, "tools"),
        ("/v1/chat/completions", CHATS, {}, 400, "model"),  # no template is known
        ("/v1/embeddings", {"model": "llm", "input": 7}, {}, 400, "input"),
        ("/predict/lm", {"inputs": {}}, {}, 404, "model"),
        ("/predict/llm", {"input": {}}, {}, 400, "inputs"),
        ("/v1/feedback", {"id": "never", "score": 1}, {}, 404, "id"),
        ("/nowhere", b"{}", {}, 404, None),
        ("/v1/models", b"{}", {}, 405, None),
        ("/v1/models/lm", None, {}, 404, "model"),
    ],
)
def test_errors_have_openais_shape(
    strict: Running, path: str, body: Any, headers: dict[str, str], status: int, param: str | None
) -> None:
    found, said, _ = strict.ask(path, body, headers)
    until(strict.settled)
    assert found == status
    error = said["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "\n" not in error["message"]


def test_who_is_turned_away_has_an_id_and_is_counted(strict: Running) -> None:
    strict.gateway.metrics.responses.values.clear()
    unknown = {**BODY, "model": "lm"}
    assert strict.ask("/v1/completions", unknown, {"X-Request-Id": "mine"})[2]["x-request-id"] == "mine"
    own = {strict.ask(path, b"{")[2]["x-request-id"] for path in ("/v1/completions", "/predict/llm")}
    assert len(own) == 2 and all(len(one) == 24 for one in own)
    told = {
        (one.labels["path"], one.labels["status"]): one.value
        for one in parse_prometheus(strict.ask("/metrics")[1])
        if one.family == "lab_gateway_http_responses_total"
    }
    assert told == {("/v1/completions", "404"): 1, ("/v1/completions", "400"): 1, ("/predict", "400"): 1}


def test_body_that_does_not_come_is_not_waited_for(strict: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "BODY_S", 0.2)
    with socket.create_connection(("127.0.0.1", strict.port), timeout=60) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        said = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
    assert said.startswith("HTTP/1.1 408 ") and '"slow_body"' in said


def test_routes_that_could_not_be_read_for_a_moment_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway without a file left to open must not stay deaf to a rollback."""
    with running(tmp_path, two_versions("grpc://127.0.0.1:1")) as run:
        refresh, failed = run.routes.refresh, threading.Event()

        def out_of_files() -> bool:
            if failed.is_set():
                return refresh()
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(run.routes, "refresh", out_of_files)
        until(failed.is_set)
        rollout.weigh(Routes(tmp_path), "llm", {"2": 1.0})
        until(lambda: run.gateway.routes.by_name["llm"].version("2").weight == 1)


def test_wrong_requests_say_nothing_about_a_version(run_gateway: Any) -> None:
    with run_gateway(two_versions("grpc://127.0.0.1:1")) as run:
        run.ask("/v1/completions", {**BODY, "logprobs": 3})
        assert run.gateway.take_ended() == {}
        run.ask("/v1/completions", BODY)
        until(run.settled)
        ((ended,),) = run.gateway.take_ended().values()
    assert ended.outcome is not None and ended.seconds > 0


def test_lab_triton_that_is_gone_is_named(run_gateway: Any) -> None:
    with run_gateway(two_versions("lab")) as run:
        run.gateway.absent = "the lab's Triton, pid 7, has ended"
        try:
            status, said, headers = run.ask("/v1/completions", BODY)
            health, whole, _ = run.ask("/healthz")
        finally:
            run.gateway.absent = None
    assert (status, said["error"]["code"], headers["retry-after"]) == (503, "unavailable", "1")
    assert "pid 7, has ended" in said["error"]["message"]
    assert (health, whole["problem"]) == (503, "the lab's Triton, pid 7, has ended")


def test_fault_of_the_gateways_own_has_openais_shape_too(run_gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "read", lambda kind, body: 1 / 0)
    with grpc_stream_server(Story()) as fake, run_gateway(two_versions(f"grpc://{fake.url}")) as run:
        status, said, _ = run.ask("/predict/llm", {"inputs": {}})
        until(run.settled)
        assert sum(run.gateway.metrics.requests.values.values()) == 1
    assert (status, said["error"]["type"], said["error"]["code"]) == (500, "server_error", "failed")
    assert "ZeroDivisionError" in said["error"]["message"]


def test_health_is_per_model_and_says_why(run_gateway: Any) -> None:
    with run_gateway(two_versions(f"grpc://127.0.0.1:{free_port()}")) as run:
        status, said, _ = run.ask("/healthz/llm")
        whole, _, _ = run.ask("/healthz")
    assert (status, whole, said["models"]["llm"]["ready"]) == (503, 503, False)
    assert "Connection refused" in said["models"]["llm"]["versions"]["1"]["reason"]


def test_sticky_requests_override_and_counts(run_gateway: Any) -> None:
    with (
        grpc_stream_server(Story([Chunk(0, 2, "word")])) as fake,
        run_gateway(two_versions(f"grpc://{fake.url}")) as run,
    ):
        by_user = {
            user: {run.ask("/v1/completions", {**BODY, "user": user})[2]["x-model-version"] for _ in range(3)}
            for user in ("ann", "bob", "cem", "dov", "eve", "fay")
        }
        assert all(len(versions) == 1 for versions in by_user.values())
        assert set.union(*by_user.values()) == {"1", "2"}
        asked = run.ask("/v1/completions", BODY, {"X-Model-Version": "2"})
        assert asked[1]["system_fingerprint"] == "llm@2"
        assert run.ask("/v1/feedback", {"id": asked[2]["x-request-id"], "score": 0.25})[0] == 200
        until(run.settled)
        told = parse_prometheus(run.ask("/metrics")[1])
        ended = run.gateway.take_ended()["llm"]
        sticky = {**two_versions(f"grpc://{fake.url}"), "canary": {"champion": "1", "challenger": "2"}}
        run.routes.change("llm", lambda _: parse(Route, sticky))
        for user in ("ann", "ann", "bob"):
            run.ask("/v1/completions", {**BODY, "user": user})
        run.ask("/v1/completions", BODY)
        until(run.settled)
        drawn = [one.user for one in run.gateway.take_ended()["llm"]]
    assert drawn[0] == drawn[1] != drawn[2] and "ann" not in str(drawn) and drawn[3] is None
    assert sum(sample.value for sample in told if sample.family == "lab_gateway_requests_total") == 19
    assert [(e.version, e.share, e.score) for e in ended[-2:]] == [("2", None, None), ("2", None, 0.25)]


def test_tensors_are_what_the_model_wants() -> None:
    digits = config(ModelSpec(name="digits"))
    assert predicting.tensors(digits, {"IMAGE": [0] * 64})["IMAGE"].shape == (1, 64)
    two = predicting.tensors(digits, {"IMAGE": [[0.5] * 64, [1.5] * 64]})["IMAGE"]
    assert (two.shape, two.dtype) == ((2, 64), np.float32)
    text = predicting.tensors(config(ModelSpec(name="embedder")), {"TEXT": ["Grüße"]})["TEXT"]
    assert text.shape == (1, 1) and text[0, 0] == "Grüße".encode()
    for wrong in ({"IMAGE": [0] * 63}, {"IMAGE": "x"}, {"IMAGE": [[0], [0, 1]]}, {"OTHER": 1}, {}):
        with pytest.raises(Refusal):
            predicting.tensors(digits, wrong)
    optional = pb.ModelConfig(
        name="m", input=[pb.ModelInput(name="A", data_type=pb.TYPE_INT32, dims=[-1], optional=True)]
    )
    assert predicting.tensors(optional, {}) == {}
    assert predicting.tensors(optional, {"A": [1, 2, 3]})["A"].tolist() == [1, 2, 3]


def test_what_is_no_number_is_null_and_base64_is_float32() -> None:
    assert predicting.plain(np.array([1.5, np.nan, np.inf], np.float32)) == [1.5, None, None]
    row = np.array([[0.25, -1.0]], np.float32)
    assert struct.unpack("<2f", base64.b64decode(predicting.row_as_text(row, "base64"))) == (0.25, -1.0)


def test_chat_template_can_do_nothing_but_write(tmp_path: Path) -> None:
    def template(source: str) -> ChatTemplate:
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": source, "bos_token": {"content": "<s>"}})
        )
        return ChatTemplate(tmp_path)

    talk = [{"role": "user", "content": "Hi"}]
    assert template("{{ bos_token }}{{ messages[0]['content'] }}").prompt(talk) == "<s>Hi"
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    for bad in (escape, "{{ raise_exception('no system turn') }}", "{{ 1 / 0 }}", "{{ messages[9].content.x }}"):
        with pytest.raises(Refusal):
            template(bad).prompt(talk)
    with pytest.raises(InputError, match="no template"):
        template("{% if %}")
    with pytest.raises(InputError, match="no chat_template"):
        template(None)
