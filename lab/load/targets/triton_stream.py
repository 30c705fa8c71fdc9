"""A language model in Triton over gRPC: an answer in chunks, each request on a stream of its own.

A request is one ModelInferRequest on ModelStreamInfer, after which the client's side is closed; so resetting the
HTTP/2 stream cancels that request alone. Tensors have the names of Triton's vLLM backend. The server is asked for an
empty final response, because a decoupled model may end with nothing else, and for gRPC's own status codes on a
stream (Triton 24.08 or later; an older one says what went wrong in words, which is then an error).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from lab.load.targets import Done, Generated, Tensors, broken, token_count
from lab.load.targets.channel import Channel
from lab.load.targets.grpc_wire import Call, Method
from lab.load.targets.triton_grpc import infer_request
from lab.measure.records import ERROR, OK, TRUNCATED

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
PREFIX = struct.Struct(">BL")
"""Before each message of an answer: whether it is compressed, and its length."""
FINAL = "triton_final_response"
UINT32 = struct.Struct("<L")
UNREAD = {"return_finish_reason"}
"""Wishes that are left out: the final response says that an answer is whole, and each output of each response costs."""


class _Answer:
    __slots__ = ("generated", "rest", "wanted")

    def __init__(self) -> None:
        self.generated = Generated()
        self.rest = bytearray()  # the start of a message
        self.wanted = 0  # bytes of it that there must be before it is looked at again


class TritonStream:
    """`url` is HOST:PORT, or grpc://HOST:PORT."""

    def __init__(self, url: str, done: Done) -> None:
        self._done = done
        self._channel = Channel(url, self._ended, self._received)
        self._method = Method(self._channel.authority, PATH, {"triton_grpc_error": "true"})
        self._answers: dict[int, _Answer] = {}

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Call]:
        wants_final = service_pb2.ModelInferRequest()
        wants_final.parameters["triton_enable_empty_final_response"].bool_param = True
        more = bytes(wants_final.SerializeToString())  # behind a message, it is merged into it
        wanted = [{name: array for name, array in request.items() if name not in UNREAD} for request in requests]
        return [self._method.call(infer_request(model, request) + more) for request in wanted]

    async def open(self) -> None:
        await self._channel.open()

    def send(self, number: int, message: Call) -> None:
        self._answers[number] = _Answer()
        self._channel.send(number, message)

    def cancel(self, number: int) -> Generated | None:
        answer = self._answers.pop(number, None)
        self._channel.cancel(number)
        return None if answer is None else answer.generated.summed()

    async def close(self) -> None:
        await self._channel.close()

    def _received(self, number: int, data: bytes, arrived_ns: int) -> None:
        answer = self._answers.get(number)
        if answer is None:  # only its trailers are still to come
            return
        if answer.rest:
            answer.rest += data
            if len(answer.rest) < answer.wanted:  # a message of megabytes comes in hundreds of parts
                return
            data = bytes(answer.rest)
        at, end = 0, len(data)
        while end - at >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data, at)
            start, stop = at + PREFIX.size, at + PREFIX.size + length
            if stop > end:
                answer.wanted = stop - at
                break
            at = stop
            final, failure = False, "the answer is compressed" if compressed else None
            if failure is None:
                final, failure = read_message(data[start:stop], answer.generated, arrived_ns)
            if failure is not None:
                self._channel.cancel(number)
                self._end(number, ERROR, failure, arrived_ns)
                return
            if final:
                self._end(number, OK, None, arrived_ns)
                return
        else:
            answer.wanted = PREFIX.size
        if at < end or answer.rest:
            answer.rest = bytearray(data[at:])

    def _ended(self, number: int, outcome: int, detail: str | None, arrived_ns: int) -> None:
        """The call is over, for an answer that is whole a moment after its final response."""
        if number in self._answers:
            if outcome == OK:
                outcome, detail = TRUNCATED, "the stream ended without a final response"
            self._end(number, outcome, detail, arrived_ns)

    def _end(self, number: int, outcome: int, detail: str | None, arrived_ns: int) -> None:
        generated = self._answers.pop(number).generated.summed()
        self._done(number, broken(outcome, generated), detail, arrived_ns, generated)


def read_message(data: bytes, generated: Generated, arrived_ns: int) -> tuple[bool, str | None]:
    """Add one ModelStreamInferResponse to what was `generated`; whether it is the final one, and what went wrong.

    `num_output_tokens` counts the tokens of this response. Without it nothing says how many a chunk holds."""
    text, tokens = False, None
    try:
        message = service_pb2.ModelStreamInferResponse.FromString(data)
        response = message.infer_response
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
            name = output.name
            if name == "text_output":
                text = len(content) > UINT32.size  # behind its length; several elements are several lengths
            elif name == "num_output_tokens":
                tokens = token_count(UINT32.unpack_from(content)[0])
            elif name == "num_input_tokens":
                generated.prompt_tokens = token_count(UINT32.unpack_from(content)[0])
    except (DecodeError, ValueError, struct.error) as error:
        return False, f"a response that is not as Triton makes them: {error}"
    generated.add(arrived_ns, text, tokens)
    # Asking a protobuf map for what it lacks would add it.
    final = FINAL in response.parameters and response.parameters[FINAL].bool_param
    return final, message.error_message or None
