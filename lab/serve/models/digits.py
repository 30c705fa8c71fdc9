"""Served model `digits`: an 8×8 image → ten logits, by a wide multilayer perceptron (see digits_training.py).

One row through the network is mostly reading its weights from memory; rows that come together share that reading, so
batching pays here. One thread: what a model gains must come from batching, and the client needs the other cores.

In int8 weights are rounded when the model is loaded, activations with every request (int8.py).
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from safetensors.torch import load_file

from .int8 import Int8Linear


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        precision = parameters["precision"]["string_value"]
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        gpu = args["model_instance_kind"] == "GPU"
        self.device = torch.device("cuda", int(args["model_instance_device_id"])) if gpu else torch.device("cpu")
        torch.set_num_threads(1)
        stored = load_file(Path(__file__).parent / "weights" / "weights.safetensors")
        self.layers = []
        for i in range(len(stored) // 2):
            weight, bias = (stored[f"{i}.{part}"].to(self.device, self.dtype) for part in ("weight", "bias"))
            linear = partial(torch.nn.functional.linear, weight=weight, bias=bias)
            self.layers.append(Int8Linear(f"{i}.weight", weight, bias) if precision == "int8" else linear)

    def execute(self, requests: list[Any]) -> list[Any]:
        """IMAGE float32 [b, 64], pixels 0 to 16 → LOGITS float32 [b, 10]; one pass for all requests."""
        images = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
        rows = [len(image) for image in images]
        with torch.inference_mode():
            x = torch.cat([torch.from_numpy(image) for image in images]).to(self.device, self.dtype)
            for layer in self.layers[:-1]:
                x = layer(x).relu_()
            logits = self.layers[-1](x).float().cpu()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("LOGITS", part.numpy())]) for part in torch.split(logits, rows)
        ]
