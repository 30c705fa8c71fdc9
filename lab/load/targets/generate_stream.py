"""A language model in Triton over HTTP: /v2/models/M/generate_stream, an event a response.

For what only speaks HTTP, and to compare the two: an event costs the client several times what it costs over gRPC.
Names are those of Triton's vLLM backend, which says in `finish_reason` when an answer is finished.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.load.targets import Done, Generated, Tensors, token_count
from lab.load.targets.channel import split_url
from lab.load.targets.event_stream import Answer, EventStream, Message

UNFINISHED = (None, "", "None")


class GenerateStream(EventStream):
    """`url` is HOST:PORT, or http://HOST:PORT."""

    def __init__(self, url: str, done: Done) -> None:
        super().__init__(done, TritonAnswer)
        host, port = split_url(url)
        self._base = f"http://{host}:{port}"

    def _headers(self, number: int) -> dict[str, str]:
        return {"Lab-Request": str(number)}  # a proxy of the lab's tells what it did with it

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Message]:
        url = f"{self._base}/v2/models/{model}/generate_stream"
        return [
            (url, json.dumps({name: _plain(array) for name, array in request.items()}).encode()) for request in requests
        ]


class TritonAnswer(Answer):
    """An event holds the outputs of one response by name; an output of one element is that element."""

    def read(self, event: dict[str, Any], arrived_ns: int) -> None:
        generated = self.generated
        if "num_input_tokens" in event:
            generated.prompt_tokens = token_count(event["num_input_tokens"])
        generated.add(arrived_ns, bool(event.get("text_output")), token_count(event.get("num_output_tokens")))
        self.complete = self.complete or event.get("finish_reason") not in UNFINISHED

    def total(self) -> Generated:
        return self.generated.summed()


def _plain(array: np.ndarray) -> Any:
    value = array.item()
    return value.decode() if isinstance(value, bytes) else value
