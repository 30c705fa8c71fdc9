"""The events of a run that tell what its formats cost: what the machine can do, the models' configs, their quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from lab.measure.floors import Machine
from lab.measure.quality import Quality
from lab.measure.records import Window
from lab.measure.summary import Summary
from lab.run.control import MODEL_FIELDS
from lab.watch.probe import Probe


class Block(Protocol):
    """What is asked of a measured block (lab.run.results.BlockResult)."""

    @property
    def number(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def cell(self) -> int: ...
    @property
    def repeat(self) -> int: ...
    @property
    def window(self) -> Window: ...
    @property
    def summary(self) -> Summary: ...


@dataclass(frozen=True)
class Told:
    """The events of a run that this module reads."""

    machine: Machine | None
    configs: Mapping[str | None, Mapping[str, Any]]
    qualities: Mapping[str, Quality]
    reasons: Mapping[str, str]
    events: Sequence[Mapping[str, Any]]

    @classmethod
    def by(cls, events: Sequence[Mapping[str, Any]]) -> Told:
        limits = [e for e in events if e["kind"] == "limits" and "config" in e]
        told = [e for e in events if e["kind"] == "quality"]
        return cls(
            machine_of(limits[0]["machine"]) if limits and limits[0]["machine"] else None,
            {e["weights"]: e["config"] for e in limits},
            {e["format"]: Quality.from_dict(e["quality"]) for e in told if e["quality"]},
            {e["format"]: e["reason"] for e in told if not e["quality"]},
            events,
        )


def machine_of(found: Probe | Mapping[str, Any]) -> Machine:
    values = asdict(found) if isinstance(found, Probe) else found
    return Machine(
        values.get("read_bandwidth_bytes_s"),
        {
            "fp32": values.get("matmul_fp32_flop_s"),
            "bf16": values.get("matmul_bf16_flop_s"),
            "int8": values.get("matmul_int8_op_s"),
        },
    )


def model_changed(events: Sequence[Mapping[str, Any]], from_ns: int, end_ns: int | None) -> bool:
    """Whether the model was changed by hand between two moments; until now with `end_ns` None."""
    moments = [event["t_ns"] for event in events if event["kind"] == "change" and event["field"] in MODEL_FIELDS]
    return any(from_ns <= t_ns and (end_ns is None or t_ns <= end_ns) for t_ns in moments)
