"""Fake servers of generated answers, in front of a script that says which chunk goes out when.

gRPC's own server and aiohttp's, so the peer shares no code with the lab's targets. The book (`Story`) holds when each
chunk was handed to the transport and which requests were given up: the independent truth.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import numpy as np
from aiohttp import web
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.load.fakes.servers import HTTP_STATUS, FakeServer, http_app
from tests.load.fakes.service import Refused


@dataclass
class Chunk:
    """`tokens` of `text`, sent `at_s` after the request came."""

    at_s: float
    tokens: int
    text: str = "word "
    reasoning: bool = False


@dataclass
class Story:
    """What every request is told. `fails`: with this status and text after the chunks, or in place of an answer.
    `vanishes`: after the chunks the answer ends without a word. `hangs`: after the chunks nothing comes. `counts`: the
    server says how many tokens each chunk holds, or only how many all did ("total", OpenAI's), or nothing."""

    chunks: Sequence[Chunk] = ()
    prompt_tokens: int = 7
    fails: tuple[str, str] | None = None
    vanishes: bool = False
    hangs: bool = False
    counts: Literal["each", "total"] | None = "each"
    cached_tokens: int | None = None
    """Of each prompt's, what OpenAI's server says that its prefix cache had."""

    requests: list[Any] = field(default_factory=list)
    sent_ns: list[list[int]] = field(default_factory=list)
    """By request, in order of arrival: when each chunk was sent."""
    told: int = 0
    """Requests whose chunks are all on their way, each given to the transport."""
    cancelled: int = 0
    in_flight: int = 0

    async def tell(self, request: Any) -> AsyncIterator[Chunk]:
        begin_s = time.perf_counter()
        self.requests.append(request)
        stamps: list[int] = []
        self.sent_ns.append(stamps)
        self.in_flight += 1
        try:
            for chunk in self.chunks:
                left_s = begin_s + chunk.at_s - time.perf_counter()
                if left_s > 0:
                    await asyncio.sleep(left_s)
                stamps.append(time.perf_counter_ns())
                yield chunk
            self.told += 1
            if self.hangs:
                await asyncio.Event().wait()
            if self.fails is not None:
                raise Refused(*self.fails)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, story: Story) -> None:
        self.story = story

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        found = service_pb2.ModelConfigResponse()
        found.config.name = request.name
        found.config.input.add(name="text_input")
        found.config.model_transaction_policy.decoupled = True
        return found

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        story = self.story
        async for request in requests:
            try:
                async for chunk in story.tell(request):
                    yield response(story, chunk)
            except Refused as refused:
                if dict(context.invocation_metadata()).get("triton_grpc_error") != "true":
                    yield service_pb2.ModelStreamInferResponse(error_message=refused.text)
                else:
                    await context.abort(grpc.StatusCode[refused.status], refused.text)
            if request.parameters["triton_enable_empty_final_response"].bool_param and not story.vanishes:
                final = service_pb2.ModelStreamInferResponse()
                final.infer_response.parameters["triton_final_response"].bool_param = True
                yield final


def response(story: Story, chunk: Chunk) -> Any:
    """The outputs of the vLLM backend, their contents raw as Triton sends them."""
    answer = service_pb2.ModelStreamInferResponse()
    outputs = {"text_output": len(chunk.text.encode()).to_bytes(4, "little") + chunk.text.encode()}
    if story.counts == "each":
        outputs["num_input_tokens"] = np.uint32(story.prompt_tokens).tobytes()
        outputs["num_output_tokens"] = np.uint32(chunk.tokens).tobytes()
    for name, content in outputs.items():
        answer.infer_response.outputs.add(name=name, datatype="BYTES" if name == "text_output" else "UINT32", shape=[1])
        answer.infer_response.raw_output_contents.append(content)
    answer.infer_response.parameters["triton_final_response"].bool_param = False
    return answer


@contextmanager
def grpc_stream_server(story: Story, *, options: Any = ()) -> Iterator[FakeServer]:
    async def start(port: int) -> tuple[int, Callable[[], Awaitable[Any]]]:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(story), server)
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        return bound, lambda: server.stop(None)

    server = FakeServer(story, start, 0)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def generate_server(story: Story) -> Iterator[FakeServer]:
    """Triton's /generate_stream: an event a response, no last word but the finish reason."""

    async def generate(request: web.Request) -> web.StreamResponse:
        def event(chunk: Chunk, last: bool) -> dict[str, Any]:
            told = {"model_name": "llm", "text_output": chunk.text, "finish_reason": "length" if last else "None"}
            counts = {"num_input_tokens": story.prompt_tokens, "num_output_tokens": chunk.tokens}
            return {**told, **counts} if story.counts == "each" else told

        return await _events(request, story, event, error=lambda text: {"error": text}, after=[])

    with http_app([web.post("/v2/models/{model}/generate_stream", generate)], story) as server:
        yield server


@contextmanager
def openai_server(story: Story) -> Iterator[FakeServer]:
    """Both ways of completion, as vLLM words them."""

    def usage(tokens: int) -> dict[str, Any]:
        told: dict[str, Any] = {"prompt_tokens": story.prompt_tokens, "completion_tokens": tokens}
        if story.cached_tokens is not None:
            told["prompt_tokens_details"] = {"cached_tokens": story.cached_tokens}
        return told

    async def complete(request: web.Request) -> web.StreamResponse:
        chat, sent = request.path.endswith("/chat/completions"), 0
        body = await request.json()

        def event(chunk: Chunk, last: bool) -> dict[str, Any]:
            nonlocal sent
            sent += chunk.tokens
            said = {"reasoning_content" if chunk.reasoning else "content": chunk.text}
            choice = {"index": 0, "finish_reason": "length" if last else None}
            choice |= {"delta": said} if chat else {"text": chunk.text}
            return {"choices": [choice]} | ({"usage": usage(sent)} if story.counts == "each" else {})

        if not body.get("stream"):
            text = "".join([chunk.text async for chunk in story.tell(body)])
            choice = {"message": {"content": text}} if chat else {"text": text}
            total = sum(chunk.tokens for chunk in story.chunks)
            return web.json_response({"choices": [choice | {"finish_reason": "length"}], "usage": usage(total)})
        total = {"choices": [], "usage": usage(sum(chunk.tokens for chunk in story.chunks))}
        after = [json.dumps(total)] if story.counts else []
        return await _events(
            request, story, event, error=lambda text: {"error": {"message": text}}, after=[*after, "[DONE]"]
        )

    async def models(_: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "small"}]})

    routes = [web.post(path, complete) for path in ("/v1/completions", "/v1/chat/completions")]
    with http_app([*routes, web.get("/v1/models", models)], story) as server:
        yield server


async def _events(
    request: web.Request,
    story: Story,
    event: Callable[[Chunk, bool], dict[str, Any]],
    *,
    error: Callable[[str], dict[str, Any]],
    after: Sequence[str],
) -> web.StreamResponse:
    """The story as server-sent events, `after` being the last ones of an answer that is finished."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def say(data: str) -> None:
        if not answer.prepared:
            await answer.prepare(request)
        await answer.write(f"data: {data}\n\n".encode())

    told = 0
    try:
        async for chunk in story.tell(await request.json()):
            told += 1
            last = told == len(story.chunks) and not (story.fails or story.vanishes or story.hangs)
            await say(json.dumps(event(chunk, last)))
    except Refused as refused:
        if not told:
            return web.json_response(error(refused.text), status=HTTP_STATUS[refused.status])
        await say(json.dumps(error(refused.text)))
    if not story.vanishes:
        for data in after:
            await say(data)
    return answer
