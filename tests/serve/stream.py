"""Asks a language model behind Triton by tritonclient, which is nobody of the lab's: its stream, its answers."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton

COUNTS = {"return_num_output_tokens": True, "return_num_input_tokens": True, "return_finish_reason": True}


@dataclass(frozen=True)
class Chunk:
    """One response. None where an output was not sent."""

    text: str | None
    tokens: int | None
    prompt_tokens: int | None
    finish_reason: str | None
    final: bool


def inputs(prompt: str | bytes, parameters: Any = None, stream: bool | None = True, **flags: bool) -> list[Any]:
    """`parameters`: a dict, or bytes to be sent as they are."""
    written = json.dumps(parameters).encode() if isinstance(parameters, dict) else parameters
    texts = {"text_input": prompt.encode() if isinstance(prompt, str) else prompt, "sampling_parameters": written}
    tensors = []
    for name, value in {**texts, "stream": stream, **flags}.items():
        if value is not None:
            tensor = triton.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
            tensor.set_data_from_numpy(np.array([value], bool if isinstance(value, bool) else np.object_))
            tensors.append(tensor)
    return tensors


class Stream:
    """A request on a connection of its own. Iterate over its chunks; `cancel` gives it up."""

    def __init__(self, url: str, model: str, prompt: str | bytes, parameters: Any = None, **asked: Any) -> None:
        self._client = triton.InferenceServerClient(url)
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._arrived.put(error or result))
        self._client.async_stream_infer(model, inputs(prompt, parameters, **asked), enable_empty_final_response=True)

    def __iter__(self) -> Iterator[Chunk]:
        """InferenceServerException when the request ends with an error; queue.Empty when nothing comes any more."""
        final = False
        try:
            while not final:
                arrived = self._arrived.get(timeout=60)
                if isinstance(arrived, Exception):
                    raise arrived
                chunk = _chunk(arrived)
                yield chunk
                final = chunk.final
        finally:
            self._client.close()  # Triton does not unload a model whose client keeps its stream open

    @property
    def unread(self) -> int:
        """Chunks that have arrived and were not iterated over yet."""
        return self._arrived.qsize()

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)


def ask(url: str, model: str, prompt: str | bytes, parameters: Any = None, **asked: Any) -> list[Chunk]:
    """All chunks of one answer."""
    return list(Stream(url, model, prompt, parameters, **asked))


def _chunk(result: Any) -> Chunk:
    def first(name: str) -> Any:
        found = result.as_numpy(name)
        return None if found is None else found[0]

    text, reason = first("text_output"), first("finish_reason")
    return Chunk(
        text=None if text is None else text.decode(),
        tokens=first("num_output_tokens"),
        prompt_tokens=first("num_input_tokens"),
        finish_reason=None if reason is None else reason.decode(),
        final=result.get_response().parameters["triton_final_response"].bool_param,
    )
