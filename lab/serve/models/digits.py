"""Served model `digits`: an 8×8 image → ten logits, by a wide multilayer perceptron (see digits_training.py).

One row through the network is mostly reading its weights from memory; rows that come together share that reading, so
batching pays here. One thread: what a model gains must come from batching, and the client needs the other cores.
"""

import json
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from safetensors.torch import load_file


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        precision = parameters["precision"]["string_value"]
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        gpu = args["model_instance_kind"] == "GPU"
        self.device = torch.device("cuda", int(args["model_instance_device_id"])) if gpu else torch.device("cpu")
        torch.set_num_threads(1)
        stored = load_file(Path(__file__).parent / "weights" / "weights.safetensors")
        layers = len(stored) // 2
        self.layers = [
            tuple(stored[f"{i}.{part}"].to(self.device, self.dtype) for part in ("weight", "bias"))
            for i in range(layers)
        ]

    def execute(self, requests: list[Any]) -> list[Any]:
        """IMAGE float32 [b, 64], pixels 0 to 16 → LOGITS float32 [b, 10]; one pass for all requests."""
        images = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
        rows = [len(image) for image in images]
        with torch.inference_mode():
            x = torch.cat([torch.from_numpy(image) for image in images]).to(self.device, self.dtype)
            for weight, bias in self.layers[:-1]:
                x = torch.nn.functional.linear(x, weight, bias).relu_()
            logits = torch.nn.functional.linear(x, *self.layers[-1]).float().cpu()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("LOGITS", part.numpy())]) for part in torch.split(logits, rows)
        ]
