"""Served model `null`: gives back what it got, so that what is measured is the way to a model and back."""

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        """INPUT float32 [b, 1] → OUTPUT float32 [b, 1], the same values."""
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", values)]))
        return responses
