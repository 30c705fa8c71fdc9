"""A server's model out of measured blocks: what their counters and records say, in the terms of the simulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.engine_simulator import EngineRules, Steps, fit_steps
from lab.measure.planner.service import Seen, Service, fit, spread_of
from lab.measure.planner.simulator import Rules
from lab.measure.summary import Summary
from lab.spec import ModelSpec

QUIET_QUEUE = 0.25
"""A block whose requests queued less than this share of their computing met almost nobody: what scatters there is the
server's own."""


@dataclass(frozen=True)
class Measured:
    """One block: what was served, its figures, and the latencies of its successes in seconds (of due in the window)."""

    model: ModelSpec
    summary: Summary
    latency_s: Floats


def rules(model: ModelSpec, *, replicas: int = 1, routing: str = "round_robin") -> Rules:
    """Triton's rules for `model`, as lab/serve/repository.py writes them."""
    batching = model.batching
    return Rules(
        max_batch_size=1 if batching is None else batching.max_batch_size,
        delay_s=0.0 if batching is None else batching.max_queue_delay_us / 1e6,
        max_queue_size=None if batching is None else batching.max_queue_size,
        instances=model.instances,
        replicas=replicas,
        routing=routing,  # type: ignore[arg-type]
    )


def engine_rules(model: ModelSpec) -> EngineRules:
    """InputError for an engine whose steps the simulator does not know."""
    if not model.kv_cache:
        raise InputError(f"{model.name}: kv_cache false reads every token anew at each step, which is not modelled")
    if model.max_tokens_in_cache is not None:
        raise InputError(
            f"{model.name}: max_tokens_in_cache {model.max_tokens_in_cache} makes the engine put requests back, "
            "which is not modelled; allowed: null"
        )
    return EngineRules(model.scheduler, model.max_batch_size)


def service(blocks: Sequence[Measured]) -> Service:
    """Of a model that Triton batches. InputError when the blocks say nothing of it."""
    seen = []
    for block in blocks:
        found = block.summary
        if not found.item_compute_s or found.compute_mean_s is None or found.compute_infer_mean_s is None:
            continue
        beside_s = found.compute_mean_s - found.compute_infer_mean_s  # copying in and out, the instance's time as well
        batch_s = {size: size * item_s + beside_s for size, item_s in found.item_compute_s.items()}
        known = found.latency_mean_s is not None and _quiet(found)
        seen.append(Seen(batch_s, found.batch_sizes, _outside(found) if known else None))
    scatter = [spread_of(b.latency_s, _outside(b.summary)) for b in blocks if _quiet(b.summary) and len(b.latency_s)]
    return fit(seen, np.concatenate(scatter) if scatter else None)


def engine_steps(blocks: Sequence[Measured]) -> Steps:
    """Of a language model's engine. A step that writes is the time between tokens less the share spent on prompts, so
    that sending the tokens is in it. InputError when the blocks say nothing of it."""
    writes, reads, waits = [], [], []
    for block in blocks:
        found = block.summary
        figures = (found.itl_mean_s, found.engine_batch_mean, found.prompt_tokens_mean, found.output_tokens_mean)
        if found.prefill_fraction is None or found.step_mean_s is None or None in figures:
            continue
        itl_s, rows, prompt, output = (float(figure or 0) for figure in figures)
        # Those who wait for a token share the step with more answers than a step has on average; with an even mixture
        # the difference is small, and an engine that is idle between requests counts no steps.
        writes.append((itl_s * (1 - found.prefill_fraction), rows, rows * (prompt + output / 2)))
        # Of each second the engine computes, prefill_fraction goes to prompts: per answer `output` tokens in steps of
        # `rows`, and `prompt` tokens.
        decode_s = found.step_mean_s * output / rows
        reads.append(decode_s * found.prefill_fraction / (1 - found.prefill_fraction) / prompt)
        if found.ttft_p50_s is not None and (found.engine_waiting_mean or 0) < QUIET_QUEUE and rows < 2:
            waits.append(found.ttft_p50_s - reads[-1] * prompt)
    fixed_s, row_s, held_s = fit_steps(writes)
    return Steps(
        fixed_s,
        row_s,
        held_s,
        read_token_s=float(np.median(reads)),
        outside_s=max(0.0, float(np.median(waits))) if waits else 0.0,
    )


def _quiet(found: Summary) -> bool:
    queued, computed = found.queue_mean_s, found.compute_mean_s
    return queued is not None and bool(computed) and queued < QUIET_QUEUE * (computed or 0)


def _outside(found: Summary) -> float:
    return max(0.0, (found.latency_mean_s or 0) - (found.queue_mean_s or 0) - (found.compute_mean_s or 0))
