"""What a served model knows of Triton, in a process without one: `install` puts it where models import it from.

Only what models of the lab that answer once use of triton_python_backend_utils.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "triton_python_backend_utils"


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class InferenceRequest:
    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = {name: Tensor(name, array) for name, array in tensors.items()}

    def inputs(self) -> list[Tensor]:
        return list(self._tensors.values())

    def tensor(self, name: str) -> Tensor | None:
        return self._tensors.get(name)


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: Any = None) -> None:
        self.tensors, self.error = list(output_tensors), error


class TritonError(Exception):
    pass


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return request.tensor(name)


def install() -> None:
    module = types.ModuleType(NAME)
    for what in (Tensor, InferenceRequest, InferenceResponse, TritonError, get_input_tensor_by_name):
        setattr(module, what.__name__, what)
    sys.modules[NAME] = module
