"""What a worker is told: which model, from which files, how. Its owner writes it, a worker or a zygote reads it.

Made before the clock of a start begins: nothing in here is a stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.serve import repository
from lab.spec import ModelSpec, Start

THREADS = 2
"""Of a language model, unless it says otherwise; as in Triton (lab/serve/models/llm.py)."""

OPTIONS = ("scheduler", "kv_cache", "max_batch_size", "max_request_tokens", "max_tokens_in_cache")
"""Of the language model's engine."""


@dataclass(frozen=True)
class Task:
    """See models.py and worker.py for who reads what."""

    name: str
    family: str
    folder: str  # of the repository: its "1" holds the code and the weights
    files: tuple[str, ...]  # the weights'
    packed: str | None
    arguments: dict[str, str]  # of TritonPythonModel.initialize
    sample: dict[str, tuple[str, list[Any]]]
    options: dict[str, Any]  # of the engine
    threads: int
    precision: str
    kv_cache_precision: str | None
    mapped_weights: bool
    torch_compile: bool
    compile_cache: bool
    environment: dict[str, str]
    memory_limit_bytes: int | None = None
    cgroup: str | None = None
    report: str = ""
    asked_ns: int = 0


SAMPLES: Mapping[str, dict[str, tuple[str, list[Any]]]] = {
    "digits": {"IMAGE": ("FP32", [0.0] * 64)},
    "embedder": {"TEXT": ("BYTES", ["Hello."])},
    "trees": {"FEATURES": ("FP32", [0.0] * 30)},
    "network": {"FEATURES": ("FP32", [0.0] * 30)},
    "sleeper": {"SLEEP_S": ("FP32", [0.0])},
    "null": {"INPUT": ("FP32", [0.0])},
    "llm": {},
}
"""What a model is warmed up with."""


def of(
    spec: ModelSpec,
    how: Start,
    *,
    folder: Path,
    files: Sequence[Path],
    packed: Path | None,
    environment: dict[str, str],
    memory_limit_bytes: int | None,
    cgroup: str | None,
) -> Task:
    """`folder` is the model's in the repository; `report` and `asked_ns` are set when a worker is started."""
    parameters = {
        key: {"string_value": value.string_value} for key, value in repository.config(spec).parameters.items()
    }
    return Task(
        name=spec.name,
        family=spec.family,
        folder=str(folder),
        files=tuple(str(path) for path in files),
        packed=None if packed is None else str(packed),
        arguments={
            "model_name": spec.name,
            "model_config": json.dumps({"name": spec.name, "parameters": parameters}),
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        },
        sample=SAMPLES[spec.family],
        options={name: getattr(spec, name) for name in OPTIONS},
        threads=spec.threads or THREADS,
        precision=spec.precision,
        kv_cache_precision=spec.kv_cache_precision,
        mapped_weights=how.mapped_weights,
        torch_compile=how.torch_compile,
        compile_cache=how.compile_cache,
        environment=environment,
        memory_limit_bytes=memory_limit_bytes,
        cgroup=cgroup,
    )
