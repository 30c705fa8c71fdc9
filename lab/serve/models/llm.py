"""Served model `llm`: text in, text out token by token, by the lab's own engine (engine.py) on Llama weights.

    Triton ──execute──▶ Question ──submit──▶ EngineThread ──each token──▶ Answers ──responses──▶ Triton

Decoupled: `execute` only hands requests on, so new ones join between two steps of those that run. Four threads: this
one reads requests, the engine's computes, the answers' one sends, and the desk's brings adapters and takes them away. A
request that is wrong ends with its own error.
"""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .adapter_desk import AdapterDesk
from .answers import Answer, Answers
from .decoder import decoder_of
from .engine import Engine, Options
from .engine_metrics import EngineMetrics, values
from .engine_thread import EngineThread
from .question import Question
from .request import Output

THREADS = 2
"""More than the client, Triton and the operating system leave free would wait for each other."""


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        given = {name: value["string_value"] for name, value in json.loads(args["model_config"])["parameters"].items()}
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        threads = json.loads(given["threads"]) or THREADS
        device = f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"
        weights = Path(__file__).parent / "weights"
        options = Options(
            scheduler=given["scheduler"],
            kv_cache=json.loads(given["kv_cache"]),
            max_batch_size=json.loads(given["max_batch_size"]),
            max_request_tokens=json.loads(given["max_request_tokens"]),
            max_tokens_in_cache=json.loads(given["max_tokens_in_cache"]),
            max_adapters=json.loads(given["max_adapters"]),
        )
        kept = given["kv_cache_precision"]
        decoder = decoder_of(weights, given["precision"], device, threads, None if kept == "null" else kept)
        engine = Engine(decoder, Tokenizer.from_file(str(weights / "tokenizer.json")), options)
        cache_bytes = engine.cache.bytes if engine.cache else None
        adapters = engine.adapters
        self.desk = AdapterDesk(adapters, Path(__file__).parent / "multi_lora.json")
        self.engine = EngineThread(engine)
        self.answers = Answers(int(given["stream_interval"]), self.engine.cancel)
        self.metrics = EngineMetrics(
            args,
            lambda: values(
                self.engine.counters(),
                weight_bytes=decoder.weight_bytes,
                scale_bytes=decoder.scale_bytes,
                cache_bytes=cache_bytes,
                adapters=len(adapters),
                adapter_bytes=adapters.bytes,
            ),
            decoder.notes,
        )

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                question = Question.read(request)
                answer = Answer(sender, question)
                if self.desk.is_order(question.parameters):
                    self.desk.order(partial(self._told, answer))
                    continue
                answer.id = self.engine.submit(
                    question.prompt, question.parameters, partial(self.answers.receive, answer)
                )
                self.answers.taken(answer)
            except Exception as error:  # noqa: BLE001  the boundary: a request without an end would never be let go
                self.answers.refuse(sender, str(error) or type(error).__name__)

    def _told(self, answer: Answer, done: str | None, why: str | None) -> None:
        if done is None:
            self.answers.refuse(answer.sender, str(why))
        else:
            self.answers.receive(answer, Output("", None, done, "stop", 0, 0))

    def finalize(self) -> None:
        self.desk.close()
        self.metrics.close()
        self.engine.close()
        self.answers.close()
