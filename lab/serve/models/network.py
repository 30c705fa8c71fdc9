"""Served model `network`: the same 30 measurements → the same probability as `trees`, by a small multilayer perceptron
(30 → 64 → 64 → 1) on CPU or GPU. Learns when it is loaded, in less than a second."""

import json
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from .tabular import rows

WIDTH, STEPS, RATE, DECAY = 64, 200, 0.01, 1e-3


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        torch.set_num_threads(1)
        seed = int(json.loads(args["model_config"])["parameters"]["seed"]["string_value"])
        gpu = args["model_instance_kind"] == "GPU"
        self.device = torch.device("cuda", int(args["model_instance_device_id"])) if gpu else torch.device("cpu")
        self.network = learn(seed).to(self.device)

    def execute(self, requests: list[Any]) -> list[Any]:
        """FEATURES float32 [b, 30] → PROBABILITY float32 [b, 1]; one pass for all requests."""
        asked = [pb_utils.get_input_tensor_by_name(request, "FEATURES").as_numpy() for request in requests]
        with torch.inference_mode():
            x = torch.cat([torch.from_numpy(part) for part in asked]).to(self.device)
            found = self.network(x).sigmoid().cpu()
        parts = torch.split(found, [len(part) for part in asked])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PROBABILITY", part.numpy())]) for part in parts]


def learn(seed: int) -> torch.nn.Sequential:
    """The network with its inputs' mean and spread folded in as a first layer."""
    features, labels, _, _ = rows()
    x, y = torch.from_numpy(features), torch.from_numpy(labels).float()[:, None]
    scale = torch.nn.Linear(30, 30)
    with torch.no_grad():
        scale.weight.copy_(torch.diag(1 / x.std(0)))
        scale.bias.copy_(-x.mean(0) / x.std(0))
    scale.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    layers: list[torch.nn.Module] = [scale]
    for rows_in, rows_out in ((30, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)):
        layer = torch.nn.Linear(rows_in, rows_out)
        with torch.no_grad():
            layer.weight.normal_(0, (2 / rows_in) ** 0.5, generator=generator)
            layer.bias.zero_()
        layers += [layer, torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW((p for p in network.parameters() if p.requires_grad), RATE, weight_decay=DECAY)
    loss_of = torch.nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(network(x), y).backward()
        optimizer.step()
    return network.eval()
