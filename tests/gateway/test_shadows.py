"""Copies that nobody waits for: shadow traffic, and whose fault it is that a request was refused."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from websockets.sync.client import connect

from lab.measure.records import ERROR, OK
from tests.gateway.conftest import Running, two_versions
from tests.load.fakes.streams import Chunk, Story, grpc_stream_server, openai_server
from tests.waiting import until

WORDS = [Chunk(0, 1, "One"), Chunk(0, 2, " two"), Chunk(0, 1, " three")]
BODY = {"model": "llm", "prompt": "Count", "max_tokens": 4}
CANARY = {"champion": "1", "challenger": "2", "steps": [0.5, 1.0]}
REFUSES = ("INVALID_ARGUMENT", "prompt too long")


def test_shadow_is_asked_the_same_and_nobody_waits_for_it(run_gateway: Any) -> None:
    first, shadow = Story(WORDS), Story([Chunk(0.1, 1, "Else")])
    with grpc_stream_server(first) as one, grpc_stream_server(shadow) as two:
        both = two_versions(f"grpc://{one.url}", share=0.0, other=f"grpc://{two.url}")
        with run_gateway({**both, "mirror": {"version": "2"}}) as run:
            _, said, _ = run.ask("/v1/completions", BODY)
            assert said["choices"][0]["text"] == "One two three"
            until(lambda: run.gateway.metrics.shadows.values == {("llm", "2", "different"): 1})
            shadow.fails = ("INTERNAL", "out of luck")
            run.events("/v1/completions", {**BODY, "stream": True})
            until(lambda: len(run.gateway.metrics.shadows.values) == 2)
            until(run.settled)
            told = run.gateway.metrics.requests.values
    assert told == {("llm", "1", "ok"): 2}  # shadows are nobody's requests


@pytest.mark.parametrize("kind", ["grpc", "openai"])
def test_shadow_may_be_another_kind_of_server(run_gateway: Any, kind: str) -> None:
    serves = {"grpc": grpc_stream_server, "openai": openai_server}[kind]
    url = {"grpc": "grpc://{}", "openai": "openai+http://{}"}[kind]
    with serves(Story(WORDS)) as one, openai_server(Story(WORDS)) as two:
        both = two_versions(url.format(one.url), "small", share=0.0, other=f"openai+http://{two.url}")
        with run_gateway({**both, "mirror": {"version": "2"}}) as run:
            body = {**BODY, "model": "small"}
            run.ask("/v1/completions", body)
            run.events("/v1/completions", {**body, "stream": True})
            until(lambda: run.gateway.metrics.shadows.values == {("small", "2", "same"): 2})
            until(run.settled)
    assert [len(server.service.requests) for server in (one, two)] == [2, 2]


def asked(run: Running, times: int, **more: Any) -> Counter[int]:
    """Statuses, once all copies are made."""
    found = Counter(run.ask("/v1/completions", {**BODY, **more})[0] for _ in range(times))
    until(lambda: sum(run.gateway.metrics.refusals.values.values()) == found[400], "the copies")
    until(run.settled)
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refuser", ["1", "2"])
def test_refusal_of_what_the_other_takes_is_a_failure(run_gateway: Any, refuser: str, stream: bool) -> None:
    """Of the champion's as of the challenger's, or one that is no worse would look so."""
    one, two = (Story(fails=REFUSES) if version == refuser else Story(WORDS) for version in ("1", "2"))
    with grpc_stream_server(one) as first, grpc_stream_server(two) as second:
        route = two_versions(f"grpc://{first.url}", other=f"grpc://{second.url}")
        with run_gateway({**route, "canary": CANARY}) as run:
            found = asked(run, 20, stream=stream)
            told = run.gateway.metrics.refusals.values
            ended = Counter((one.version, one.share, one.outcome) for one in run.gateway.take_ended()["llm"])
    other = {"1": "2", "2": "1"}[refuser]
    assert set(found) == {200, 400} and told == {("llm", refuser, "took"): found[400]}
    assert ended == {(other, 0.5, OK): found[200], (refuser, 0.5, ERROR): found[400]}


def test_refusal_that_both_share_is_the_clients_mistake(run_gateway: Any) -> None:
    with (
        grpc_stream_server(Story(fails=REFUSES)) as fake,
        run_gateway({**two_versions(f"grpc://{fake.url}"), "canary": CANARY}) as run,
    ):
        asked(run, 10)
        told = run.gateway.metrics.refusals.values
        assert {key[2] for key in told} == {"refused"} and sum(told.values()) == 10
        assert run.gateway.take_ended() == {}


def test_other_version_that_cannot_answer_says_nothing(run_gateway: Any) -> None:
    one, two = Story(fails=("INTERNAL", "out of luck")), Story(fails=REFUSES)
    with grpc_stream_server(one) as first, grpc_stream_server(two) as second:
        route = two_versions(f"grpc://{first.url}", other=f"grpc://{second.url}")
        with run_gateway({**route, "canary": CANARY}) as run:
            found = asked(run, 20)
            assert run.gateway.metrics.refusals.values == {("llm", "2", "failed"): found[400]}
            ended = run.gateway.take_ended()["llm"]
    assert {one.version for one in ended} == {"1"}


def test_what_no_guard_compares_is_not_asked_again(run_gateway: Any) -> None:
    story = Story(fails=REFUSES)
    with grpc_stream_server(story) as fake:
        with run_gateway(two_versions(f"grpc://{fake.url}")) as run:  # no rollout
            assert run.ask("/v1/completions", BODY)[0] == 400
            until(run.settled)
        with run_gateway({**two_versions(f"grpc://{fake.url}"), "canary": CANARY}) as run:
            assert run.ask("/v1/completions", BODY, {"X-Model-Version": "2"})[0] == 400  # not drawn
            until(run.settled)
            assert run.gateway.metrics.refusals.values == {}
        with run_gateway({**two_versions(f"grpc://{fake.url}"), "canary": {**CANARY, "state": "promoted"}}) as run:
            assert run.ask("/v1/completions", BODY)[0] == 400
            until(run.settled)
            assert run.gateway.metrics.refusals.values == {}
    assert len(story.requests) == 3


def test_refusals_over_a_websocket_are_looked_into_too(run_gateway: Any) -> None:
    one, two = Story(WORDS), Story(fails=REFUSES)
    with grpc_stream_server(one) as first, grpc_stream_server(two) as second:
        route = two_versions(f"grpc://{first.url}", share=0.999, other=f"grpc://{second.url}")
        with run_gateway({**route, "canary": CANARY}) as run:
            with connect(f"ws://127.0.0.1:{run.port}/v1/stream") as socket:
                socket.send(json.dumps(BODY))
                assert json.loads(socket.recv(timeout=60))["error"]["code"] == "refused_by_model"
                until(lambda: run.gateway.metrics.refusals.values == {("llm", "2", "took"): 1})
            until(run.settled)
