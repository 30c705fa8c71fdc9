"""Models that no lab knows, for the tests of somebody else's server: written into a repository as a stranger would."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = (
    """
name: "my_model"
backend: "python"
max_batch_size: 8
input [{ name: "input_node" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "output_node" data_type: TYPE_FP32 dims: [ 1 ] }]
""",
    """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("output_node", 2 * pb_utils.get_input_tensor_by_name(r, "input_node").as_numpy())]
            )
            for r in requests
        ]
""",
)
"""The example of the source material: one FP32 input, one FP32 output; here it doubles."""

ECHO = (
    """
name: "echo"
backend: "python"
input [
  { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "IDS" data_type: TYPE_INT64 dims: [ -1, 2 ] },
  { name: "FLAG" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "SIZE" data_type: TYPE_UINT32 dims: [ 1 ] optional: true }
]
output [
  { name: "TEXT_OUT" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "IDS_OUT" data_type: TYPE_INT64 dims: [ -1, 2 ] },
  { name: "BULK" data_type: TYPE_UINT8 dims: [ -1 ] }
]
""",
    """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        def given(name):
            found = pb_utils.get_input_tensor_by_name(request, name)
            return None if found is None else found.as_numpy()

        size = given("SIZE")
        bulk = np.zeros(1 if size is None else int(size[0]), np.uint8)
        out = [("TEXT_OUT", given("TEXT")), ("IDS_OUT", given("IDS")), ("BULK", bulk)]
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, values) for name, values in out])
""",
)
"""Open dimensions, texts, optional inputs, no batch dimension; answers with as many bytes as SIZE asks for."""

REPEAT = (
    """
name: "repeat"
backend: "python"
max_batch_size: 1
model_transaction_policy { decoupled: true }
input [{ name: "TIMES" data_type: TYPE_INT32 dims: [ 1 ] }]
output [{ name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }]
""",
    """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            times = int(pb_utils.get_input_tensor_by_name(request, "TIMES").as_numpy().ravel()[0])
            for n in range(times):
                tensor = pb_utils.Tensor("NUMBER", np.array([[n]], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
)
"""Decoupled: TIMES responses and an empty final one."""

COUNTER = (
    """
name: "counter"
backend: "python"
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [
    { name: "START" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }] }
  ]
}
input [{ name: "STEP" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "SEEN" data_type: TYPE_FP32 dims: [ 1 ] }]
instance_group [{ count: 1 kind: KIND_CPU }]
""",
    """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("SEEN", pb_utils.get_input_tensor_by_name(r, "START").as_numpy())]
            )
            for r in requests
        ]
""",
)
"""Requests belong to sequences; a request without an id is refused by Triton."""


def write(repository: Path, name: str, model: tuple[str, str]) -> None:
    config, code = model
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    (version / "model.py").write_text(code)
