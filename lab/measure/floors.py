"""The least time that a decode step can take on this machine, and how close to it a measured one comes.

A step reads every weight and the keys and values of every running sequence once, and multiplies each weight with each
row: two limits, of which the longer is the floor (the roofline of Williams, Waterman and Patterson, 2009). With few
rows reading is it, which is why rows that share a step are nearly free, and why fewer bits a weight are faster. With
many rows arithmetic is it, and there only the format counts that is multiplied: weights that are 8 bits in memory and
bfloat16 in the multiplication cost what bfloat16 costs, and turning them into it besides. A step below its floor is an
error of the measurement or of the probe (lab/watch/probe.py), never a fast model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lab.spec import Precision

OPERATIONS_PER_WEIGHT = 2
"""A multiplication and an addition."""
ARITHMETIC: Mapping[Precision, str] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "int8": "int8",
    "int8_weight": "bf16",
    "int4": "int8",
}
"""What a format multiplies in (lab/serve/models/formats.py)."""


@dataclass(frozen=True)
class Machine:
    """What a machine can do at best, a second: bytes read, and operations by what is multiplied ("bf16"). What was not
    measured is None or missing."""

    read_bandwidth_bytes_s: float | None
    operations_s: Mapping[str, float | None]

    def arithmetic(self, precision: Precision) -> float | None:
        return self.operations_s.get(ARITHMETIC[precision])


@dataclass(frozen=True)
class Floor:
    """Seconds a step needs to read its bytes, and to compute its products; `limiting` is the longer one."""

    memory_s: float
    compute_s: float

    @property
    def limiting(self) -> Literal["memory", "compute"]:
        return "memory" if self.memory_s >= self.compute_s else "compute"

    @property
    def step_s(self) -> float:
        return max(self.memory_s, self.compute_s)


def decode_floor(
    weight_bytes: float,
    kv_bytes: float,
    read_bandwidth_bytes_s: float,
    batch: float,
    operations_s: float,
    *,
    elements: float,
) -> Floor:
    """The floor of a step that writes a token for each of `batch` sequences. `weight_bytes`: weights with their scales,
    `elements` of them in all. `kv_bytes`: keys and values that the sequences hold together; 0 without a cache, where
    `batch` counts every token that is read anew."""
    return Floor(
        (weight_bytes + kv_bytes) / read_bandwidth_bytes_s, OPERATIONS_PER_WEIGHT * elements * batch / operations_s
    )


def fraction_of_floor(step_s: float | None, floor: Floor) -> float | None:
    """How much of what the machine can do a step of `step_s` reaches, 1 being all; None when it was not measured."""
    return floor.step_s / step_s if step_s else None
