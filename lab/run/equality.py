"""Equality before speed: the same requests get the same answers on every level of the judged factor.

Each level is asked the same seeded requests all at once, so that batching does batch them, and its answers are
compared with the baseline level's. Without this a faster level might simply compute something else.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from lab.errors import ServerError
from lab.load.payload import requests_for
from lab.run.bench import Bench
from lab.run.plan import saturation_blocks
from lab.spec import Experiment, ModelSpec

REQUESTS = 64
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
"""Largest absolute difference that still counts as equal: float sums in another order differ in the last digits."""


def compare_answers(experiment: Experiment, bench: Bench, report: Callable[[str], None]) -> dict[str, Any]:
    """{"requests", "tolerance", "levels": [{"level", "max_abs_difference", "equal"}]}, the baseline level first.
    `equal` says that every output of every request is within the tolerance of the baseline's."""
    blocks = saturation_blocks(experiment)
    baseline = experiment.judge.baseline if experiment.judge else None
    blocks.sort(key=lambda block: block.level != baseline)
    first: list[dict[str, np.ndarray]] | None = None
    levels = []
    for block in blocks:
        report(f"comparing answers, level {block.level}")
        bench.put(block.model)
        answers = ask(bench.server.grpc_url, block.model, requests_for(block.model, block.workload, REQUESTS))
        first = first or answers
        difference = max(_difference(a, b) for a, b in zip(first, answers, strict=True))
        tolerance = TOLERANCE[block.model.precision]
        levels.append({"level": block.level, "max_abs_difference": difference, "equal": difference <= tolerance})
    return {"requests": REQUESTS, "tolerance": TOLERANCE[experiment.model.precision], "levels": levels}


def ask(grpc_url: str, model: ModelSpec, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The outputs of every request, in order, all in flight at once."""
    with (
        grpcclient.InferenceServerClient(grpc_url) as client,
        ThreadPoolExecutor(max_workers=len(requests)) as pool,
    ):
        return list(pool.map(lambda request: _infer(client, model, request), requests))


def _infer(
    client: grpcclient.InferenceServerClient, model: ModelSpec, request: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    inputs = []
    for name, array in request.items():
        tensor = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    try:
        result = client.infer(model.name, inputs, client_timeout=30)
    except grpcclient.InferenceServerException as error:
        raise ServerError(f"model {model.name} did not answer: {error.message()}") from None
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def _difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    # The sleeper's BATCH says in what company a request ran: it differs by design.
    return max((float(np.max(np.abs(a[name] - b[name]))) for name in a if name != "BATCH"), default=0.0)
