"""TorchServe's REST: POST /predictions/MODEL, answered whole or in HTTP chunks as they are made.

What a handler takes is its own affair, so bodies are sent as they are given (input `body`, from a data file); without
any, a language model's prompt goes as JSON, as TorchServe's LLM handlers take it. A handler that streams
(`send_intermediate_predict_response`) sends its text in HTTP chunks and says nothing of tokens, so their counts stay
unknown. TorchServe answers 200 before the first chunk; what goes wrong later it writes into the stream as its error
object, which is then the answer's end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from lab.errors import InputError
from lab.load.targets import Done, Generated
from lab.load.targets.event_stream import Answer, EventStream, Message
from lab.load.targets.tensors import BODY, Tensors


class TorchServe(EventStream):
    """`url` is [torchserve+]http://HOST:PORT of its inference API (8080 unless configured)."""

    def __init__(self, url: str, done: Done) -> None:
        super().__init__(done, Prediction)
        base = url.removeprefix("torchserve+").rstrip("/")
        if not base.startswith("http://"):
            raise InputError(f"url {url!r}: allowed is torchserve+http://HOST:PORT")
        self._base = base

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Message]:
        url = f"{self._base}/predictions/{model}"
        return [(url, _body(request)) for request in requests]

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        piece = bytearray()
        async for data, ends_chunk in response.content.iter_chunks():
            piece += data
            if ends_chunk:
                answer.read_raw(bytes(piece), time.perf_counter_ns())
                piece.clear()
        if piece:
            answer.read_raw(bytes(piece), time.perf_counter_ns())
        answer.complete = True  # a connection that breaks off is an error of the transport


class Prediction(Answer):
    """Chunks of whatever the handler sends."""

    def read_raw(self, data: bytes, arrived_ns: int) -> None:
        if (failure := _failure(data)) is not None:
            self.failure = failure
        else:
            self.generated.add(arrived_ns, bool(data.strip()), None)

    def total(self) -> Generated:
        self.generated.chunk_tokens = None  # nobody counted them
        return self.generated


def _body(request: Tensors) -> bytes:
    if BODY in request:
        return bytes(request[BODY].item())
    fields: dict[str, Any] = json.loads(request["sampling_parameters"].item())
    text = request["text_input"].item().decode()
    return json.dumps({"prompt": text, "stream": bool(request["stream"].item()), **fields}).encode()


def _failure(data: bytes) -> str | None:
    """What TorchServe says went wrong in {"code", "type", "message"}; None for anything else."""
    if not data.startswith(b"{") or b'"code"' not in data:
        return None
    try:
        said = json.loads(data)
        return f"{said['code']} {said['type']}: {said['message']}" if {"type", "message"} <= said.keys() else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
