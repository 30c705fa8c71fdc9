"""Every target whose answers come in chunks, against servers of others whose book says when each chunk left them."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import numpy as np
import pytest

from lab.errors import InputError
from lab.load.payload import requests_for
from lab.load.targets import INVALID, Generated
from lab.load.targets.generate_stream import GenerateStream, TritonAnswer
from lab.load.targets.openai import OpenAI, OpenAIAnswer, endpoint
from lab.load.targets.triton_stream import TritonStream
from lab.measure.records import ERROR, OK, REFUSED, TRUNCATED
from lab.spec import ClosedLoop, ModelSpec, Workload
from tests.load.fakes.servers import free_port
from tests.load.fakes.streams import Chunk, Story, generate_server, grpc_stream_server, openai_server
from tests.load.fakes.using import End, Using, use
from tests.waiting import until_async

LATE_NS = 40_000_000
"""A chunk is stamped that long after it was sent at most: short beside a wrong chunk, and long for a busy machine. One
that stands still for longer holds up what is on its way then: a chunk or two."""


def requests(**more: Any) -> list[dict[str, np.ndarray]]:
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, output_tokens=(3, 9), **more)
    return requests_for(ModelSpec(name="llm"), workload, 50)


@dataclass(frozen=True)
class Kind:
    target: Any
    server: Any
    prefix: str = ""
    path: str = ""

    def url(self, fake: Any) -> str:
        return f"{self.prefix}{fake.url}{self.path}"


GRPC = Kind(TritonStream, grpc_stream_server)
GENERATE = Kind(GenerateStream, generate_server)
COMPLETIONS = Kind(OpenAI, openai_server, "openai+http://")
CHAT = Kind(OpenAI, openai_server, "http://", "/v1/chat/completions")
ALL = pytest.mark.parametrize(
    "kind", [GRPC, GENERATE, COMPLETIONS, CHAT], ids=["grpc", "generate", "completions", "chat"]
)
OPENAI = pytest.mark.parametrize("kind", [COMPLETIONS, CHAT], ids=["completions", "chat"])


def answered(kind: Kind, story: Story, count: int = 1, **more: Any) -> Using:
    async def script(using: Using) -> None:
        for number in range(count):
            using.ask(number)
        await using.until(*range(count))

    with kind.server(story) as fake:
        return use(kind.target, kind.url(fake), requests(**more), script)


def answer(kind: Kind, story: Story, **more: Any) -> tuple[End, Generated]:
    end = answered(kind, story, **more).ends[0]
    assert end.generated is not None
    return end, end.generated


def assert_stamped(chunk_ns: list[int], sent_ns: list[int]) -> None:
    assert len(chunk_ns) == len(sent_ns)
    late_ns = [arrived - sent for arrived, sent in zip(chunk_ns, sent_ns, strict=True)]
    assert min(late_ns) > 0
    assert median_low(late_ns) < LATE_NS


# --- chunks and tokens ---


@ALL
def test_chunks_have_their_own_stamps_and_the_servers_tokens(kind: Kind) -> None:  # T1, T36: 3 chunks, no empty one
    story = Story([Chunk(0.1, 4), Chunk(0.2, 3), Chunk(0.3, 3)])
    end, generated = answer(kind, story)
    assert (end.outcome, end.detail) == (OK, None)
    assert generated.chunk_tokens == [4, 3, 3]
    assert (generated.prompt_tokens, generated.output_tokens, generated.reasoning_chunks) == (7, 10, 0)
    assert_stamped(generated.chunk_ns, story.sent_ns[0])
    assert end.arrived_ns >= generated.chunk_ns[-1]


@ALL
def test_one_chunk_may_hold_the_whole_answer(kind: Kind) -> None:  # T2
    end, generated = answer(kind, Story([Chunk(0.05, 16)]))
    assert end.outcome == OK
    assert (generated.chunk_tokens, generated.output_tokens, len(generated.chunk_ns)) == ([16], 16, 1)


@ALL
def test_an_answer_of_ten_megabytes_is_one_of_its_tokens(kind: Kind) -> None:
    end, generated = answer(kind, Story([Chunk(0, 2), Chunk(0.01, 5, "x" * 10_000_000), Chunk(0.02, 1)]))
    assert (end.outcome, generated.chunk_tokens) == (OK, [2, 5, 1])


@ALL
def test_what_holds_no_token_is_no_chunk(kind: Kind) -> None:  # T8: role at 5 ms, nothing at 50 ms, a word at 200 ms
    story = Story([Chunk(0.005, 0, ""), Chunk(0.05, 0, ""), Chunk(0.2, 1), Chunk(0.25, 1), Chunk(0.26, 0, "")])
    _, generated = answer(kind, story)
    assert generated.chunk_tokens == [1, 1]
    assert_stamped(generated.chunk_ns, story.sent_ns[0][2:4])


@ALL
def test_a_token_without_text_is_a_chunk(kind: Kind) -> None:  # half a character, or an end token that was ignored
    _, generated = answer(kind, Story([Chunk(0, 1), Chunk(0.02, 1, ""), Chunk(0.04, 2)]))
    assert generated.chunk_tokens == [1, 1, 2]


@ALL
def test_tokens_are_the_servers_count_whatever_the_text(kind: Kind) -> None:  # T26, P24
    story = Story([Chunk(0.1, 1, "<s>a   b"), *(Chunk(0.1 + 0.05 * i, n) for i, n in enumerate((1, 4, 1, 4), 1))])
    _, generated = answer(kind, story)
    assert generated.chunk_tokens == [1, 1, 4, 1, 4]
    assert generated.output_tokens == 11


def test_an_answer_of_no_token_ends_well() -> None:  # P8 with N = 0: nothing but the empty final response
    end, generated = answer(GRPC, Story([]))
    assert end.outcome == OK
    assert (generated.chunk_ns, generated.output_tokens) == ([], 0)


def test_reasoning_is_counted_apart() -> None:  # T9
    story = Story([Chunk(0.05, 1, reasoning=True), Chunk(0.1, 2, reasoning=True), Chunk(0.3, 1), Chunk(0.4, 1)])
    _, generated = answer(CHAT, story)
    assert generated.reasoning_chunks == 2
    assert (generated.chunk_tokens, generated.output_tokens) == ([1, 2, 1, 1], 5)
    assert_stamped(generated.chunk_ns, story.sent_ns[0])


def test_a_message_that_ends_the_reasoning_is_content() -> None:
    answer = OpenAIAnswer()
    for stamp, delta in enumerate([{"reasoning": "so"}, {"reasoning": ".", "content": "Yes"}, {"content": "."}], 1):
        answer.read({"choices": [{"delta": delta}]}, stamp)
    assert answer.total().reasoning_chunks == 1


@OPENAI
@pytest.mark.parametrize(
    ("tokens", "chunk_tokens"),
    [([1] * 10, [1] * 10), ([4, 3, 3], None)],
    ids=["as many as chunks", "more than chunks"],
)
def test_of_a_total_alone_a_chunk_is_a_token_if_that_adds_up(
    kind: Kind, tokens: list[int], chunk_tokens: list[int] | None
) -> None:
    story = Story([Chunk(0.01 * i, n) for i, n in enumerate(tokens)], counts="total")
    end, generated = answer(kind, story)
    assert end.outcome == OK
    assert (generated.output_tokens, generated.chunk_tokens) == (10, chunk_tokens)
    assert len(generated.chunk_ns) == len(tokens)


def test_a_total_that_comes_with_the_last_word_is_not_that_words() -> None:
    answer = OpenAIAnswer()
    for stamp, (text, usage) in enumerate([("one", None), (" two", None), (" three", 3)], 1):
        event = {"choices": [{"text": text, "finish_reason": "length" if usage else None}]}
        answer.read(event | ({"usage": {"completion_tokens": usage}} if usage else {}), stamp)
    assert answer.complete
    assert answer.total() == Generated(None, 3, [1, 2, 3], [1, 1, 1])


def said(**usage: Any) -> bytes:
    return json.dumps({"choices": [{"text": "a"}], "usage": usage}).encode()


def test_what_the_prefix_cache_had_is_read_where_it_is_told() -> None:
    answer = OpenAIAnswer()
    answer.read_raw(said(prompt_tokens=40, completion_tokens=1, prompt_tokens_details={"cached_tokens": 32}), 1)
    answer.read_raw(said(prompt_tokens=40, completion_tokens=2, prompt_tokens_details=None), 2)
    assert answer.failure is None and answer.total().cached_tokens == 32
    untold = OpenAIAnswer()
    untold.read_raw(said(prompt_tokens=40, completion_tokens=1, prompt_tokens_details={}), 1)
    assert untold.failure is None and untold.total().cached_tokens is None
    odd = OpenAIAnswer()
    odd.read_raw(said(prompt_tokens=7, completion_tokens=1, prompt_tokens_details={"cached_tokens": 99}), 1)
    assert odd.failure is None and odd.total().cached_tokens is None  # more than there are


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": "40"},
        {"prompt_tokens": 2**31},
        {"completion_tokens": 1.5},
        {"completion_tokens": -1},
        {"completion_tokens": True},
        {"prompt_tokens_details": [32]},
        {"prompt_tokens_details": {"cached_tokens": "32"}},
    ],
)
def test_a_count_that_is_none_fails_its_request_alone(usage: dict[str, Any]) -> None:
    """What the records cannot hold would end the load worker."""
    answer = OpenAIAnswer()
    answer.read_raw(said(**usage), 1)
    assert answer.failure is not None and "none of this protocol" in answer.failure
    answer.total()


def test_a_count_of_tokens_that_is_none_fails_a_response_of_triton() -> None:
    answer = TritonAnswer()
    answer.read_raw(json.dumps({"text_output": "a", "num_output_tokens": "3"}).encode(), 1)
    assert answer.failure is not None and answer.total().chunk_ns == []


@ALL
def test_a_server_that_counts_nothing_leaves_tokens_unknown(kind: Kind) -> None:
    end, generated = answer(kind, Story([Chunk(0, 1), Chunk(0.05, 1)], counts=None))
    assert end.outcome == OK
    assert (generated.prompt_tokens, generated.output_tokens, generated.chunk_tokens) == (None, None, None)
    assert len(generated.chunk_ns) == 2


@OPENAI
def test_a_whole_answer_is_one_chunk(kind: Kind) -> None:
    end, generated = answer(kind, Story([Chunk(0.01, 4), Chunk(0.05, 3)]), stream=False)
    assert end.outcome == OK
    assert (generated.prompt_tokens, generated.output_tokens, generated.chunk_tokens) == (7, 7, [7])


# --- how answers end ---


@ALL
def test_an_error_in_the_middle_truncates_and_keeps_what_came(kind: Kind) -> None:  # T6
    story = Story([Chunk(0.02 * i, 1) for i in range(3)], fails=("INTERNAL", "out of cache"))
    end, generated = answer(kind, story)
    assert end.outcome == TRUNCATED
    assert "out of cache" in str(end.detail)
    assert (generated.chunk_tokens, generated.output_tokens) == ([1, 1, 1], 3)


@ALL
def test_a_stream_that_just_ends_is_truncated(kind: Kind) -> None:  # T6
    end, generated = answer(kind, Story([Chunk(0.02 * i, 1) for i in range(3)], vanishes=True))
    assert end.outcome == TRUNCATED
    assert "ended without" in str(end.detail)
    assert generated.output_tokens == 3


@OPENAI
def test_tokens_that_came_count_although_the_total_did_not(kind: Kind) -> None:
    _, generated = answer(kind, Story([Chunk(0.02 * i, 1) for i in range(3)], vanishes=True, counts="total"))
    assert (generated.output_tokens, generated.chunk_tokens) == (3, [1, 1, 1])


@ALL
@pytest.mark.parametrize(
    ("status", "outcome"),
    [("UNAVAILABLE", REFUSED), ("INVALID_ARGUMENT", INVALID), ("NOT_FOUND", INVALID), ("INTERNAL", ERROR)],
)
def test_a_refusal_before_the_first_token_keeps_its_kind(kind: Kind, status: str, outcome: int) -> None:
    end, generated = answer(kind, Story(fails=(status, "prompt of 9 tokens is too long")))
    assert end.outcome == outcome
    assert "prompt of 9 tokens is too long" in str(end.detail)
    assert generated.chunk_ns == []


@ALL
def test_nobody_there_is_refused(kind: Kind) -> None:
    async def script(using: Using) -> None:
        using.ask(0)
        await using.until(0)

    end = use(kind.target, f"{kind.prefix}127.0.0.1:{free_port()}{kind.path}", requests(), script).ends[0]
    assert end.outcome == REFUSED
    assert "refused" in str(end.detail)


@ALL
def test_a_server_that_dies_truncates_what_it_was_telling(kind: Kind) -> None:  # P9
    story = Story([Chunk(0.01 * i, 1) for i in range(20)], hangs=True)
    killed_ns = 0

    async def script(using: Using) -> None:
        nonlocal killed_ns
        using.ask(0)
        await using.until_read(0, 20)
        killed_ns = time.perf_counter_ns()
        await asyncio.get_running_loop().run_in_executor(None, fake.kill)
        await using.until(0)
        using.ask(1)
        await using.until(1)

    with kind.server(story) as fake:
        using = use(kind.target, kind.url(fake), requests(), script)
    end = using.ends[0]
    assert end.outcome == TRUNCATED
    assert end.arrived_ns - killed_ns < 30_000_000_000
    assert end.generated is not None
    assert end.generated.output_tokens == 20
    assert using.ends[1].outcome == REFUSED


@ALL
def test_a_request_that_is_given_up_returns_what_came_and_stops_the_server(
    kind: Kind,
) -> None:  # T22, P10's client side
    story = Story([Chunk(0.01 * i, 2) for i in range(5)], hangs=True)
    given: list[Generated | None] = []

    async def script(using: Using) -> None:
        for number in (0, 1):
            using.ask(number)
        for number in (0, 1):
            await using.until_read(number, 5)
        given.append(using.target.cancel(0))
        given.append(using.target.cancel(0))
        await until_async(lambda: story.cancelled == 1)
        assert story.in_flight == 1
        given.append(using.target.cancel(1))
        await until_async(lambda: story.cancelled == 2)

    with kind.server(story) as fake:
        assert use(kind.target, kind.url(fake), requests(), script).ends == {}
    assert given[1] is None
    for generated in (given[0], given[2]):
        assert generated is not None
        assert (generated.chunk_tokens, generated.output_tokens) == ([2] * 5, 10)


@ALL
def test_many_answers_at_once_do_not_mix(kind: Kind) -> None:  # P4
    story = Story([Chunk(0.2 + 0.005 * i, 1 + i % 3) for i in range(20)])
    using = answered(kind, story, count=100)
    assert len(story.requests) == 100
    for number in range(100):
        end = using.ends[number]
        assert (end.outcome, end.generated and end.generated.chunk_tokens) == (OK, [1 + i % 3 for i in range(20)])


# --- what the server gets ---


def test_triton_gets_the_tensors_of_the_vllm_backend() -> None:
    story = Story([Chunk(0, 1)])
    answered(GRPC, story)
    message = story.requests[0]
    names = ["text_input", "stream", "sampling_parameters", "exclude_input_in_output"]
    names += ["return_num_input_tokens", "return_num_output_tokens"]  # each response has what is asked for, at a cost
    assert [(i.name, i.datatype, list(i.shape)) for i in message.inputs] == [
        (name, "BYTES" if name in ("text_input", "sampling_parameters") else "BOOL", [1]) for name in names
    ]
    assert message.model_name == "llm"
    assert message.raw_input_contents[0][4:] == requests()[0]["text_input"][0]
    assert message.raw_input_contents[1] == b"\x01"


def test_generate_gets_the_same_as_json() -> None:
    story = Story([Chunk(0, 1)])
    answered(GENERATE, story)
    body = story.requests[0]
    assert body["text_input"] == requests()[0]["text_input"].item().decode()
    assert body["stream"] is body["return_num_output_tokens"] is True
    assert json.loads(body["sampling_parameters"])["ignore_eos"] is True


@OPENAI
def test_openai_gets_prompt_limits_and_the_wish_for_usage(kind: Kind) -> None:
    story = Story([Chunk(0, 1)])
    answered(kind, story)
    body, made = story.requests[0], requests()[0]
    prompt = body["messages"][0]["content"] if kind is CHAT else body["prompt"]
    assert prompt == made["text_input"].item().decode()
    assert body["max_tokens"] == json.loads(made["sampling_parameters"].item())["max_tokens"]
    assert (body["model"], body["temperature"], body["ignore_eos"], body["stream"]) == ("llm", 0.0, True, True)
    assert body["stream_options"]["include_usage"] is True


@pytest.mark.parametrize(
    ("url", "posted_to"),
    [
        ("openai+http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/completions"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1/completions"),
        ("openai+https://there/v1/chat/completions", "https://there/v1/chat/completions"),
    ],
)
def test_an_openai_url_says_where_to_post(url: str, posted_to: str) -> None:
    assert endpoint(url) == posted_to


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "openai+grpc://127.0.0.1:8000", "http://", "http://there/v2"])
def test_a_url_that_is_none_of_openais_is_named(url: str) -> None:
    with pytest.raises(InputError, match=r"openai\+http://HOST:PORT"):
        endpoint(url)
