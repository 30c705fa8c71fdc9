"""Equality before speed: the same requests get the same answers on every level of the judged factor.

Each level is asked the same seeded requests all at once, so that batching does batch them, and its answers are
compared with the baseline level's. Without this a faster level might simply compute something else.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from lab.errors import ServerError
from lab.load.payload import requests_for
from lab.run.plan import Block

REQUESTS = 64
ANSWER_LIMIT_S = 30
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
"""Largest absolute difference that still counts as equal: float sums in another order differ in the last digits."""

MEASURED = ("SLEPT_S", "BATCH")
"""What the sleeper says of how it ran, for how long and in what company: no answers, and different each time."""

Answer = dict[str, np.ndarray]


def ask(grpc_url: str, block: Block) -> list[Answer]:
    """The outputs of the block's first requests, in order, all in flight at once."""
    requests = requests_for(block.model, block.workload, REQUESTS)
    with (
        grpcclient.InferenceServerClient(grpc_url) as client,
        ThreadPoolExecutor(max_workers=len(requests)) as pool,
    ):
        return list(pool.map(lambda request: _infer(client, block.model.name, request), requests))


def compare_answers(blocks: list[Block], answers: list[list[Answer]], baseline: Any) -> dict[str, Any]:
    """{"requests", "tolerance", "levels": [{"level", "max_abs_difference", "equal"}]}, one entry a block. `equal` says
    that every output of every request is within the tolerance of the baseline level's (the first level's when the
    baseline is not among them)."""
    reference = next((a for block, a in zip(blocks, answers, strict=True) if block.level == baseline), answers[0])
    tolerance = TOLERANCE[blocks[0].model.precision]
    levels = []
    for block, given in zip(blocks, answers, strict=True):
        difference = float(np.max([_difference(a, b) for a, b in zip(reference, given, strict=True)]))
        finite = difference if np.isfinite(difference) else None  # an answer that is not a number equals nothing
        levels.append({"level": block.level, "max_abs_difference": finite, "equal": bool(difference <= tolerance)})
    return {"requests": REQUESTS, "tolerance": tolerance, "levels": levels}


def _infer(client: grpcclient.InferenceServerClient, model: str, request: Answer) -> Answer:
    inputs = []
    for name, array in request.items():
        tensor = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    try:
        result = client.infer(model, inputs, client_timeout=ANSWER_LIMIT_S)
    except grpcclient.InferenceServerException as error:
        raise ServerError(f"model {model} did not answer: {error.message()}") from None
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def _difference(a: Answer, b: Answer) -> float:
    return float(np.max([np.max(np.abs(a[name] - b[name])) for name in a if name not in MEASURED], initial=0.0))
