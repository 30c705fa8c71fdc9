"""How a worker is asked: Triton's /v2/models/NAME/infer and /generate_stream, over HTTP/1.1, one thread a connection.

Small on purpose: what a server framework takes to import would be a stage of every cold start. Its only client is the
runner's proxy (lab/serve/serverless.py) or the bench, on the same machine; bodies have a Content-Length, answers too,
streams come in chunks.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

HOST = "127.0.0.1"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEADER_LENGTH = re.compile(rb"\r\ninference-header-content-length: *(\d+)", re.IGNORECASE)
HEAD_LIMIT, BODY_LIMIT = 1 << 16, 1 << 26
STACK_BYTES = 1 << 20
"""Of a connection's thread: what is mapped counts towards a worker's limit, and 8 MiB a connection would."""
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 413: "Payload Too Large"}
DTYPES = {"FP32": "float32", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool"}


class BadRequest(ValueError):
    """One line: what is wrong with a request."""


class Server:
    """Listens at once; answers once `run` is called. `model` is Tensors or Llm of models.py."""

    def __init__(self, name: str, model: Any) -> None:
        self._name, self._model = name, model
        self._listener = socket.create_server((HOST, 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._one_at_a_time = threading.Lock()

    def run(self) -> None:
        threading.stack_size(STACK_BYTES)
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with connection, connection.makefile("rb") as reader:
                while self._answer(connection, reader):
                    pass
        except OSError:
            pass  # the client is gone

    def _answer(self, connection: socket.socket, reader: Any) -> bool:
        """One request; whether another may come."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = reader.readline(HEAD_LIMIT)
            if not line or len(head) > HEAD_LIMIT:
                return False
            head += line
        length = LENGTH.search(head)
        size = int(length[1]) if length else 0
        if size > BODY_LIMIT:
            _send(connection, 413, {"error": f"a body of {size:,} bytes; allowed: up to {BODY_LIMIT:,}"})
            return False
        body = reader.read(size)
        path = head.split(b" ", 2)[1].split(b"?")[0].decode(errors="replace")
        try:
            if path == "/v2/health/ready":
                _send(connection, 200, {})
            elif path == f"/v2/models/{self._name}/infer" and not self._model.streams:
                _send(connection, 200, self._infer(head, body))
            elif path == f"/v2/models/{self._name}/generate_stream" and self._model.streams:
                self._generate(connection, body)
            else:
                _send(connection, 404, {"error": f"{path}: this worker serves {self._name} only"})
        except BadRequest as error:
            _send(connection, 400, {"error": str(error)})
        except OSError:
            raise  # the client is gone
        except Exception as error:  # noqa: BLE001  the model's own: this request fails, the worker goes on
            _send(connection, 500, {"error": _one_line(error)})
        return True

    def _infer(self, head: bytes, body: bytes) -> dict[str, Any]:
        header = HEADER_LENGTH.search(head)
        inputs = tensors(body, int(header[1]) if header else len(body), self._model.inputs)
        with self._one_at_a_time:
            outputs = self._model.infer(inputs)
        return {
            "model_name": self._name,
            "outputs": [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": next((kind for kind, dtype in DTYPES.items() if dtype == array.dtype.name), "BYTES"),
                    "data": array.ravel().tolist(),
                }
                for name, array in outputs.items()
            ],
        }

    def _generate(self, connection: socket.socket, body: bytes) -> None:
        """An event a token's output, with the names of Triton's vLLM backend."""
        try:
            prompt, parameters = _prompt(body)
            outputs = self._model.generate(prompt, parameters)
            first = next(outputs)  # so that what is wrong with a request is told by the status
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRequest(str(error)) from None
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in self._events(chain([first], outputs)):
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            connection.sendall(b"%x\r\n%b\r\n" % (len(data), data))
        connection.sendall(b"0\r\n\r\n")

    def _events(self, outputs: Iterator[Any]) -> Iterator[dict[str, Any]]:
        counted = 0
        try:
            for output in outputs:
                if output.error is not None:
                    yield {"error": output.error}
                    continue
                yield {
                    "model_name": self._name,
                    "text_output": output.text,
                    "num_input_tokens": output.prompt_tokens,
                    "num_output_tokens": output.output_tokens - counted,
                    "finish_reason": output.finish_reason or "",
                }
                counted = output.output_tokens
        except Exception as error:  # noqa: BLE001  the status is sent: what goes wrong now can only be an event
            yield {"error": _one_line(error)}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _prompt(body: bytes) -> tuple[str, dict[str, Any]]:
    asked = _json(body, "no request to generate")
    prompt = asked.get("text_input")
    if not isinstance(prompt, str):
        raise BadRequest("text_input: it is missing or no text; allowed: a text")
    said = asked.get("sampling_parameters") or "{}"
    if not isinstance(said, str):
        raise BadRequest("sampling_parameters: allowed: a text that is a JSON object")
    return prompt, _json(said.encode(), "sampling_parameters")


def _json(text: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{what}: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest(f"{what}: allowed: a JSON object")
    return found


def tensors(body: bytes, head_bytes: int, wanted: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """The inputs of a KServe v2 request: a JSON head of `head_bytes`, then the raw bytes of those tensors that have
    `binary_data_size`, the others with their `data` in the head. `wanted`: {name: (datatype, length of an item)} of the
    model. BadRequest when they don't fit, or are others than the model's."""
    import numpy as np

    head, at, found = _json(body[:head_bytes], "no request of the v2 protocol"), head_bytes, {}
    _check(head.get("inputs"), wanted)
    try:
        for tensor in head["inputs"]:
            shape, kind = tuple(int(n) for n in tensor["shape"]), tensor["datatype"]
            size = (tensor.get("parameters") or {}).get("binary_data_size")
            if size is None:
                values: Any = tensor["data"]
                if kind == "BYTES":
                    values = [value.encode() for value in values]
            elif kind == "BYTES":
                values = _texts(body[at : at + size], math.prod(shape))
            else:
                values = np.frombuffer(body[at : at + size], DTYPES[kind])
            at += size or 0
            dtype = object if kind == "BYTES" else DTYPES[kind]
            found[tensor["name"]] = np.array(values, dtype).reshape(shape)
        return found
    except KeyError as error:
        raise BadRequest(f"no request of the v2 protocol: an input without {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise BadRequest(f"no request of the v2 protocol: {error}") from None


def _check(inputs: Any, wanted: Mapping[str, tuple[str, int]]) -> None:
    """BadRequest unless each input of the model is there once, with its datatype and its shape."""
    if not isinstance(inputs, list) or not all(isinstance(tensor, dict) for tensor in inputs):
        raise BadRequest("inputs: allowed: a list of objects with name, shape, datatype and data")
    names = [tensor.get("name") for tensor in inputs]
    if sorted(map(str, names)) != sorted(wanted):
        raise BadRequest(f"inputs {', '.join(map(str, names)) or 'none'}; allowed: {', '.join(wanted)}, once each")
    for tensor in inputs:
        kind, length = wanted[tensor["name"]]
        if tensor.get("datatype") != kind:
            raise BadRequest(f"input {tensor['name']}: datatype {tensor.get('datatype')}; allowed: {kind}")
        shape = tensor.get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or shape[1] != length or type(shape[0]) is not int:
            raise BadRequest(f"input {tensor['name']}: shape {shape}; allowed: [N, {length}]")
        if shape[0] < 1:
            raise BadRequest(f"input {tensor['name']}: shape {shape}; allowed: [N, {length}] with N from 1 on")


def _texts(data: bytes, count: int) -> list[bytes]:
    """Each with its length before it, four bytes."""
    found, at = [], 0
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def _send(connection: socket.socket, status: int, body: Mapping[str, Any]) -> None:
    words = REASONS.get(status, "Internal Server Error")
    said = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} {words}\r\nContent-Type: application/json\r\nContent-Length: {len(said)}\r\n\r\n"
    connection.sendall(head.encode() + said)
