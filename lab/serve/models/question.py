"""What one Triton request asks of the language model: its tensors read and checked.

Names and meaning are those of Triton's vLLM backend, so a client of one drives the other. Every ValueError is one line
for the client who sent the request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Question:
    """`stream`: answer in chunks, else whole. `echo`: the whole answer begins with the prompt, as the backend does
    unless exclude_input_in_output is set. The `return_` fields ask for outputs beside the text."""

    prompt: str
    parameters: dict[str, Any]
    stream: bool = False
    echo: bool = False
    return_finish_reason: bool = False
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False

    @classmethod
    def read(cls, request: Any) -> Question:
        """From a pb_utils.InferenceRequest. ValueError when its tensors cannot be understood."""
        given = {tensor.name(): tensor.as_numpy().ravel()[0] for tensor in request.inputs()}
        stream = bool(given.get("stream", False))
        echo = not given.get("exclude_input_in_output", stream)
        if stream and echo:
            raise ValueError("exclude_input_in_output false with stream true; allowed: true, for a text in chunks")
        wishes = {
            name: bool(given.get(name, False))
            for name in ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
        }
        # Clients of Triton's /generate may send the parameters as fields of the request instead.
        written = given.get("sampling_parameters", request.parameters().encode() or b"{}")
        return cls(_text("text_input", given["text_input"]), _parameters(written), stream, echo, **wishes)


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from None


def _parameters(raw: bytes) -> dict[str, Any]:
    text = _text("sampling_parameters", raw)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"sampling_parameters is not JSON: {error}".splitlines()[0]) from None
    if not isinstance(found, dict):
        raise ValueError(f'sampling_parameters {text[:40]}: allowed is a JSON object, such as {{"max_tokens": 64}}')
    return found
