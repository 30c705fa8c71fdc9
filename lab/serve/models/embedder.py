"""Served model `embedder`: a text → 384 floats of length one, by all-MiniLM-L6-v2 (mean of the token vectors, scaled).

Texts of unlike length share a batch: shorter ones are padded, and the attention mask keeps padding out of the result,
so an answer does not depend on its company. A text has at most 256 tokens, as its authors set it; the rest of a longer
one is dropped.

In int8 weights are rounded when the model is loaded, activations with every request (int8.py); embeddings, norms and
attention stay fp32. An answer is then the same in any company to the last bit but one: see `_attend`.

The network is written out rather than taken from transformers, whose import alone takes longer than a toggle may
(3 to 5 s); tests compare the two. One thread, for the reason that digits.py gives.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from .int8 import Int8Linear

MAX_TOKENS = 256


class Bert:
    """A BERT encoder from a Hugging Face folder (config.json, model.safetensors), in `dtype` on `device`."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, int8: bool = False) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.heads = config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]
        stored = load_file(folder / "model.safetensors")
        self.weights = {name: value.to(device, dtype) for name, value in stored.items() if value.is_floating_point()}
        self.int8 = int8
        self.layers = [self._layer(f"encoder.layer.{i}") for i in range(config["num_hidden_layers"])]
        # Every text is one segment, so its token type vector is part of the position's.
        self.words = self.weights["embeddings.word_embeddings.weight"]
        self.positions = (
            self.weights["embeddings.position_embeddings.weight"]
            + self.weights["embeddings.token_type_embeddings.weight"][0]
        )

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """ids [b, t] int64, mask [b, t] bool, False where padded → [b, t, hidden]."""
        batch, length = ids.shape
        x = self._norm("embeddings.LayerNorm", functional.embedding(ids, self.words) + self.positions[:length])
        for layer, qkv, attention_output, intermediate, output in self.layers:
            q, k, v = (  # each [b, heads, t, hidden / heads]
                qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            )
            attended = self._attend(q, k, v, mask).transpose(1, 2).reshape(batch, length, -1)
            x = self._norm(f"{layer}.attention.output.LayerNorm", x + attention_output(attended))
            x = self._norm(f"{layer}.output.LayerNorm", x + output(functional.gelu(intermediate(x))))
        return x

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """In int8 each text by itself: a sum over padding may differ in its last bit, and what that moves over the edge
        of a level would make another answer of it."""
        if not self.int8:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        attended = torch.zeros_like(q)
        for i, tokens in enumerate(mask.sum(1).tolist()):
            text = slice(i, i + 1), slice(None), slice(tokens)
            attended[text] = functional.scaled_dot_product_attention(q[text], k[text], v[text])
        return attended

    def _layer(self, name: str) -> tuple[Any, ...]:
        """A layer's name and its four matrices. Query, key and value projections are one [3 · hidden, hidden]."""
        attention = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        others = [f"{name}.{part}.dense" for part in ("attention.output", "intermediate", "output")]
        return name, self._linear(*attention), *(self._linear(other) for other in others)

    def _linear(self, *names: str) -> Callable[[torch.Tensor], torch.Tensor]:
        weight, bias = (
            torch.cat([self.weights.pop(f"{name}.{part}") for name in names]) for part in ("weight", "bias")
        )
        if self.int8:
            return Int8Linear(", ".join(names), weight, bias)
        return partial(functional.linear, weight=weight, bias=bias)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(x, (x.shape[-1],), weight, bias, self.epsilon)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        precision = parameters["precision"]["string_value"]
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        gpu = args["model_instance_kind"] == "GPU"
        self.device = torch.device("cuda", int(args["model_instance_device_id"])) if gpu else torch.device("cpu")
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        weights = Path(__file__).parent / "weights"
        self.tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()  # to the longest text of a batch
        self.network = Bert(weights, dtype, self.device, int8=precision == "int8")

    def execute(self, requests: list[Any]) -> list[Any]:
        """TEXT bytes [b, 1], UTF-8 → EMBEDDING float32 [b, 384]; one pass for all requests."""
        asked = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0] for request in requests]
        texts = [text.decode(errors="replace") for rows in asked for text in rows]
        tokens = self.tokenizer.encode_batch(texts)
        ids = torch.tensor([text.ids for text in tokens]).to(self.device)
        mask = torch.tensor([text.attention_mask for text in tokens]).to(self.device).bool()
        with torch.inference_mode():
            hidden = self.network(ids, mask).float() * mask.unsqueeze(-1)
            mean = hidden.sum(1) / mask.sum(1, keepdim=True)
            vectors = functional.normalize(mean).cpu()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", part.numpy())])
            for part in torch.split(vectors, [len(rows) for rows in asked])
        ]
