"""A handler for TorchServe that writes text with transformers, a token at a time: one request after the other, as its
default is. What benchmarks/engines.py asks; runs in TorchServe's process and imports nothing of lab.

The body is {"prompt", "max_tokens", "stream"}; with `stream` each piece of text goes out as it is written. LAB_WEIGHTS
names the folder of the weights.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
from ts.handler_utils.utils import send_intermediate_predict_response

LIMIT_S = 120.0


class Writer:
    def initialize(self, context: Any) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        folder = os.environ["LAB_WEIGHTS"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.context = context

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[str]:
        (request,) = data
        body = request.get("body") or request.get("data")
        inputs = self.tokenizer(body["prompt"], return_tensors="pt")
        wished = {"do_sample": False, "max_new_tokens": body["max_tokens"], "min_new_tokens": body["max_tokens"]}
        if not body.get("stream"):
            with torch.inference_mode():
                whole = self.model.generate(**inputs, **wished)
            return [self.tokenizer.decode(whole[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)]
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=LIMIT_S)
        writer = threading.Thread(target=self.model.generate, kwargs={**inputs, **wished, "streamer": streamer})
        writer.start()
        for text in streamer:
            if text:
                send_intermediate_predict_response([text], context.request_ids, "written", 200, context)
        writer.join()
        return [""]


_WRITER = Writer()


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[str] | None:
    """What TorchServe calls: once without data, to begin."""
    if not hasattr(_WRITER, "model"):
        _WRITER.initialize(context)
    return None if data is None else _WRITER.handle(data, context)
