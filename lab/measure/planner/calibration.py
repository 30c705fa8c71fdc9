"""A server's model out of measured blocks: what their counters and records say, in the terms of the simulators.

A machine's own speed moves by tens of percent from minute to minute, so where a block nearby says how fast it was just
then, that decides the speed (`near`), and all others decide the shape: what a batch or a step shares, what a request or
an answer costs. Here are the rules of a server and a language model's engine; calibrator.py has the servers that Triton
batches for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.engine_simulator import EngineRules
from lab.measure.planner.simulator import Routing, Rules
from lab.measure.planner.steps import Steps, fit_steps
from lab.measure.records import Int64s
from lab.measure.summary import Summary
from lab.spec import ModelSpec

QUIET_QUEUE = 0.25
"""A block whose requests queued less than this share of their computing met almost nobody."""


def _none() -> Floats:
    return np.empty(0)


def _no_tokens() -> Int64s:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Measured:
    """One block: what was served, its figures, and the latencies of its successes in seconds (of due in the window).

    For a replay also what was asked: `due_s`, every arrival in seconds from its start, ascending, with how long its
    answer took (NaN: none came) and the tokens of its prompt and answer where there are any; `users` of a closed loop;
    the measured window. `label` names the block; `number` is its place in time; a `reference` block calibrates and is
    not judged itself."""

    model: ModelSpec
    summary: Summary
    latency_s: Floats
    due_s: Floats = field(default_factory=_none)
    took_s: Floats = field(default_factory=_none)
    window_s: tuple[float, float] = (0.0, 0.0)
    users: int | None = None
    think_s: float = 0.0
    prompt_tokens: Int64s = field(default_factory=_no_tokens)
    output_tokens: Int64s = field(default_factory=_no_tokens)
    number: int = 0
    label: str = ""
    reference: bool = False


def rules(model: ModelSpec, *, replicas: int = 1, routing: Routing = "round_robin") -> Rules:
    """Triton's rules for `model`, as lab/serve/repository.py writes them."""
    batching = model.batching
    return Rules(
        max_batch_size=1 if batching is None else batching.max_batch_size,
        delay_s=0.0 if batching is None else batching.max_queue_delay_us / 1e6,
        max_queue_size=None if batching is None else batching.max_queue_size,
        instances=model.instances,
        replicas=replicas,
        routing=routing,
    )


def engine_rules(model: ModelSpec, *, replicas: int = 1, routing: Routing = "round_robin") -> EngineRules:
    """InputError for an engine whose steps the simulator does not know."""
    if not model.kv_cache:
        raise InputError(f"{model.name}: kv_cache false reads every token anew at each step, which is not modelled")
    if model.max_tokens_in_cache is not None:
        raise InputError(
            f"{model.name}: max_tokens_in_cache {model.max_tokens_in_cache} makes the engine put requests back, "
            "which is not modelled; allowed: null"
        )
    return EngineRules(model.scheduler, model.max_batch_size, replicas=replicas, routing=routing)


def engine_steps(blocks: Sequence[Measured], near: Sequence[Measured] = ()) -> Steps:
    """Of a language model's engine, shape and speed as for `service`. A step that writes is the time between tokens
    less the share spent on prompts, so that sending the tokens is in it. InputError when the blocks say nothing of
    it."""
    # A static batch computes the places of those that ended, which its counters do not count.
    plain = [block for block in blocks if block.model.scheduler != "static"]
    writes, reads, waits, numbers = [], [], [], []
    for block in plain or blocks:
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
        numbers.append(block.number)
        if found.ttft_p50_s is not None and (found.engine_waiting_mean or 0) < QUIET_QUEUE and rows < 2:
            waits.append(found.ttft_p50_s - reads[-1] * prompt)
    fixed_s, row_s, held_s = fit_steps(writes)
    steps = Steps(
        fixed_s,
        row_s,
        held_s,
        read_token_s=float(np.median(reads)),
        outside_s=max(0.0, float(np.median(waits))) if waits else 0.0,
    )
    close = {block.number for block in near}
    speeds = [
        took_s / (fixed_s + rows * row_s + held * held_s)
        for (took_s, rows, held), number in zip(writes, numbers, strict=True)
        if number in close
    ]
    return steps.times(float(np.exp(np.mean(np.log(speeds))))) if speeds else steps
