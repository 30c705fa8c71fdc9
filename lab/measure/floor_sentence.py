"""The floor beside a measured decode step, in one sentence. Pure."""

from __future__ import annotations

from lab.measure.floors import decode_floor, fraction_of_floor
from lab.measure.ledger import BYTES
from lab.measure.summary import Summary
from lab.measure.words import format_bytes, format_fraction, format_seconds
from lab.spec import Precision


def sentence(
    summary: Summary,
    kv_bytes_per_token: int,
    precision: Precision,
    read_bandwidth_bytes_s: float | None,
    flops_s: float | None,
) -> str:
    """What a step of this block reads at least, how long that takes on this machine, and how close the measured step
    came; "" where something was not measured. An answer holds its prompt and, on average, half of itself."""
    step_s, weights, prompt, output = (
        summary.step_mean_s,
        summary.engine_weight_bytes,
        summary.prompt_tokens_mean,
        summary.output_tokens_mean,
    )
    if not (step_s and weights and prompt and output and read_bandwidth_bytes_s and flops_s):
        return ""
    shared = summary.engine_batch_mean or 1.0
    kept = shared * (prompt + output / 2) * kv_bytes_per_token
    floor = decode_floor(weights, kept, read_bandwidth_bytes_s, shared, flops_s, bytes_per_weight=BYTES[precision])
    reached = fraction_of_floor(step_s, floor)
    return (
        f"A step reads {format_bytes(weights)} of weights and {format_bytes(kept)} of keys and values: at this "
        f"machine's {read_bandwidth_bytes_s / 1e9:.1f} GB/s that takes {format_seconds(floor.step_s)} at least. "
        f"Measured: {format_seconds(step_s)}, {format_fraction(reached)} of what the machine can do."
    )
