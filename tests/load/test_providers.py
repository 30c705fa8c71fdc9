"""Deployments of Modal and RunPod speak OpenAI's protocol behind a path and a key of their own."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from lab import credentials
from lab.errors import InputError, ServerError
from lab.load.payload import requests_for
from lab.load.targets.openai import OpenAI, endpoint
from lab.measure.records import ERROR, OK
from lab.run import given
from lab.serve.address import address
from lab.serve.openai_server import OpenAIServer
from lab.spec import ClosedLoop, ModelSpec, Workload
from tests.load.fakes.servers import http_app
from tests.load.fakes.using import Using, use

RUNPOD = "/v2/abc123/openai/v1"


@pytest.mark.parametrize(
    ("url", "posted_to"),
    [
        ("openai+https://api.runpod.ai/v2/abc/openai/v1", "https://api.runpod.ai/v2/abc/openai/v1/completions"),
        ("openai+https://me--app-serve.modal.run", "https://me--app-serve.modal.run/v1/completions"),
        ("openai+https://me--app.modal.run/v1/chat/completions", "https://me--app.modal.run/v1/chat/completions"),
        ("http://h:1/a/v1/chat/completions", "http://h:1/a/v1/chat/completions"),
    ],
)
def test_what_stands_before_the_protocols_path_is_kept(url: str, posted_to: str) -> None:
    assert endpoint(url) == posted_to


@pytest.mark.parametrize("url", ["openai+https://h/v2", "openai+ftp://h/v1", "openai+https://h/v1/embeddings"])
def test_a_path_that_is_none_of_the_protocol_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="allowed is openai"):
        endpoint(url)


def test_keys_come_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAB_API_KEY", "LAB_MODAL_KEY", "LAB_MODAL_SECRET"):
        monkeypatch.delenv(name, raising=False)
    assert credentials.headers() == {}
    monkeypatch.setenv("LAB_MODAL_KEY", "wk")
    assert credentials.headers() == {}  # half of a pair is none
    monkeypatch.setenv("LAB_MODAL_SECRET", "ws")
    monkeypatch.setenv("LAB_API_KEY", "rp")
    assert credentials.headers() == {"Authorization": "Bearer rp", "Modal-Key": "wk", "Modal-Secret": "ws"}


def test_a_deployment_behind_a_path_lists_its_models_and_answers_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer rp":
            return web.json_response({"error": "no key"}, status=401)
        return web.json_response({"object": "list", "data": [{"id": "small"}]})

    async def complete(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer rp"
        choice = {"text": "hi", "finish_reason": "length"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 4, "completion_tokens": 1}})

    routes = [web.get(f"{RUNPOD}/models", models), web.post(f"{RUNPOD}/completions", complete)]
    with http_app(routes, None) as fake:
        url = f"openai+http://{fake.url}{RUNPOD}"
        with pytest.raises(ServerError, match="answered 401"):
            OpenAIServer(url)
        monkeypatch.setenv("LAB_API_KEY", "rp")
        with OpenAIServer(url) as server:
            assert [state.name for state in server.states()] == ["small"]
            base = server.http_url  # what load workers are given

        async def script(using: Using) -> None:
            using.ask(0)
            await using.until(0)

        workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, output_tokens=1, stream=False)
        end = use(OpenAI, base, requests_for(ModelSpec(name="llm"), workload, 1), script).ends[0]
    assert end.outcome == OK and end.generated is not None and end.generated.output_tokens == 1


def test_a_key_is_not_taken_along_to_where_a_server_sends_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", "rp")
    there: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        there.append(request.path)
        return web.json_response({"data": []})

    async def sent(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"http://{other.url}{request.path}")

    with (
        http_app([web.route("*", "/{any:.*}", elsewhere)], None) as other,
        http_app([web.route("*", "/{any:.*}", sent)], None) as fake,
    ):
        with pytest.raises(ServerError, match="answered 307"):
            OpenAIServer(f"openai+http://{fake.url}")

        async def script(using: Using) -> None:
            using.ask(0)
            await using.until(0)

        workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, output_tokens=1)
        messages = requests_for(ModelSpec(name="llm"), workload, 1)
        end = use(OpenAI, f"http://{fake.url}", messages, script).ends[0]
    assert end.outcome == ERROR and end.detail.startswith("HTTP 307")
    assert not there


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("openai+https://api.runpod.ai/v2/abc/openai/v1", ["RunPod"]),
        ("openai+https://me--app-serve.modal.run", ["Modal"]),
        ("openai+http://127.0.0.1:8100", []),
        ("openai+https://notmodal.run", []),
    ],
)
def test_who_was_never_tried_live_says_so(url: str, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(states=lambda: [SimpleNamespace(name="small")])
    monkeypatch.setattr(given, "OpenAIServer", lambda url: nullcontext(there))
    notes = given.of_url(url, "small", given.Wishes()).notes
    assert [note.partition(" is asked")[0] for note in notes] == said
    assert all("not verified against the live service" in note for note in notes)


def test_providers_have_their_usual_port() -> None:
    assert address("replicate+https://api.replicate.com").port == 443
    assert address("openai+https://api.runpod.ai/v2/abc/openai/v1").path == RUNPOD.replace("abc123", "abc")
    with pytest.raises(InputError):
        address("replicate+ftp://api.replicate.com")


def test_no_key_is_ever_written_down() -> None:
    """Nothing but the headers reads them: a run's document is made of specs and URLs."""
    root = Path(__file__).parents[2] / "lab"
    readers = [path.name for path in root.rglob("*.py") if "LAB_API_KEY" in path.read_text()]
    assert set(readers) <= {"credentials.py", "replicate_server.py", "billing.py"}
