"""Served model `sleeper`: takes as long as the request says, so that the lab can measure a truth it knows.

A batch sleeps as long as its longest member; every member learns the size of the batch it ran in.
"""

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        """SLEEP_S float32 [b, 1] → SLEPT_S float32 [b, 1], measured; BATCH int32 [b, 1], rows in the whole batch."""
        began = time.perf_counter()
        asked = [pb_utils.get_input_tensor_by_name(request, "SLEEP_S").as_numpy() for request in requests]
        longest_s = max(float(rows.max()) for rows in asked)
        until = began + longest_s
        while (left_s := until - time.perf_counter()) > 0:
            time.sleep(left_s)
        slept_s = time.perf_counter() - began
        batch = sum(len(rows) for rows in asked)
        responses = []
        for rows in asked:
            slept = pb_utils.Tensor("SLEPT_S", np.full((len(rows), 1), slept_s, np.float32))
            size = pb_utils.Tensor("BATCH", np.full((len(rows), 1), batch, np.int32))
            responses.append(pb_utils.InferenceResponse([slept, size]))
        return responses
