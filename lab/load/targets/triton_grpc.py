"""Triton over gRPC: tensors become serialized ModelInferRequests, one answer each.

Messages come from tritonclient's own protobuf classes; what is sent when is a Channel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from tritonclient.grpc import service_pb2

from lab.load.targets import Done
from lab.load.targets.channel import Channel
from lab.load.targets.grpc_wire import Call, Method
from lab.load.targets.tensors import Tensors, datatype, parameters, raw

PATH = "/inference.GRPCInferenceService/ModelInfer"
ID_LENGTH = 20


class TritonGrpc(Channel):
    """`url` is HOST:PORT, or grpc://HOST:PORT."""

    def __init__(self, url: str, done: Done) -> None:
        super().__init__(url, done)
        self._method = Method(self.authority, PATH)

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Call]:
        return [self._method.call(infer_request(model, request)) for request in requests]


class TracedGrpc(TritonGrpc):
    """Each request carries its number as its id, by which a trace of the server is joined with the client's record."""

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Call]:
        # Of one length, so that the number can be put in its place in a message that is framed already.
        room = bytes(service_pb2.ModelInferRequest(id="0" * ID_LENGTH).SerializeToString())
        return [self._method.call(infer_request(model, request) + room) for request in requests]

    def send(self, number: int, message: Call) -> None:
        super().send(number, message._replace(body=message.body[:-ID_LENGTH] + b"%020d" % number))


def infer_request(model: str, request: Tensors) -> bytes:
    """A serialized ModelInferRequest; arrays float32, int32, … as they are, object arrays of str or bytes as BYTES.

    Two serialized messages one behind the other are their merger (protobuf's encoding says so), so what requests of
    one shape have in common is serialized once."""
    common = _described(model, tuple((name, array.dtype, array.shape) for name, array in request.items()))
    own = service_pb2.ModelInferRequest(raw_input_contents=[raw(array) for array in request.values()])
    for name, value in parameters(request).items():
        if isinstance(value, bool):
            own.parameters[name].bool_param = value
        else:
            own.parameters[name].int64_param = value
    return common + bytes(own.SerializeToString())


@lru_cache(maxsize=4_096)
def _described(model: str, tensors: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, dtype, shape in tensors:
        message.inputs.add(name=name, datatype=datatype(dtype), shape=shape)
    return bytes(message.SerializeToString())
