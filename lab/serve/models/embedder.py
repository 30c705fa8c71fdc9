"""Served model `embedder`: a text → 384 floats of length one, by all-MiniLM-L6-v2 (mean of the token vectors, scaled).

Texts of unlike length share a batch: shorter ones are padded, and the attention mask keeps padding out of the result,
so an answer does not depend on its company. A text has at most 256 tokens, as its authors trained it; the rest of a
longer one is dropped.
"""

import json
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from transformers import AutoModel, AutoTokenizer

MAX_TOKENS = 256


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[parameters["precision"]["string_value"]]
        gpu = args["model_instance_kind"] == "GPU"
        self.device = torch.device("cuda", int(args["model_instance_device_id"])) if gpu else torch.device("cpu")
        weights = Path(__file__).parent / "weights"
        self.tokenizer = AutoTokenizer.from_pretrained(weights, local_files_only=True)
        network = AutoModel.from_pretrained(weights, local_files_only=True, use_safetensors=True, dtype=dtype)
        self.network = network.to(self.device).eval()

    def execute(self, requests: list[Any]) -> list[Any]:
        """TEXT bytes [b, 1], UTF-8 → EMBEDDING float32 [b, 384]; one pass for all requests."""
        asked = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0] for request in requests]
        texts = [text.decode(errors="replace") for rows in asked for text in rows]
        tokens = self.tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        tokens = tokens.to(self.device)
        with torch.inference_mode():
            hidden = self.network(**tokens).last_hidden_state.float()  # [b, tokens, 384]
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            mean = (hidden * mask).sum(1) / mask.sum(1)
            vectors = torch.nn.functional.normalize(mean).cpu()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", part.numpy())])
            for part in torch.split(vectors, [len(rows) for rows in asked])
        ]
