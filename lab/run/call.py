"""One call of one model, with its answer: what a load will send, shown before it is sent a thousand times.

Sends the very bytes that the load generator prepares. gRPC through grpcio's own stub, HTTP through the standard
library: an independent reading of both protocols.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from lab.errors import ServerError
from lab.load.targets import triton_grpc, triton_http
from lab.load.targets.tensors import Tensors, array, datatype
from lab.serve import cut, direct
from lab.serve.triton import Server

LIMIT_S = 60.0
MOST_RESPONSES = 1000
OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # an answer may be large
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
SHOWN_VALUES, SHOWN_TEXT = 6, 60


@dataclass(frozen=True)
class Shown:
    """A tensor, and its first values in words."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: str
    bytes: int


@dataclass(frozen=True)
class Called:
    """`got`: of the first response that holds any; `responses`: how many of them held some. `seconds`: of one cold
    call over a connection of its own, which is no latency to quote."""

    sent: tuple[Shown, ...]
    got: tuple[Shown, ...]
    responses: int
    seconds: float

    def lines(self) -> list[str]:
        rows = [("sent", each) for each in self.sent] + [("got", each) for each in self.got]
        width = max((len(each.name) for _, each in rows), default=0)
        said = [f"{what:<4}  {t.name:<{width}}  {t.datatype} {list(t.shape)}: {t.values}".rstrip() for what, t in rows]
        several = f"; {self.responses} responses, the first is shown" if self.responses > 1 else ""
        return [*said, f"after {1e3 * self.seconds:.1f} ms, a first call on a new connection{several}"]

    def to_dict(self) -> dict[str, Any]:
        def plain(shown: Sequence[Shown]) -> list[dict[str, Any]]:
            return [{**vars(each), "shape": list(each.shape)} for each in shown]

        return {
            "sent": plain(self.sent),
            "got": plain(self.got),
            "responses": self.responses,
            "seconds": self.seconds,
        }


def call(server: Server, model: str, request: Tensors, *, over_http: bool, decoupled: bool) -> Called:
    """ServerError with the server's words when it does not answer the request."""
    began = time.perf_counter()
    if over_http:
        answers = [_over_http(server.http_url, model, request)]
    else:
        answers = _over_grpc(server.grpc_url, model, request, decoupled=decoupled)
    seconds = time.perf_counter() - began
    sent = tuple(_shown(name, datatype(values.dtype), values) for name, values in request.items())
    return Called(sent, answers[0] if answers else (), len(answers), seconds)


def unread(server: Server, model: str, request: Tensors) -> list[str]:
    """What the model drops of the request's texts without a word, in a sentence where it does."""
    texts = [
        value.decode(errors="replace")
        for values in request.values()
        if values.dtype == object
        for value in values.reshape(-1)
        if isinstance(value, bytes)
    ]
    said = cut.told(server.config(model), texts) if texts else ""
    return [said] if said else []


def _over_grpc(address: str, model: str, request: Tensors, *, decoupled: bool) -> list[tuple[Shown, ...]]:
    """The responses that hold outputs."""
    message = service_pb2.ModelInferRequest.FromString(triton_grpc.infer_request(model, request))
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            if not decoupled:
                return [_outputs(stub.ModelInfer(message, timeout=LIMIT_S))]
            message.parameters["triton_enable_empty_final_response"].bool_param = True
            found = []
            stream = stub.ModelStreamInfer(iter([message]), timeout=LIMIT_S)
            for each in stream:
                if each.error_message:
                    raise ServerError(f"model {model}: {each.error_message}")
                if each.infer_response.outputs:
                    found.append(_outputs(each.infer_response))
                final = each.infer_response.parameters.get("triton_final_response")
                if (final is not None and final.bool_param) or len(found) >= MOST_RESPONSES:
                    break
            stream.cancel()
            return found
        except grpc.RpcError as error:
            raise ServerError(f"model {model}: {error.code().name}: {error.details()}") from None


def _outputs(answer: Any) -> tuple[Shown, ...]:
    if len(answer.raw_output_contents) != len(answer.outputs):
        raise ServerError("the answer's tensors are not in raw form, which the lab reads alone")
    return tuple(
        _shown(o.name, o.datatype, array(o.name, o.datatype, o.shape, data))
        for o, data in zip(answer.outputs, answer.raw_output_contents, strict=True)
    )


def _over_http(base: str, model: str, request: Tensors) -> tuple[Shown, ...]:
    headers, body = triton_http.infer_request(request)
    asked = urllib.request.Request(f"{base}/v2/models/{model}/infer", body, headers)  # noqa: S310  http, by address.py
    opener = direct.opener()
    try:
        with opener.open(asked, timeout=LIMIT_S) as answer:
            data, length = answer.read(), answer.headers.get("Inference-Header-Content-Length")
    except urllib.error.HTTPError as error:
        raise ServerError(f"model {model}: HTTP {error.code}: {triton_http.error_text(error.read())}") from None
    except (OSError, HTTPException) as error:
        raise ServerError(f"model {model}: {getattr(error, 'reason', error)}") from None
    try:
        return tuple(_tensors_of(data, int(length or len(data))))
    except (ValueError, KeyError, TypeError, AttributeError):
        start = data[:SHOWN_TEXT].decode(errors="replace")
        raise ServerError(f"model {model}: an answer that is not of Triton's HTTP: {json.dumps(start)}") from None


def _tensors_of(answer: bytes, head_bytes: int) -> Iterator[Shown]:
    """The outputs of an answer whose JSON is so long and whose raw tensors, in its order, are behind it. What is no
    such answer raises what Python raises of it."""
    at = head_bytes
    for o in json.loads(answer[:head_bytes])["outputs"]:
        size = int(o["parameters"]["binary_data_size"])
        yield _shown(o["name"], o["datatype"], array(o["name"], o["datatype"], o["shape"], answer[at : at + size]))
        at += size


def _shown(name: str, kind: str, values: np.ndarray) -> Shown:
    if kind == "BF16" and values.dtype.names:
        values = array(name, kind, values.shape, values.tobytes())
    flat = values.reshape(-1)
    texts = [_value(v) for v in flat[:SHOWN_VALUES]]
    more = ["…"] if values.size > SHOWN_VALUES else []
    size = sum(len(v) for v in flat) if kind == "BYTES" else values.nbytes
    return Shown(name, kind, tuple(values.shape), ", ".join(texts + more), int(size))


def _value(value: Any) -> str:
    if isinstance(value, bytes | str):
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        return json.dumps(text[:SHOWN_TEXT] + ("…" if len(text) > SHOWN_TEXT else ""), ensure_ascii=False)
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)
