"""JSON to a model's tensors and back: what /predict and /v1/embeddings need to know of a model's configuration."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from lab.gateway.refusals import wrong
from lab.load.targets import Tensors

DTYPES: dict[int, Any] = {
    pb.TYPE_BOOL: np.bool_,
    pb.TYPE_UINT8: np.uint8,
    pb.TYPE_UINT16: np.uint16,
    pb.TYPE_UINT32: np.uint32,
    pb.TYPE_UINT64: np.uint64,
    pb.TYPE_INT8: np.int8,
    pb.TYPE_INT16: np.int16,
    pb.TYPE_INT32: np.int32,
    pb.TYPE_INT64: np.int64,
    pb.TYPE_FP16: np.float16,
    pb.TYPE_FP32: np.float32,
    pb.TYPE_FP64: np.float64,
    pb.TYPE_STRING: np.object_,
}


def writes_text(config: Any) -> bool:
    """Whether the model takes a prompt and streams, under the names of Triton's vLLM backend."""
    takes_prompt = any(tensor.name == "text_input" for tensor in config.input)
    return takes_prompt and bool(config.model_transaction_policy.decoupled)


def tensors(config: Any, inputs: dict[str, Any]) -> Tensors:
    """Arrays as the model's config wants them, with a batch dimension of 1 where that was left out. Refusal naming the
    input that does not fit."""
    known = {tensor.name: tensor for tensor in config.input}
    for name in inputs:
        if name not in known:
            raise wrong(f"inputs.{name}: no such input; allowed: {', '.join(known)}", f"inputs.{name}")
    found = {}
    for name, tensor in known.items():
        if name not in inputs:
            if tensor.optional:
                continue
            raise wrong(f"inputs.{name}: required, and not there", f"inputs.{name}", code="missing")
        found[name] = _array(name, inputs[name], DTYPES[tensor.data_type], list(tensor.dims), config.max_batch_size > 0)
    return found


def _array(name: str, value: Any, dtype: Any, dims: list[int], batched: bool) -> np.ndarray:
    param = f"inputs.{name}"
    try:
        plain = np.array(value, dtype=object if dtype is np.object_ else None)
        if dtype is np.object_:
            if not all(isinstance(text, str) for text in plain.flat):
                raise ValueError("texts are wanted")
            array = np.array([text.encode() for text in plain.flat], dtype=object).reshape(plain.shape)
        else:
            if plain.dtype.kind not in "biuf":
                raise ValueError("numbers are wanted")
            with np.errstate(over="ignore"):
                array = plain.astype(dtype)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError("a number too large for the model's type")
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong(f"{param}: {str(error).splitlines()[0]}", param, code="wrong_type") from None
    if batched and array.ndim == len(dims):
        array = array[None]
    wanted = [-1, *dims] if batched else dims
    shape: list[int] = list(array.shape)
    if len(shape) != len(wanted) or any(w not in (-1, have) for w, have in zip(wanted, shape, strict=True)):
        raise wrong(f"{param} of shape {shape}; allowed: {wanted}", param, code="wrong_shape")
    return array


def outputs(response: Any) -> dict[str, np.ndarray]:
    """The arrays of a ModelInferResponse by name."""
    found = {}
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        dtype = triton_to_np_dtype(tensor.datatype)
        array = deserialize_bytes_tensor(raw) if dtype == np.object_ else np.frombuffer(raw, dtype)
        found[tensor.name] = array.reshape(tuple(tensor.shape))
    return found


def plain(array: np.ndarray) -> Any:
    """As JSON has it: bytes as text, and None for what is no number (JSON has no NaN)."""
    if array.dtype == np.object_:
        return np.array([one.decode(errors="replace") for one in array.flat], object).reshape(array.shape).tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        found = array.astype(object)
        found[~np.isfinite(array)] = None
        return found.tolist()
    return array.tolist()


def row_as_text(row: np.ndarray, encoding: str) -> Any:
    """An embedding as a list of numbers, or as base64 of little-endian float32, which OpenAI's client asks for."""
    import base64

    if encoding == "base64":
        return base64.b64encode(struct.pack(f"<{row.size}f", *row.ravel().tolist())).decode()
    return row.ravel().tolist()
