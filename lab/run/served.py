"""A model as Triton's Python backend would load and run it, in this process and without Triton.

The model's folder is written as for the server (repository.write_model), its model.py is imported from there with a
stand-in for Triton's own module, and requests go through `execute`. So what is asked is what would be served: the same
files, parameters and arithmetic. For models that answer once; a language model's decoder needs no Triton anyway.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format

from lab.serve import repository
from lab.spec import ModelSpec

BACKEND = "triton_python_backend_utils"


class Tensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._values


class Request:
    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors


class InferenceResponse(Request):
    pass


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.tensors if tensor.name() == name), None)


class Served:
    """A loaded model, until the block ends. The spec's weights must be there. One at a time in a process."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def __enter__(self) -> Served:
        self._folder = Path(tempfile.mkdtemp(prefix="lab-served-"))
        version = repository.write_model(self._spec, self._folder) / "1"
        backend = types.ModuleType(BACKEND)
        vars(backend).update(
            Tensor=Tensor, InferenceResponse=InferenceResponse, get_input_tensor_by_name=get_input_tensor_by_name
        )
        package = types.ModuleType(self._package)
        package.__path__ = [str(version)]  # so that model.py finds what it imports from beside itself
        sys.modules |= {BACKEND: backend, self._package: package}
        module = importlib.import_module(f"{self._package}.model")
        self._model: Any = module.TritonPythonModel()
        gpu = self._spec.device == "gpu"
        self._model.initialize(
            {
                "model_config": json.dumps(json_format.MessageToDict(repository.config(self._spec), True, True)),
                "model_instance_kind": "GPU" if gpu else "CPU",
                "model_instance_device_id": "0",
            }
        )
        return self

    def ask(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name; arrays with the batch first."""
        (response,) = self._model.execute([Request([Tensor(name, values) for name, values in inputs.items()])])
        return {tensor.name(): tensor.as_numpy() for tensor in response.tensors}

    def __exit__(self, *_: object) -> None:
        if hasattr(self._model, "finalize"):
            self._model.finalize()
        for name in [name for name in sys.modules if name == self._package or name.startswith(f"{self._package}.")]:
            del sys.modules[name]
        sys.modules.pop(BACKEND, None)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _package(self) -> str:
        return f"served_{self._spec.name}"
