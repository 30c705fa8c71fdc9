"""Triton over gRPC: tensors become serialized ModelInferRequests, one answer each.

Messages come from tritonclient's own protobuf classes; what is sent when is a Channel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from lab.load.targets import Done, Tensors
from lab.load.targets.channel import Channel
from lab.load.targets.grpc_wire import Call, Method

PATH = "/inference.GRPCInferenceService/ModelInfer"


class TritonGrpc(Channel):
    """`url` is HOST:PORT, or grpc://HOST:PORT."""

    def __init__(self, url: str, done: Done) -> None:
        super().__init__(url, done)
        self._method = Method(self.authority, PATH)

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Call]:
        return [self._method.call(infer_request(model, request)) for request in requests]


def infer_request(model: str, request: Tensors) -> bytes:
    """A serialized ModelInferRequest; arrays float32, int32, … as they are, object arrays of str or bytes as BYTES.

    Two serialized messages one behind the other are their merger (protobuf's encoding says so), so what requests of
    one shape have in common is serialized once."""
    common = _described(model, tuple((name, array.dtype, array.shape) for name, array in request.items()))
    contents = service_pb2.ModelInferRequest(raw_input_contents=[raw(array) for array in request.values()])
    return common + bytes(contents.SerializeToString())


@lru_cache(maxsize=4_096)
def _described(model: str, tensors: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, dtype, shape in tensors:
        message.inputs.add(name=name, datatype=np_to_triton_dtype(dtype), shape=shape)
    return bytes(message.SerializeToString())


def raw(array: np.ndarray) -> bytes:
    """The array's elements as Triton's raw tensor format has them."""
    return bytes(serialize_byte_tensor(array).item()) if array.dtype.kind in "OSU" else array.tobytes()
