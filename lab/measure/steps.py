"""A measured decode step beside its floor, and why one format's step is longer or shorter than another's, in sentences.

A step is longer than its floor for what the floor does not know: the operations between the matrices, attention, the
start and end of each part, and in formats that are multiplied as something else the work of turning weights into that.
Two formats of one model differ in little but that last part, so what one loses on the other tells of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.measure.floors import ARITHMETIC, Floor, Machine, decode_floor, fraction_of_floor
from lab.measure.ledger import Ledger
from lab.measure.summary import Summary
from lab.measure.words import format_bytes, format_fraction, format_ratio, format_seconds
from lab.spec import Precision

AS_MUCH = 1.15
"""A step that takes this many times what its bytes would have it take is limited by something else as well."""
TOO_QUICK = "This machine can evidently do more than the probe found, which ran while it was busy."
"""All that is said of floors where a step was below its own."""
PROBE_AGAIN = "Remove LAB_HOME/probe.json: the next run probes anew, best while nothing else goes on."
REST: Mapping[Precision, str] = {
    "int8": "rounding every token's activations to 8 bits and scaling every group's sums back",
    "int8_weight": "turning 8 bits into bfloat16 in registers, for every weight in every step",
    "int4": "turning 4 bits into bytes, rounding activations to 8 bits and scaling every group's sums back",
}
"""What a format does besides reading and multiplying."""
PLAIN = "attention and the operations between the matrices, which no format makes fewer"
OWN = 0.05
"""Of a step: what it does besides more than the baseline's does, from where on it is the format's own work."""


@dataclass(frozen=True)
class Step:
    """`weight_bytes` with scales, `kept_bytes` of keys and values; `batch`: answers that shared the step on
    average. All are of one of the model's `instances`, each of which reads weights of its own."""

    precision: Precision
    weight_bytes: float
    kept_bytes: float
    batch: float
    step_s: float
    floor: Floor
    machine: Machine
    instances: int = 1

    @property
    def fraction(self) -> float:
        """Of what the machine can do."""
        return fraction_of_floor(self.step_s, self.floor) or 0.0

    @property
    def impossible(self) -> bool:
        """Below its floor: what the probe found is too little, so it says of no step what limits it."""
        return self.fraction > 1


def step(summary: Summary, ledger: Ledger, precision: Precision, machine: Machine) -> Step | None:
    """The mean decode step of a block; None where something was not measured. An answer holds its prompt and, on
    average, half of itself."""
    step_s, weights = summary.step_mean_s, summary.engine_weight_bytes
    prompt, output = summary.prompt_tokens_mean, summary.output_tokens_mean
    bandwidth, operations_s = machine.read_bandwidth_bytes_s, machine.arithmetic(precision)
    if not (step_s and weights and prompt and output and bandwidth and operations_s):
        return None
    batch, weights = summary.engine_batch_mean or 1.0, weights / ledger.instances  # counted over all of them
    kept = batch * (prompt + output / 2) * ledger.kv_bytes_per_token
    floor = decode_floor(weights, kept, bandwidth, batch, operations_s, elements=ledger.elements)
    return Step(precision, weights, kept, batch, step_s, floor, machine, ledger.instances)


def sentence(found: Step, *, doubted: bool = False) -> str:
    """What the step reads and multiplies at least, how long that takes on this machine, and how close it came.
    `doubted`: another step on this machine was below its floor."""
    if doubted or found.impossible:
        return TOO_QUICK
    floor, bandwidth = found.floor, (found.machine.read_bandwidth_bytes_s or 0.0) / 1e9
    operations_s = (found.machine.arithmetic(found.precision) or 0.0) / 1e9
    shared = f", which {found.instances} instances share," if found.instances > 1 else ""
    read = (
        f"A step reads {format_bytes(found.weight_bytes)} of weights and {format_bytes(found.kept_bytes)} of keys and "
        f"values: at this machine's {bandwidth:.1f} GB/s{shared} that takes "
        f"{format_seconds(floor.memory_s)} at least. "
    )
    computed = (
        f"Its products in {ARITHMETIC[found.precision]} take {format_seconds(floor.compute_s)} at {operations_s:,.0f} "
        "billion operations a second. "
    )
    limits = "Reading limits it" if floor.limiting == "memory" else "Arithmetic limits it"
    told = f"{read}{computed if floor.compute_s > floor.memory_s / 10 else ''}{limits}. "
    measured = f"Measured: {format_seconds(found.step_s)}, {format_fraction(found.fraction)} of what the machine can do"
    return f"{told}{measured}."


def beside(label: str, found: Step, base_label: str, base: Step, *, doubted: bool = False) -> str:
    """Why a format's step takes more or less than the baseline's, at the same load; that it does, and not why, where
    a step was below its floor."""
    times = found.step_s / base.step_s
    fewer = (found.weight_bytes + found.kept_bytes) / (base.weight_bytes + base.kept_bytes)
    did = (
        f"{label} reads {format_ratio(fewer)} the bytes of {base_label} a step and takes {format_ratio(times)} the time"
    )
    if doubted or found.impossible or base.impossible:
        return f"{did}."
    if times <= fewer * AS_MUCH and base.floor.limiting == "memory":
        return f"{did}: reading is what both wait for."
    if times <= fewer * AS_MUCH:
        return f"{did}: its products in {ARITHMETIC[found.precision]} are quicker too."
    if found.floor.limiting == "compute":
        products = format_seconds(found.floor.compute_s)
        return f"{did}: with {found.batch:.1f} answers in a step its products alone take {products}."
    rest, as_base = (one.step_s - one.floor.step_s for one in (found, base))
    if rest <= 0:
        return f"{did}."
    said = f"{did}: {format_seconds(rest)} of its {format_seconds(found.step_s)} are neither reading nor multiplying"
    own = rest - as_base
    if own < OWN * found.step_s or found.precision not in REST:
        return f"{said}, of {base_label}'s {format_seconds(as_base)}: {PLAIN}."
    return f"{said}, {format_seconds(own)} more than of {base_label}'s: {REST[found.precision]}."
