"""Equality before speed: the same requests get the same answers on every level of the judged factor.

Each level is asked the same seeded requests all at once, so that batching does batch them, and its answers are
compared with the baseline level's. Without this a faster level might simply compute something else.

Numbers may differ in their last digits, since sums in another order do. A language model's text may not, but in bf16
two words can be so close that the last digits decide; then the levels are asked again in fp32, where they must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from lab.errors import ServerError
from lab.load.payload import requests_for
from lab.measure.levels import same
from lab.run import conversation
from lab.run.plan import Block
from lab.spec import ClosedLoop, ModelSpec, Workload, set_path, set_paths

REQUESTS = 64
TEXTS, TEXT_TOKENS = 8, 32
"""How many texts of how many tokens a language model is asked for: a text without a cache takes seconds."""
ANSWER_LIMIT_S = 30
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "int8": 1e-4}
"""Largest absolute difference that still counts as equal: float sums in another order differ in the last digits. Sums
of int8 are exact in any order."""

MEASURED = ("SLEPT_S", "BATCH")
"""What the sleeper says of how it ran, for how long and in what company: no answers, and different each time."""

TEXT = "text_output"

Answer = dict[str, np.ndarray]


def ask(grpc_url: str, block: Block, tokenizer: Path | None = None) -> list[Answer]:
    """The outputs of the block's first requests, in order, all in flight at once. `tokenizer`: a language model's."""
    if (workload := workload_of(block)) is not None:
        requests = requests_for(block.model, workload, TEXTS, tokenizer)
        with ThreadPoolExecutor(max_workers=TEXTS) as pool:
            texts = list(pool.map(lambda request: _text(grpc_url, block.model.name, request), requests))
        return [{TEXT: np.array([text], dtype=object)} for text in texts]
    requests = requests_for(block.model, block.workload, REQUESTS)
    with (
        grpcclient.InferenceServerClient(grpc_url) as client,
        ThreadPoolExecutor(max_workers=len(requests)) as pool,
    ):
        return list(pool.map(lambda request: infer(client, block.model.name, request), requests))


def workload_of(block: Block) -> Workload | None:
    """What a language model is asked here, as a load: TEXTS at a time; None for other families."""
    if block.model.family != "llm":
        return None
    together = ClosedLoop(concurrency=TEXTS)
    return set_paths(block.workload, [("output_tokens", TEXT_TOKENS), ("arrival", together)])


def compare_answers(blocks: Sequence[Block], answers: Sequence[list[Answer]], baseline: Any) -> dict[str, Any]:
    """{"requests", "precision", "tolerance", "levels": [{"level", "differing", "max_abs_difference", "equal"}]}, one
    entry a block. `equal` says that every output of every request is within the tolerance of the baseline level's
    (the first level's when the baseline is not among them); `differing` counts requests beyond it. Texts have no
    difference, they are equal or not: `tolerance` and `max_abs_difference` are None."""
    reference = next((a for block, a in zip(blocks, answers, strict=True) if same(block.level, baseline)), answers[0])
    texts = TEXT in reference[0]
    precision = blocks[0].model.precision
    tolerance = 0.0 if texts else TOLERANCE[precision]
    levels = []
    for block, given in zip(blocks, answers, strict=True):
        apart = np.array([_difference(a, b) for a, b in zip(reference, given, strict=True)])
        differing = int((~(apart <= tolerance)).sum())  # so that NaN differs
        largest = float(apart.max())
        finite = largest if np.isfinite(largest) and not texts else None
        levels.append(
            {"level": block.level, "differing": differing, "max_abs_difference": finite, "equal": differing == 0}
        )
    return {
        "requests": len(reference),
        "precision": precision,
        "tolerance": None if texts else tolerance,
        "levels": levels,
    }


def in_fp32(model: ModelSpec, answers: dict[str, Any]) -> ModelSpec | None:
    """The model to ask again: the same in fp32, when bf16 texts differ somewhere; None when there is no need."""
    unequal = any(not level["equal"] for level in answers["levels"])
    if not unequal or model.family != "llm" or model.precision == "fp32":
        return None
    return set_path(model, "precision", "fp32")


def _text(grpc_url: str, model: str, request: Answer) -> str:
    return "".join(piece.text for piece in conversation.stream(grpc_url, model, request))


def infer(client: grpcclient.InferenceServerClient, model: str, request: Answer) -> Answer:
    try:
        result = client.infer(model, conversation.tensors_of(request), client_timeout=ANSWER_LIMIT_S)
    except grpcclient.InferenceServerException as error:
        raise ServerError(f"model {model} did not answer: {error.message()}") from None
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def _difference(a: Answer, b: Answer) -> float:
    """The largest absolute difference of two answers' numbers; of texts 0 or infinite."""
    if TEXT in a:
        return 0.0 if np.array_equal(a[TEXT], b[TEXT]) else np.inf
    return float(np.max([np.max(np.abs(a[name] - b[name])) for name in a if name not in MEASURED], initial=0.0))
