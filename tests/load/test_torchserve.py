"""TorchServe's REST against a scripted server whose book says what it got: whole answers, chunks, refusals, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lab.load.given import requests
from lab.load.payload import requests_for
from lab.load.targets import INVALID
from lab.load.targets.torchserve import TorchServe
from lab.load.targets.triton_http import error_text
from lab.measure.records import ERROR, OK, REFUSED, TRUNCATED
from lab.serve.torchserve_server import TorchServeServer
from lab.spec import ClosedLoop, Given, ModelSpec, Workload
from tests.load.fakes.servers import FakeServer, free_port, http_app
from tests.load.fakes.using import Using, use

FAILURE = {"code": 503, "type": "InternalServerException", "message": "Worker died."}


@contextmanager
def torchserve(*, pieces: tuple[Any, ...] = ("a", "b", "c"), status: int = 200) -> Iterator[tuple[FakeServer, list]]:
    """Answers with these pieces, each an HTTP chunk of its own; None breaks the connection."""
    got: list[tuple[str, bytes]] = []

    async def predict(request: web.Request) -> web.StreamResponse:
        got.append((request.match_info["model"], await request.read()))
        if status != 200:
            return web.json_response({**FAILURE, "code": status}, status=status)
        if len(pieces) == 1 and isinstance(pieces[0], dict):
            return web.json_response(pieces[0])
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        for piece in pieces:
            if piece is None:
                assert request.transport is not None
                request.transport.abort()
                return answer
            await answer.write(json.dumps(piece).encode() if isinstance(piece, dict) else piece.encode())
            await asyncio.sleep(0.01)
        return answer

    async def ping(_: web.Request) -> web.Response:
        return web.json_response({"status": "Healthy"})

    with http_app([web.post("/predictions/{model}", predict), web.get("/ping", ping)], None) as fake:
        yield fake, got


def asked(fake_url: str, messages: list[Any]) -> Any:
    async def script(using: Using) -> None:
        using.ask(0)
        await using.until(0)

    return use(TorchServe, f"torchserve+http://{fake_url}", messages, script).ends[0]


def prompts() -> list[Any]:
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, output_tokens=5)
    return requests_for(ModelSpec(name="llm"), workload, 1)


def test_each_chunk_has_its_stamp_and_no_count_of_tokens() -> None:
    with torchserve() as (fake, got):
        end = asked(fake.url, prompts())
    assert end.outcome == OK and end.generated is not None
    assert len(end.generated.chunk_ns) == 3 and end.generated.chunk_ns == sorted(end.generated.chunk_ns)
    assert end.generated.chunk_tokens is None and end.generated.output_tokens is None
    model, body = got[0]
    assert model == "llm" and json.loads(body)["max_tokens"] == 5 and json.loads(body)["stream"] is True


def test_bodies_of_a_file_are_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "bodies.json"
    path.write_text(json.dumps([{"data": [1, 2]}, {"data": "text"}]))
    with torchserve(pieces=({"class": 7},)) as (fake, got):
        end = asked(fake.url, requests(Given(inputs=(), data=str(path)), 0, 4))
    assert end.outcome == OK and json.loads(got[0][1]) == {"data": [1, 2]}


def test_an_error_in_the_middle_truncates() -> None:
    with torchserve(pieces=("a", FAILURE)) as (fake, _):
        end = asked(fake.url, prompts())
    assert end.outcome == TRUNCATED and end.detail == "503 InternalServerException: Worker died."
    assert end.generated is not None and len(end.generated.chunk_ns) == 1


def test_a_connection_that_breaks_truncates() -> None:
    with torchserve(pieces=("a", None)) as (fake, _):
        assert asked(fake.url, prompts()).outcome == TRUNCATED


def test_what_a_server_says_is_one_line() -> None:
    """TorchServe's own answer for a model that it has not, as it writes it."""
    said = b'{\n  "code": 404,\n  "type": "ModelNotFoundException",\n  "message": "Model not found: nothere"\n}\n'
    assert error_text(said) == "Model not found: nothere"
    assert error_text(b'{"error": {"message": "too\\n long"}}') == "too long"
    assert error_text(b"<html>\n<body>Bad\n gateway") == "<html> <body>Bad gateway"
    assert error_text(b"[1,\n 2]") == "[1, 2]"


@pytest.mark.parametrize(("status", "outcome"), [(503, REFUSED), (404, INVALID), (507, REFUSED), (500, ERROR)])
def test_a_refusal_keeps_its_kind(status: int, outcome: int) -> None:
    with torchserve(status=status) as (fake, _):
        end = asked(fake.url, prompts())
    assert end.outcome == outcome and str(status) in end.detail


def test_nobody_there_is_refused_and_a_server_that_is_one_is_known() -> None:
    assert asked(f"127.0.0.1:{free_port()}", prompts()).outcome == REFUSED
    with torchserve() as (fake, _), TorchServeServer(f"torchserve+http://{fake.url}") as server:
        assert server.alive() and server.died() is None
