"""Tensors as Triton's two protocols carry them: datatypes, raw bytes both ways, and what belongs to a sequence.

numpy has no bfloat16, so a tensor of it is an array of BF16: the two bytes that travel, without arithmetic.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from lab.errors import ServerError

BF16 = np.dtype([("bf16", "<u2")])
LENGTH = struct.Struct("<L")
BODY = "body"
"""The input that is a whole body, of a server that takes no tensors."""

Tensors = dict[str, np.ndarray]
"""The inputs of one request by name; with a batch dimension where the model has one."""


class Sequenced(dict[str, np.ndarray]):
    """The inputs of a request that belongs to a sequence: the server keeps a state for it from its start to its end."""

    def __init__(self, inputs: Tensors, sequence_id: int, *, start: bool, end: bool) -> None:
        super().__init__(inputs)
        self.parameters = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}


def parameters(request: Tensors) -> dict[str, int | bool]:
    """What is sent beside the tensors."""
    return request.parameters if isinstance(request, Sequenced) else {}


def datatype(dtype: np.dtype) -> str:
    """Triton's name: "FP32", "BF16", "BYTES"."""
    return "BF16" if dtype == BF16 else str(np_to_triton_dtype(dtype))


def raw(array: np.ndarray) -> bytes:
    """The array's elements as Triton's raw tensor format has them."""
    return bytes(serialize_byte_tensor(array).item()) if array.dtype.kind in "OSU" else array.tobytes()


def array(name: str, kind: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """A tensor of an answer; texts as objects of bytes, BF16 as float32. ServerError when the bytes don't fit."""
    wanted = math.prod(shape)
    if kind == "BYTES":
        found, at = [], 0
        while at + LENGTH.size <= len(data):
            length = LENGTH.unpack_from(data, at)[0]
            found.append(data[at + LENGTH.size : at + LENGTH.size + length])
            at += LENGTH.size + length
        values = np.array([*found, None], dtype=object)[:-1]  # else numpy would look into a single one
    elif kind == "BF16":
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        dtype = np.dtype(triton_to_np_dtype(kind))
        values = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    if len(values) != wanted:
        raise ServerError(f"output {name}: {len(values):,} values came, its shape {list(shape)} takes {wanted:,}")
    return values.reshape(tuple(shape))
