"""Triton over the load generator's own HTTP/2 connection: calls with one answer, and generated text as it comes.

One connection carries all calls; a call costs about a fifth of what grpc's Python client takes. Whoever stops waiting
(a cancelled task, `Generation.cancel`) resets its stream, and Triton tells the model.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from lab.gateway.alike import Alike
from lab.gateway.refusals import Refusal, gone, late, of_upstream
from lab.load.targets import Tensors
from lab.load.targets.channel import Channel
from lab.load.targets.grpc_wire import Method
from lab.load.targets.triton_grpc import infer_request
from lab.load.targets.triton_stream import FINAL, PREFIX
from lab.measure.records import ERROR, OK, TRUNCATED

SERVICE = "/inference.GRPCInferenceService/"
UINT32 = struct.Struct("<L")
YES = np.array([True])


class Piece(NamedTuple):
    """Text that arrived together; `finish_reason` with the last of it."""

    text: str
    finish_reason: str | None


class TritonUpstream:
    """The server at `url`, grpc://HOST:PORT. For one event loop; `open` and `close` it there."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = Channel(url, self._ended, self._received)
        self._methods: dict[str, Method] = {}
        self._numbers = itertools.count()
        self._calls: dict[int, _Call | Generation] = {}
        self._configs: dict[str, Any] = {}

    async def open(self) -> None:
        await self._channel.open()

    async def close(self) -> None:
        await self._channel.close()

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    async def infer(self, model: str, tensors: Tensors, request_id: str) -> Any:
        """The ModelInferResponse. Refusal when it fails."""
        message = infer_request(model, tensors) + _named(request_id)
        answer = await self._call("ModelInfer", message)
        return service_pb2.ModelInferResponse.FromString(answer)

    async def config(self, model: str) -> Any:
        """The model's ModelConfig, asked once; `forget` when it may have changed."""
        if model not in self._configs:
            asked = service_pb2.ModelConfigRequest(name=model).SerializeToString()
            answer = await self._call("ModelConfig", asked)
            self._configs[model] = service_pb2.ModelConfigResponse.FromString(answer).config
        return self._configs[model]

    def forget(self, model: str) -> None:
        self._configs.pop(model, None)

    async def is_ready(self, model: str) -> bool:
        asked = service_pb2.ModelReadyRequest(name=model).SerializeToString()
        return bool(service_pb2.ModelReadyResponse.FromString(await self._call("ModelReady", asked)).ready)

    def generate(
        self, model: str, prompt: str, sampling: Mapping[str, Any], *, stream: bool, echo: bool, request_id: str
    ) -> Generation:
        """Begin an answer to `prompt`. The names are those of Triton's vLLM backend."""
        tensors = {
            "text_input": np.array([prompt.encode()], dtype=object),
            "stream": np.array([stream]),
            "sampling_parameters": np.array([json.dumps(dict(sampling)).encode()], dtype=object),
            "exclude_input_in_output": np.array([not echo]),
            "return_finish_reason": YES,
            "return_num_input_tokens": YES,
            "return_num_output_tokens": YES,
        }
        message = infer_request(model, tensors) + _named(request_id, wants_final=True)
        number = next(self._numbers)
        generation = Generation(self, number)
        self._calls[number] = generation
        self._channel.send(number, self._method("ModelStreamInfer").call(message))
        return generation

    def drop(self, number: int) -> None:
        """Give a call up; the server is told."""
        self._calls.pop(number, None)
        self._channel.cancel(number)

    async def _call(self, name: str, message: bytes) -> bytes:
        number = next(self._numbers)
        call = _Call()
        self._calls[number] = call
        self._channel.send(number, self._method(name).call(message))
        try:
            return await call.answer
        except asyncio.CancelledError:
            self.drop(number)
            raise

    def _method(self, name: str) -> Method:
        if name not in self._methods:
            metadata = {"triton_grpc_error": "true"} if name == "ModelStreamInfer" else {}
            self._methods[name] = Method(self._channel.authority, SERVICE + name, metadata)
        return self._methods[name]

    def _received(self, number: int, data: bytes, arrived_ns: int) -> None:
        if (call := self._calls.get(number)) is not None:
            call.receive(data)

    def _ended(self, number: int, outcome: int, detail: str | None, arrived_ns: int) -> None:
        if (call := self._calls.pop(number, None)) is not None:
            call.end(outcome, detail)


class _Call:
    """One answer, collected."""

    __slots__ = ("answer", "parts")

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.parts = b""

    def receive(self, data: bytes) -> None:
        self.parts += data

    def end(self, outcome: int, detail: str | None) -> None:
        if self.answer.done():
            return
        if outcome == OK and len(self.parts) >= PREFIX.size and not self.parts[0]:
            self.answer.set_result(self.parts[PREFIX.size :])
        else:
            said = detail or "an answer without a message"
            self.answer.set_exception(of_upstream(ERROR if outcome == OK else outcome, said))


class News:
    """Wakes the one who waits for it; what is told while nobody waits is found by looking."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Generation:
    """One answer of generated text on its way. `news` are told when there is something to `take`, and when it is whole
    or has broken. `cancel` and `expire` may come from anywhere at any time, and `take` then raises."""

    __slots__ = (
        "_alike", "_failure", "_finish_reason", "_number", "_rest", "_texts", "_upstream", "news", "prompt_tokens",
        "tokens", "whole",
    )  # fmt: skip

    def __init__(self, upstream: TritonUpstream, number: int) -> None:
        self._upstream, self._number = upstream, number
        self.news = News()
        self._rest = b""  # the start of a message
        self._texts: list[str] = []
        self._finish_reason: str | None = None
        self._failure: Refusal | None = None
        self._alike: Alike | None = None
        self.whole = False
        self.prompt_tokens: int | None = None
        self.tokens = 0

    def take(self) -> Piece | None:
        """What has arrived since the last time, joined; None when nothing has. Refusal when it broke and all is
        taken."""
        if not self._texts and self._finish_reason is None:
            if self._failure is not None:
                raise self._failure
            return None
        piece = Piece("".join(self._texts), self._finish_reason)
        self._texts.clear()
        self._finish_reason = None
        return piece

    async def next(self) -> Piece | None:
        """What has arrived, once something has; None when the answer is whole. Refusal when it broke."""
        while (piece := self.take()) is None and not self.whole:
            await self.news.wait()
        return piece

    def cancel(self) -> None:
        """The client is gone."""
        self._stop(gone())

    def expire(self, limit_s: float) -> None:
        self._stop(late(limit_s))

    def _stop(self, why: Refusal) -> None:
        if not self.whole and self._failure is None:
            self._upstream.drop(self._number)
            self._fail(why)

    def receive(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while end - at >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data, at)
            start, stop = at + PREFIX.size, at + PREFIX.size + length
            if stop > end:
                break
            at = stop
            try:
                if compressed:
                    raise ValueError("it is compressed")
                self._read(data[start:stop])
            except (DecodeError, ValueError, struct.error) as error:
                self._upstream.drop(self._number)
                self._fail(of_upstream(ERROR, f"a response that is not as Triton makes them: {error}"))
                return
        self._rest = data[at:]

    def end(self, outcome: int, detail: str | None) -> None:
        if self.whole or self._failure is not None:
            return
        if outcome == OK:
            outcome, detail = TRUNCATED, "the stream ended without a final response"
        self._fail(of_upstream(TRUNCATED if self.tokens else outcome, detail))

    def _read(self, data: bytes) -> None:
        if self._alike is not None and (same := self._alike.text(data)) is not None:
            self.tokens += self._alike.tokens
            if same:
                self._texts.append(same)
                self.news.tell()
            return
        message = service_pb2.ModelStreamInferResponse.FromString(data)
        response = message.infer_response
        text, tokens, finish = "", 0, None
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
            name = output.name
            if name == "text_output":
                text = content[UINT32.size :].decode()
            elif name == "num_output_tokens":
                tokens = UINT32.unpack_from(content)[0]
            elif name == "finish_reason":
                finish = content[UINT32.size :].decode()
            elif name == "num_input_tokens":
                self.prompt_tokens = UINT32.unpack_from(content)[0]
        if message.error_message:
            self._fail(of_upstream(TRUNCATED if self.tokens else ERROR, message.error_message))
            return
        self.tokens += tokens
        if text:
            self._texts.append(text)
        # Asking a protobuf map for what it lacks would add it.
        self.whole = FINAL in response.parameters and response.parameters[FINAL].bool_param
        if finish not in (None, "None"):
            self._finish_reason = finish
        elif not self.whole:
            self._alike = Alike.of(data, response, tokens)
        self.news.tell()

    def _fail(self, why: Refusal) -> None:
        self._failure = why
        self.news.tell()


def _named(request_id: str, *, wants_final: bool = False) -> bytes:
    """To be put behind a serialized request, into which it is merged."""
    more = service_pb2.ModelInferRequest(id=request_id)
    if wants_final:
        more.parameters["triton_enable_empty_final_response"].bool_param = True
    return bytes(more.SerializeToString())
