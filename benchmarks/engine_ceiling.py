"""The language model's engine alone, in a process of its own: what benchmarks/patterns.py holds a batch job against.

    with Ceiling(spec, sampling) as engine:
        answers_per_s, tokens_per_s = engine(prompts)        all of them put into the engine at once

The process has the priority and the large pages that Triton's have: else a job through Triton would look free. It loads
the model once, takes a JSON list of prompts a line on stdin, and ends with whoever holds that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from lab import priority
from lab.serve import llama_weights
from lab.serve.cold.starter import WISHES
from lab.spec import ModelSpec

THREADS = 2
"""As a served language model has them: lab/serve/models/llm.py."""


class Ceiling:
    def __init__(self, spec: ModelSpec, sampling: Mapping[str, Any]) -> None:
        settings = {"places": spec.max_batch_size, "tokens": spec.max_request_tokens, "sampling": dict(sampling)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**WISHES, **os.environ},
        )
        priority.give(self._process.pid, priority.MEASURED)

    def __call__(self, prompts: Sequence[str]) -> tuple[float, float]:
        """(answers, tokens) a second."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(prompts)) + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise SystemExit("the engine alone did not run")
        answers_per_s, tokens_per_s = json.loads(said)
        return answers_per_s, tokens_per_s

    def __enter__(self) -> Ceiling:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def serve(places: int, tokens: int, sampling: Mapping[str, Any]) -> None:
    from tokenizers import Tokenizer

    from lab.serve.models.decoder import decoder_of
    from lab.serve.models.engine import Engine, Options, run_to_end

    weights = llama_weights.prepare()
    decoder, tokenizer = decoder_of(weights, "bf16", threads=THREADS), Tokenizer.from_file(f"{weights}/tokenizer.json")
    options = Options(max_batch_size=places, max_request_tokens=tokens)
    for line in sys.stdin:
        prompts, engine = json.loads(line), Engine(decoder, tokenizer, options)
        began = time.perf_counter()
        outputs = run_to_end(engine, [engine.request(str(n), text, sampling) for n, text in enumerate(prompts)])
        seconds = time.perf_counter() - began
        written = sum(len(one) for one in outputs.values())
        print(json.dumps([len(prompts) / seconds, written / seconds]), flush=True)


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
