"""Replicate's predictions against a local server that follows their public description: created, streamed, polled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from lab.errors import InputError, ServerError
from lab.load.payload import requests_for
from lab.load.targets import INVALID
from lab.load.targets.replicate import Replicate, events, place
from lab.measure.records import ERROR, OK, REFUSED, TRUNCATED
from lab.serve.replicate_server import ReplicateServer
from lab.spec import ClosedLoop, ModelSpec, Workload
from tests.load.fakes.servers import FakeServer, free_port, http_app
from tests.load.fakes.using import Using, use

METRICS = {"input_token_count": 64, "output_token_count": 3, "predict_time": 0.1}


@contextmanager
def replicate(
    *,
    pieces: tuple[str, ...] = ("a", "b", "c"),
    polls: int = 2,
    busy: int = 0,
    fails: str | None = None,
    status: int = 201,
    key: str = "",
) -> Iterator[tuple[FakeServer, dict[str, Any]]]:
    """Streams these pieces if a stream is asked for; a polled prediction is over at the `polls`-th look. The first
    `busy` looks are refused."""
    seen: dict[str, Any] = {"posts": [], "looks": 0, "cancelled": 0, "headers": []}

    def told(request: web.Request, state: str) -> dict[str, Any]:
        base = f"http://{request.host}"
        urls = {"get": f"{base}/v1/predictions/p1", "cancel": f"{base}/v1/predictions/p1/cancel"}
        if seen["posts"][-1][1].get("stream"):
            urls["stream"] = f"{base}/stream/p1"
        over = state == "succeeded"
        return {
            "id": "p1", "status": "failed" if over and fails else state, "urls": urls, "error": fails if over else None,
            "output": list(pieces) if over else None, "metrics": METRICS if over else {},
        }  # fmt: skip

    async def create(request: web.Request) -> web.Response:
        seen["headers"].append(request.headers.get("Authorization"))
        seen["posts"].append((request.path, await request.json()))
        if status != 201:
            return web.json_response({"title": "no", "detail": "no", "error": "no"}, status=status)
        return web.json_response(told(request, "starting"), status=201)

    async def look(request: web.Request) -> web.Response:
        seen["looks"] += 1
        if seen["looks"] <= busy:
            return web.json_response({"detail": "Request was throttled."}, status=429)
        over = seen["looks"] >= polls or "stream" in told(request, "starting")["urls"]
        return web.json_response(told(request, "succeeded" if over else "processing"))

    async def cancel(_: web.Request) -> web.Response:
        seen["cancelled"] += 1
        return web.json_response({})

    async def stream(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept"] == "text/event-stream"
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b": hello\n\n")
        for number, piece in enumerate(pieces):
            await answer.write(f"event: output\nid: {number}\ndata: {piece}\n\n".encode())
        if fails is not None:
            await answer.write(f"event: error\ndata: {fails}\n\n".encode())
        await answer.write(b"event: done\ndata: {}\n\n")
        return answer

    async def account(request: web.Request) -> web.Response:
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({}, status=401)
        return web.json_response({"type": "user", "username": "somebody"})

    routes = [
        web.post("/v1/models/{owner}/{name}/predictions", create),
        web.post("/v1/deployments/{owner}/{name}/predictions", create),
        web.post("/v1/predictions", create),
        web.get("/v1/predictions/p1", look),
        web.post("/v1/predictions/p1/cancel", cancel),
        web.get("/stream/p1", stream),
        web.get("/v1/account", account),
    ]
    with http_app(routes, None) as fake:
        yield fake, seen


def prompts(stream: bool) -> list[Any]:
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, output_tokens=5, stream=stream)
    return requests_for(ModelSpec(name="llm"), workload, 1)


class Named(Replicate):
    """Asks for "owner/name", whatever the test's own model is called."""

    def prepare(self, model: str, requests: Any) -> Any:
        return super().prepare("meta/small", requests)


def asked(fake_url: str, *, stream: bool = True) -> Any:
    async def script(using: Using) -> None:
        using.ask(0)
        await using.until(0)

    return use(Named, f"replicate+http://{fake_url}", prompts(stream), script).ends[0]


def test_a_stream_has_a_stamp_a_piece_and_the_predictions_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", "r8-secret")
    with replicate() as (fake, seen):
        end = asked(fake.url)
    assert end.outcome == OK and len(end.generated.chunk_ns) == 3 and end.generated.chunk_tokens is None
    assert (end.generated.prompt_tokens, end.generated.output_tokens) == (64, 3)
    path, body = seen["posts"][0]
    assert path == "/v1/models/meta/small/predictions" and body["stream"] is True
    assert body["input"]["max_tokens"] == 5 and body["input"]["prompt"] and "ignore_eos" not in body["input"]
    assert seen["headers"] == ["Bearer r8-secret"]


def test_without_a_stream_it_is_polled_until_it_is_over() -> None:
    with replicate(polls=3) as (fake, seen):
        end = asked(fake.url, stream=False)
    assert end.outcome == OK and seen["looks"] == 3
    assert len(end.generated.chunk_ns) == 1 and end.generated.output_tokens == 3


def test_a_look_that_is_refused_says_nothing_of_the_prediction() -> None:
    with replicate(polls=1, busy=1) as (fake, seen):
        end = asked(fake.url, stream=False)
    assert end.outcome == OK and seen["looks"] == 2


@pytest.mark.parametrize("cut", range(1, 40))
def test_events_may_be_cut_anywhere(cut: int) -> None:
    said = b": hi\r\n\r\nevent: output\r\ndata: a\r\ndata:  b\r\n\r\nevent: done\ndata: {}\n\n"

    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            yield said[:cut]
            yield said[cut:]

    async def read() -> list[tuple[str, str]]:
        return [(name, data) async for name, data, _ in events(Content())]

    assert asyncio.run(read()) == [("output", "a\n b"), ("done", "{}")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_prediction_that_fails_keeps_its_words(stream: bool) -> None:
    with replicate(fails="CUDA out of memory", polls=1) as (fake, _):
        end = asked(fake.url, stream=stream)
    assert end.outcome == (TRUNCATED if end.generated.chunk_ns else ERROR)
    assert end.detail == "prediction failed: CUDA out of memory"


@pytest.mark.parametrize(("status", "outcome"), [(429, REFUSED), (404, INVALID), (422, INVALID), (500, ERROR)])
def test_a_refusal_keeps_its_kind(status: int, outcome: int) -> None:
    with replicate(status=status) as (fake, _):
        end = asked(fake.url)
    assert end.outcome == outcome and str(status) in end.detail


def test_one_that_is_given_up_is_cancelled_there() -> None:
    with replicate(polls=1_000) as (fake, seen):

        async def script(using: Using) -> None:
            from tests.waiting import until_async

            using.ask(0)
            await until_async(lambda: seen["looks"] > 0)
            using.target.cancel(0)

        use(Named, f"replicate+http://{fake.url}", prompts(False), script)
    assert seen["cancelled"] == 1


def test_models_deployments_and_versions_have_paths_of_their_own() -> None:
    version = "0123456789abcdef" * 4
    assert place("meta/llama") == ("/models/meta/llama/predictions", {})
    assert place("deployments/acme/app") == ("/deployments/acme/app/predictions", {})
    assert place(version) == ("/predictions", {"version": version})
    with pytest.raises(InputError, match="allowed at Replicate are OWNER/NAME"):
        place("llama")


def test_its_server_is_known_by_its_account_and_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with replicate(key="r8") as (fake, _):
        with pytest.raises(ServerError, match="LAB_API_KEY"):
            ReplicateServer(f"replicate+http://{fake.url}")
        monkeypatch.setenv("LAB_API_KEY", "r8")
        with ReplicateServer(f"replicate+http://{fake.url}") as server:
            assert server.alive() and server.died() is None and "not verified" in server.version()
    assert asked(f"127.0.0.1:{free_port()}").outcome == REFUSED


def test_bodies_are_what_a_person_would_send_with_curl() -> None:
    target = Replicate("replicate+https://api.replicate.com", lambda *_: None)
    url, body = target.prepare("meta/llama", prompts(True))[0]
    assert url == "https://api.replicate.com/v1/models/meta/llama/predictions"
    assert set(json.loads(body)) == {"input", "stream"}
