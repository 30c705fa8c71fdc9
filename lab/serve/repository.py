"""A ModelSpec as Triton reads it: config.pbtxt and the folder around it.

    <repository>/<name>/config.pbtxt
    <repository>/<name>/1/model.py       a copy of lab/serve/models/<family>.py
    <repository>/<name>/1/<module>.py    copies of what it imports from beside itself
    <repository>/<name>/1/weights        a link to the weights, for families that have some
    <repository>/<name>/1/multi_lora.json    where its adapters are, for a language model that has some

The text goes through Triton's own protobuf, so a field that does not exist fails here and not in the server. What the
spec alone shows to be contradictory is refused by `check`; whether this machine has the weights or a GPU is not asked.
"""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from lab import atomic
from lab.errors import InputError
from lab.serve import adapters, weights
from lab.spec import LLM_FIELDS, ModelSpec


class Tensor(NamedTuple):
    """One input or output; a batch dimension comes on top where the family has one. Length -1 is any."""

    name: str
    kind: int
    length: int
    optional: bool = False


TENSORS: dict[str, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    # family: inputs, outputs
    "digits": ((Tensor("IMAGE", pb.TYPE_FP32, 64),), (Tensor("LOGITS", pb.TYPE_FP32, 10),)),
    "embedder": ((Tensor("TEXT", pb.TYPE_STRING, 1),), (Tensor("EMBEDDING", pb.TYPE_FP32, 384),)),
    "llm": (  # as Triton's vLLM backend names them
        (
            Tensor("text_input", pb.TYPE_STRING, 1),
            Tensor("stream", pb.TYPE_BOOL, 1, optional=True),
            Tensor("sampling_parameters", pb.TYPE_STRING, 1, optional=True),
            Tensor("exclude_input_in_output", pb.TYPE_BOOL, 1, optional=True),
            Tensor("return_finish_reason", pb.TYPE_BOOL, 1, optional=True),
            Tensor("return_num_input_tokens", pb.TYPE_BOOL, 1, optional=True),
            Tensor("return_num_output_tokens", pb.TYPE_BOOL, 1, optional=True),
        ),
        (
            Tensor("text_output", pb.TYPE_STRING, -1),
            Tensor("finish_reason", pb.TYPE_STRING, -1),
            Tensor("num_input_tokens", pb.TYPE_UINT32, -1),
            Tensor("num_output_tokens", pb.TYPE_UINT32, -1),
        ),
    ),
    "trees": ((Tensor("FEATURES", pb.TYPE_FP32, 30),), (Tensor("PROBABILITY", pb.TYPE_FP32, 1),)),
    "network": ((Tensor("FEATURES", pb.TYPE_FP32, 30),), (Tensor("PROBABILITY", pb.TYPE_FP32, 1),)),
    "sleeper": (
        (Tensor("SLEEP_S", pb.TYPE_FP32, 1),),
        (Tensor("SLEPT_S", pb.TYPE_FP32, 1), Tensor("BATCH", pb.TYPE_INT32, 1)),
    ),
    "null": ((Tensor("INPUT", pb.TYPE_FP32, 1),), (Tensor("OUTPUT", pb.TYPE_FP32, 1),)),
}
CPU_ONLY = {
    "trees": "which scikit-learn computes on CPUs only",
    "sleeper": "which computes nothing",
    "null": "which computes nothing",
}
FILES = ("weights", "adapters", "merge_adapters")
"""Fields that are files beside the model, and no parameters."""
MODELS = Path(__file__).parent / "models"


def check(spec: ModelSpec) -> None:
    """InputError naming both values when two fields of the spec contradict each other."""
    batching = spec.batching
    if batching is not None:
        most = batching.max_batch_size
        if most < 1:  # Triton would then drop dynamic_batching without a word
            raise InputError(f"{spec.name}: dynamic batching with max_batch_size {most}; allowed: 1 to 1024, or null")
        for size in batching.preferred_batch_sizes:
            if not 1 <= size <= most:
                raise InputError(
                    f"{spec.name}: preferred_batch_sizes holds {size} with max_batch_size {most}; allowed: 1 to {most}"
                )
        if most == 1 and batching.max_queue_delay_us > 0:
            raise InputError(
                f"{spec.name}: max_queue_delay_us {batching.max_queue_delay_us} with max_batch_size 1 waits for "
                "company that cannot join; allowed: max_batch_size from 2, or max_queue_delay_us 0"
            )
    if spec.family == "llm" and spec.max_tokens_in_cache is not None:
        least, most = spec.max_request_tokens, spec.max_batch_size * spec.max_request_tokens
        if not least <= spec.max_tokens_in_cache <= most:
            raise InputError(
                f"{spec.name}: max_tokens_in_cache {spec.max_tokens_in_cache} with max_request_tokens {least} and "
                f"max_batch_size {spec.max_batch_size}; allowed: {least} (one request) to {most} (all of them), or null"
            )
    if spec.merge_adapters and len(spec.adapters) > 1:
        raise InputError(
            f"{spec.name}: merge_adapters with {len(spec.adapters)} adapters is as many models; allowed: one adapter"
        )
    if spec.family in CPU_ONLY and spec.device != "cpu":
        raise InputError(
            f"{spec.name}: device {spec.device} with family {spec.family}, {CPU_ONLY[spec.family]}; allowed: cpu"
        )


def config(spec: ModelSpec) -> pb.ModelConfig:
    """Triton's configuration of `spec`. Without batching the batch dimension stays and its limit is 1: a client sends
    the same [1, ...] shapes on and off. InputError when the spec contradicts itself."""
    check(spec)
    inputs, outputs = TENSORS[spec.family]
    message = pb.ModelConfig(name=spec.name, backend="python", max_batch_size=1)
    for tensor in inputs:
        message.input.add(
            name=tensor.name, data_type=tensor.kind, dims=[tensor.length], optional=tensor.optional or None
        )
    for tensor in outputs:
        message.output.add(name=tensor.name, data_type=tensor.kind, dims=[tensor.length])
    group = message.instance_group.add(count=spec.instances)
    group.kind = pb.ModelInstanceGroup.KIND_GPU if spec.device == "gpu" else pb.ModelInstanceGroup.KIND_CPU
    for key, value in (("family", spec.family), ("precision", spec.precision), ("seed", str(spec.seed))):
        message.parameters[key].string_value = value
    if spec.family == "llm":
        # It answers in many responses and batches by itself, so Triton must neither batch nor wait for an answer.
        message.max_batch_size = 0
        message.model_transaction_policy.decoupled = True
        for name in LLM_FIELDS:
            if name not in FILES:
                value = getattr(spec, name)
                message.parameters[name].string_value = value if isinstance(value, str) else json.dumps(value)
    if spec.batching is not None:
        message.max_batch_size = spec.batching.max_batch_size
        dynamic = message.dynamic_batching
        dynamic.max_queue_delay_microseconds = spec.batching.max_queue_delay_us
        dynamic.preferred_batch_size.extend(spec.batching.preferred_batch_sizes)
        if spec.batching.max_queue_size is not None:
            dynamic.default_queue_policy.max_queue_size = spec.batching.max_queue_size
    return message


def config_pbtxt(spec: ModelSpec) -> str:
    """The text of config.pbtxt, a pure function of `spec`."""
    return str(text_format.MessageToString(config(spec)))


def write_model(spec: ModelSpec, repository: Path, files: Path | None = None) -> Path:
    """The model's folder, written so that Triton, reading at any moment, sees the old file or the new one whole.

    The weights themselves are prepared by `weights.prepare`; here is only the link to where they belong, or to `files`,
    a folder with others of that family."""
    text = config_pbtxt(spec)
    folder = repository / spec.name
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    adapters.write(spec, version)
    source = files or weights.folder(spec)
    if source is None:
        (version / "weights").unlink(missing_ok=True)
    else:
        with atomic.replacing(version / "weights") as new:
            new.symlink_to(source)
    # With their times, by which Python (and numba) tell whether what they compiled at an earlier load is still true.
    for name in imported(spec.family):
        _copy(name, version / f"{name}.py")
    _copy(spec.family, version / "model.py")
    atomic.write(folder / "config.pbtxt", text)
    return folder


def imported(family: str) -> list[str]:
    """The modules beside MODELS/<family>.py that it imports (`from .engine import …`), and those that they import."""
    found: list[str] = []
    pending = [family]
    while pending:
        tree = ast.parse((MODELS / f"{pending.pop()}.py").read_text())
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1}
        new = sorted(name for name in names if name and name not in found)
        found += new
        pending += new
    return found


def _copy(module: str, place: Path) -> None:
    with atomic.replacing(place) as new:
        shutil.copy2(MODELS / f"{module}.py", new)
