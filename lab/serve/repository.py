"""A ModelSpec as Triton reads it: config.pbtxt and the folder around it.

    <repository>/<name>/config.pbtxt
    <repository>/<name>/1/model.py       a copy of lab/serve/models/<family>.py
    <repository>/<name>/1/weights        a link to the weights, for families that have some

The text goes through Triton's own protobuf, so a field that does not exist fails here and not in the server. What the
spec alone shows to be contradictory is refused by `check`; whether this machine has the weights or a GPU is not asked.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from lab.errors import InputError
from lab.serve import weights
from lab.spec import ModelSpec

TENSORS: dict[str, tuple[tuple[str, int, int], tuple[tuple[str, int, int], ...]]] = {
    # family: input, outputs, each (name, type, length); the batch dimension comes on top
    "digits": (("IMAGE", pb.TYPE_FP32, 64), (("LOGITS", pb.TYPE_FP32, 10),)),
    "embedder": (("TEXT", pb.TYPE_STRING, 1), (("EMBEDDING", pb.TYPE_FP32, 384),)),
    "sleeper": (("SLEEP_S", pb.TYPE_FP32, 1), (("SLEPT_S", pb.TYPE_FP32, 1), ("BATCH", pb.TYPE_INT32, 1))),
    "null": (("INPUT", pb.TYPE_FP32, 1), (("OUTPUT", pb.TYPE_FP32, 1),)),
}
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
    if spec.family not in weights.FAMILIES:
        if spec.precision != "fp32":
            raise InputError(
                f"{spec.name}: precision {spec.precision} with family {spec.family}, which computes nothing; "
                "allowed: fp32"
            )
        if spec.device != "cpu":
            raise InputError(
                f"{spec.name}: device {spec.device} with family {spec.family}, which computes nothing; allowed: cpu"
            )


def config(spec: ModelSpec) -> pb.ModelConfig:
    """Triton's configuration of `spec`. Without batching the batch dimension stays and its limit is 1: a client sends
    the same [1, ...] shapes on and off. InputError when the spec contradicts itself."""
    check(spec)
    (input_name, input_type, input_length), outputs = TENSORS[spec.family]
    message = pb.ModelConfig(name=spec.name, backend="python", max_batch_size=1)
    message.input.add(name=input_name, data_type=input_type, dims=[input_length])
    for name, kind, length in outputs:
        message.output.add(name=name, data_type=kind, dims=[length])
    group = message.instance_group.add(count=spec.instances)
    group.kind = pb.ModelInstanceGroup.KIND_GPU if spec.device == "gpu" else pb.ModelInstanceGroup.KIND_CPU
    for key, value in (("family", spec.family), ("precision", spec.precision), ("seed", str(spec.seed))):
        message.parameters[key].string_value = value
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


def write_model(spec: ModelSpec, repository: Path) -> Path:
    """The model's folder, written so that Triton, reading at any moment, sees the old file or the new one whole.

    The weights themselves are prepared by `weights.prepare`; here is only the link to where they belong."""
    text = config_pbtxt(spec)
    folder = repository / spec.name
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    source = weights.folder(spec)
    _replace(version / "weights", lambda new: new.symlink_to(source) if source else None)
    _replace(version / "model.py", lambda new: shutil.copyfile(MODELS / f"{spec.family}.py", new))
    _replace(folder / "config.pbtxt", lambda new: new.write_text(text))
    return folder


def _replace(path: Path, make) -> None:  # type: ignore[no-untyped-def]
    """`path` made by `make` under another name and moved into place; removed when `make` makes nothing."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    make(new)
    if os.path.lexists(new):
        new.replace(path)
    else:
        path.unlink(missing_ok=True)
