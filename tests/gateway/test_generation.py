"""Generated text through the gateway, against fakes whose book says what was asked, sent and given up."""

from __future__ import annotations

import json
import socket
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from lab.gateway import answering
from lab.track import routing
from tests.gateway.conftest import Running, running
from tests.load.fakes.servers import free_port, http_app
from tests.load.fakes.streams import Chunk, Story, grpc_stream_server, openai_server
from tests.waiting import until

WORDS = [Chunk(0, 1, "One"), Chunk(0, 2, " two"), Chunk(0, 1, " three")]
BODY = {"model": "llm", "prompt": "Count", "max_tokens": 4}


def route(url: str, model: str = "llm", **more: Any) -> dict[str, Any]:
    replica = {"url": url, "model": model}
    return {"model": model, "versions": [{"version": "1", "weight": 1.0, "replicas": [replica]}], **more}


def test_whole_answer_says_text_counts_and_version(run_gateway: Any) -> None:
    story = Story(WORDS)
    with grpc_stream_server(story) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        status, said, headers = run.ask("/v1/completions", BODY, {"X-Request-Id": "mine"})
        assert until(run.settled)
    assert (status, headers["x-request-id"], headers["x-model-version"]) == (200, "mine", "1")
    assert said["choices"][0]["text"] == "One two three"
    assert said["usage"] == {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
    (asked,) = story.requests
    assert asked.id == "mine"
    assert b'"max_tokens": 4' in asked.raw_input_contents[2]


def test_stream_says_what_came_and_then_done(run_gateway: Any) -> None:
    with grpc_stream_server(Story(WORDS)) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        wanted = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, usage, done = run.events("/v1/completions", wanted)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "One two three"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 4
    assert done == "[DONE]"


def test_official_client_reads_a_chat(run_gateway: Any, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    story = Story(WORDS)
    with (
        grpc_stream_server(story) as fake,
        run_gateway(route(f"grpc://{fake.url}"), tokenizer=tmp_path) as run,
        openai.OpenAI(base_url=f"{run.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        whole = client.chat.completions.create(model="llm", messages=messages)
        chunks = list(client.chat.completions.create(model="llm", messages=messages, stream=True))
        models = [model.id for model in client.models.list()]
    assert whole.choices[0].message.content == "One two three"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "One two three"
    assert models == ["llm"]
    assert story.requests[0].raw_input_contents[0][4:] == b"<user>Hi<a>"


def test_several_prompts_are_several_choices(run_gateway: Any) -> None:
    with grpc_stream_server(Story(WORDS)) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        _, said, _ = run.ask("/v1/completions", {**BODY, "prompt": ["a", "b"], "n": 2})
        assert run.gateway.entered == 1
    assert [choice["index"] for choice in said["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in said["choices"]} == {"One two three"}


def test_client_that_goes_ends_its_generation(run_gateway: Any) -> None:
    story = Story([Chunk(0, 1, "One")], hangs=True)
    with grpc_stream_server(story) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        for _ in range(3):
            answer = run.begin("/v1/completions", {**BODY, "stream": True})
            assert answer.readline().startswith(b"data: ")
            answer.close()
            answer.connection.close()
        until(lambda: story.cancelled == 3, "the upstream to hear of it")
        until(run.settled)
        assert (story.in_flight, run.gateway._upstreams[f"grpc://{fake.url}"].in_flight) == (0, 0)
        assert run.gateway.metrics.requests.values == {("llm", "1", "cancelled"): 3}


def posted(run: Running, body: bytes) -> socket.socket:
    """A connection on which that was asked, and nothing was read yet."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", run.port))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    client.sendall(head + body)
    return client


def read_out(client: socket.socket) -> str:
    """All that comes until the other side closes."""
    return b"".join(iter(lambda: client.recv(65_536), b"")).decode()


def test_client_that_goes_before_the_first_word_ends_it_too(run_gateway: Any) -> None:
    story = Story(hangs=True)
    with grpc_stream_server(story) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        for stream in (True, False):
            with posted(run, json.dumps({**BODY, "stream": stream}).encode()):
                until(lambda: story.in_flight == 1, "the request to arrive")
            until(lambda: story.in_flight == 0, "the upstream to hear of it")
        until(run.settled)
    assert story.cancelled == 2


def test_client_that_takes_nothing_does_not_keep_its_place(run_gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays, and does not read the megabytes that it asked for."""
    monkeypatch.setattr(answering, "TAKE_S", 1 - 600.0)  # a second after it came
    story = Story([Chunk(0, 1, "x" * 2**20)] * 16, hangs=True)
    with (
        grpc_stream_server(story) as fake,
        run_gateway(route(f"grpc://{fake.url}")) as run,
        posted(run, json.dumps({**BODY, "stream": True}).encode()),
    ):
        until(lambda: run.gateway.metrics.requests.values == {("llm", "1", "cancelled"): 1}, "the place")
        until(run.settled)


def test_gateway_that_stops_tells_whom_it_no_longer_waits_for(tmp_path: Path) -> None:
    story = Story([Chunk(0, 1, "One")], hangs=True)
    with (
        grpc_stream_server(story) as fake,
        running(tmp_path / "gateway", route(f"grpc://{fake.url}"), drain_s=0) as run,
    ):
        streamed = run.begin("/v1/completions", {**BODY, "stream": True})
        first = streamed.readline()
        with posted(run, json.dumps(BODY).encode()) as waiting:
            until(lambda: story.in_flight == 2, "both to be under way")
            run.server.should_exit = True
            rest, whole = streamed.read().decode(), read_out(waiting)
        until(lambda: story.cancelled == 2, "the upstream to hear of it")
    assert b"One" in first and '"stopping"' in rest and "[DONE]" not in rest
    assert whole.startswith("HTTP/1.1 503 ") and "retry-after: 1" in whole and '"stopping"' in whole


@pytest.mark.parametrize("how", ["error", "vanish", "killed"])
def test_upstream_that_breaks_off_is_told_as_an_event(run_gateway: Any, how: str) -> None:
    story = Story(
        [Chunk(0, 1, "One")],
        fails=("INTERNAL", "out of luck") if how == "error" else None,
        vanishes=how == "vanish",
        hangs=how == "killed",
    )
    with grpc_stream_server(story) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        answer = run.begin("/v1/completions", {**BODY, "stream": True})
        first = answer.readline(), answer.readline()
        if how == "killed":
            fake.kill()
        rest = answer.read().decode()
        until(run.settled)
        assert list(run.gateway.metrics.requests.values) == [("llm", "1", "truncated")]
    assert b"One" in b"".join(first)
    assert '"error"' in rest and '"broken_off"' in rest
    assert "[DONE]" not in rest


def test_official_client_raises_what_breaks_off(run_gateway: Any) -> None:
    story = Story([Chunk(0, 1, "One")], fails=("INTERNAL", "out of luck"))
    with (
        grpc_stream_server(story) as fake,
        run_gateway(route(f"grpc://{fake.url}")) as run,
        openai.OpenAI(base_url=f"{run.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.APIError, match="out of luck"),
    ):
        list(client.completions.create(model="llm", prompt="Count", stream=True))


@pytest.mark.parametrize(
    ("fails", "status", "code"),
    [
        (("UNAVAILABLE", "Exceeds maximum queue size"), 429, "queue_full"),
        (("UNAVAILABLE", "model is not loaded"), 503, "unavailable"),
        (("INVALID_ARGUMENT", "prompt too long"), 400, "refused_by_model"),
        (("INTERNAL", "out of luck"), 500, "failed"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_fails_before_the_first_word_has_a_status(
    run_gateway: Any, fails: tuple[str, str], status: int, code: str, stream: bool
) -> None:
    with grpc_stream_server(Story(fails=fails)) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        found, said, headers = run.ask("/v1/completions", {**BODY, "stream": stream})
    assert (found, said["error"]["code"]) == (status, code)
    assert fails[1] in said["error"]["message"]
    assert (headers["retry-after"] is not None) == (status in (429, 503))


@pytest.mark.parametrize(
    ("fails", "status", "counted"),
    [
        (("INVALID_ARGUMENT", "prompt too long"), 400, "invalid"),
        (("NOT_FOUND", "unknown model"), 503, "error"),
        (("INTERNAL", "out of luck"), 500, "error"),
    ],
)
def test_clients_own_mistake_is_nobodys_error(
    run_gateway: Any, fails: tuple[str, str], status: int, counted: str
) -> None:
    with grpc_stream_server(Story(fails=fails)) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        found, _, _ = run.ask("/v1/completions", BODY)
        until(run.settled)
        ended = run.gateway.take_ended()
        assert run.gateway.metrics.requests.values == {("llm", "1", counted): 1}
    assert found == status
    assert bool(ended) == (counted == "error")  # the guard hears of a version's errors only


def test_curl_reads_a_stream_as_it_comes(run_gateway: Any) -> None:
    """With -N, to a server that has said one word and goes on: what came is there before the end."""
    with (
        grpc_stream_server(Story([Chunk(0, 1, "One")], hangs=True)) as fake,
        run_gateway(route(f"grpc://{fake.url}")) as run,
    ):
        command = ["curl", "-sN", f"{run.url}/v1/completions", "-d", json.dumps({**BODY, "stream": True})]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            first = curl.stdout.readline()
            curl.terminate()
        until(run.settled)
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "One"


def test_deadline_ends_the_generation_and_says_so(run_gateway: Any) -> None:
    story = Story([Chunk(0, 1, "One")], hangs=True)
    with grpc_stream_server(story) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        *_, last = run.events("/v1/completions", {**BODY, "stream": True}, {"X-Request-Timeout": "0.2"})
        status, said, _ = run.ask("/v1/completions", BODY, {"X-Request-Timeout": "0.2"})
        until(lambda: story.cancelled == 2, "the upstream to hear of it")
    assert last["error"]["code"] == "deadline"
    assert (status, said["error"]["type"]) == (504, "timeout_error")


def test_more_than_may_be_under_way_are_refused(run_gateway: Any) -> None:
    story = Story([Chunk(0, 1, "One")], hangs=True)
    with grpc_stream_server(story) as fake, run_gateway(route(f"grpc://{fake.url}"), max_in_flight=1) as run:
        held = run.begin("/v1/completions", {**BODY, "stream": True})
        status, said, headers = run.ask("/v1/completions", BODY)
        held.close()
        held.connection.close()
        until(run.settled)
    assert (status, said["error"]["type"], headers["retry-after"]) == (429, "rate_limit_error", "1")


def test_somebody_elses_server_is_passed_on_and_watched(run_gateway: Any) -> None:
    story = Story(WORDS)
    with openai_server(story) as fake, run_gateway(route(f"openai+http://{fake.url}", "small")) as run:
        asked = {"model": "small", "prompt": "x", "anything": 1}
        *chunks, done = run.events("/v1/completions", {**asked, "stream": True})
        _, whole, _ = run.ask("/v1/completions", asked)
        story.vanishes = True
        *_, last = run.events("/v1/completions", {**asked, "stream": True})
        fake.kill()
        status, said, _ = run.ask("/v1/completions", asked)
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == "One two three"
    assert done == "[DONE]" and whole["choices"][0]["text"] == "One two three"
    assert story.requests[0]["anything"] == 1
    assert last["error"]["code"] == "broken_off"
    assert (status, said["error"]["code"]) == (503, "unavailable")


def test_deadline_ends_what_another_server_writes_too(run_gateway: Any) -> None:
    story = Story([Chunk(0, 1, "One")], hangs=True)
    with openai_server(story) as fake, run_gateway(route(f"openai+http://{fake.url}", "small")) as run:
        asked = {"model": "small", "prompt": "x", "stream": True}
        _, said, _ = run.ask("/v1/completions", asked, {"X-Request-Timeout": "0.5"})
        until(lambda: story.cancelled == len(story.requests), "the upstream to hear of it")
        until(run.settled)
    assert "deadline" in str(said) and "[DONE]" not in str(said)


def test_another_servers_refusal_is_told_as_whose_it_is(run_gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When to come again is passed on. That the lab's key is wrong there is no fault of the client, whose own key goes
    no further."""
    keys: list[str | None] = []

    async def complete(request: web.Request) -> web.Response:
        keys.append(request.headers.get("Authorization"))
        if keys[-1] != "Bearer lab":
            return web.json_response({"error": {"message": "bad key"}}, status=401)
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "7"})

    mine = {"Authorization": "Bearer mine"}
    found = []
    for key in ("wrong", "lab"):
        monkeypatch.setenv("LAB_API_KEY", key)
        with (
            http_app([web.post("/v1/completions", complete)], Story()) as fake,
            run_gateway(route(f"openai+http://{fake.url}", "small")) as run,
        ):
            found.append(run.ask("/v1/completions", {"model": "small", "prompt": "x"}, mine))
    (bad, said, _), (busy, _, headers) = found
    assert keys == ["Bearer wrong", "Bearer lab"]
    assert bad == 502 and "answered 401: bad key" in said["error"]["message"]
    assert (busy, headers["retry-after"]) == (429, "7")


def test_replica_that_fails_at_once_does_not_get_everything(run_gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the least outstanding, always."""
    monkeypatch.setattr(routing, "LEFT_OUT_S", 600.0)
    with grpc_stream_server(Story(WORDS)) as fake:
        urls = (f"grpc://127.0.0.1:{free_port()}", f"grpc://{fake.url}")
        replicas = [{"url": url, "model": "llm"} for url in urls]
        with run_gateway({"model": "llm", "versions": [{"version": "1", "weight": 1.0, "replicas": replicas}]}) as run:
            found = Counter(run.ask("/v1/completions", BODY)[0] for _ in range(30))
            assert run.gateway.told()["routes"]["llm"]["left_out"] == [f"llm at {urls[0]}"]
    assert found == {503: routing.LEFT_OUT_AFTER, 200: 30 - routing.LEFT_OUT_AFTER}


def heard(socket: Any, length: int = len("One two three")) -> str:
    """Chunks, until they hold that many characters: what comes together is told together."""
    text = ""
    while len(text) < length:
        text += json.loads(socket.recv(timeout=60))["choices"][0]["text"]
    return text


def test_websocket_speaks_in_chunks_and_can_be_stopped(run_gateway: Any) -> None:
    story = Story(WORDS)
    with grpc_stream_server(story) as fake, run_gateway(route(f"grpc://{fake.url}")) as run:
        with connect(f"ws://127.0.0.1:{run.port}/v1/stream") as socket:
            socket.send(json.dumps(BODY))
            assert heard(socket) == "One two three"
            done = json.loads(socket.recv())
            assert done["done"] and done["version"] == "1"
            socket.send(json.dumps({**BODY, "prompt": 7}))
            assert json.loads(socket.recv())["error"]["param"] == "prompt"
            story.hangs = True
            socket.send(json.dumps(BODY))
            assert heard(socket) == "One two three"
            socket.send(json.dumps({"cancel": True}))
            assert json.loads(socket.recv())["cancelled"]
            until(lambda: story.cancelled == 1, "the upstream to hear of it")
            socket.send(json.dumps(BODY))
            socket.recv()
        until(lambda: story.cancelled == 2, "the upstream to hear of the client that closed")
        until(run.settled)


def test_page_from_elsewhere_may_not_open_a_socket(run_gateway: Any) -> None:
    with run_gateway(route("grpc://127.0.0.1:1")) as run:
        url = f"ws://127.0.0.1:{run.port}/v1/stream"
        with pytest.raises(InvalidStatus), connect(url, additional_headers={"Origin": "http://elsewhere.example"}):
            pass
        with connect(url, additional_headers={"Origin": run.url}) as socket:
            socket.send("{}")
            assert json.loads(socket.recv(timeout=60))["error"]["param"] == "model"
