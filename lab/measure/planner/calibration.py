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
from lab.measure.planner.queueing import Routing, Rules
from lab.measure.planner.service import line
from lab.measure.planner.steps import Steps, fit_curve, fit_steps
from lab.measure.records import Int64s
from lab.measure.summary import Summary
from lab.spec import ModelSpec

QUIET_QUEUE = 0.25
"""A block whose requests queued less than this share of their computing met almost nobody."""
ALMOST_ALONE = 2
"""Answers in a step on average, below which nobody else's prompt was in the way."""


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
    if model.instances > 1:
        raise InputError(
            f"{model.name}: instances {model.instances} are as many engines, which wait for the same memory; how much "
            "is not modelled; allowed: 1"
        )
    if model.max_tokens_in_cache is not None:
        raise InputError(
            f"{model.name}: max_tokens_in_cache {model.max_tokens_in_cache} makes the engine put requests back, "
            "which is not modelled; allowed: null"
        )
    return EngineRules(model.scheduler, model.max_batch_size, replicas=replicas, routing=routing)


def engine_steps(blocks: Sequence[Measured], near: Sequence[Measured] = ()) -> Steps:
    """Of a language model's engine, shape and speed as for `service`. A step that writes is the time between tokens
    less what others' prompts took of it, so that sending the tokens is in it. InputError when the blocks say nothing of
    it."""
    # A static batch computes the places of those that ended, which its counters do not count.
    plain = [block for block in blocks if block.model.scheduler != "static"] or blocks
    seen = [one for block in plain if (one := _steps_seen(block)) is not None]
    writes = [one.write for one in seen]
    fixed_s, row_s, held_s = fit_steps(writes)
    read_fixed_s, read_token_s = _reading(seen, fixed_s)
    waits = [one.ttft_s - read_fixed_s - one.prompt * read_token_s for one in seen if one.ttft_s is not None]
    steps = Steps(
        fixed_s,
        row_s,
        held_s,
        read_fixed_s,
        read_token_s,
        outside_s=max(0.0, float(np.median(waits))) if waits else 0.0,
        rows=fit_curve(writes, fixed_s, held_s),
    )
    close = {block.number for block in near}
    speeds = [one.write[0] / steps.write_s(*one.write[1:]) for one in seen if one.number in close]
    return steps.times(float(np.exp(np.mean(np.log(speeds))))) if speeds else steps


@dataclass(frozen=True)
class _StepsSeen:
    """Of one block: `write`, (seconds of a step that writes, rows, tokens held); seconds of the engine for each prompt
    of so many tokens; the time to the first token where nobody was in the way, else None."""

    number: int
    write: tuple[float, float, float]
    read_s: float
    prompt: float
    ttft_s: float | None


def _steps_seen(block: Measured) -> _StepsSeen | None:
    """None of a block that lacks one of the figures."""
    found = block.summary
    figures = (found.itl_mean_s, found.engine_batch_mean, found.prompt_tokens_mean, found.output_tokens_mean)
    reading = found.prefill_fraction
    if reading is None or reading >= 1 or found.step_mean_s is None or None in figures or (figures[3] or 0) <= 1:
        return None
    itl_s, rows, prompt, output = (float(figure or 0) for figure in figures)
    # Whoever waits for a token waits for the step and for what is read of others' prompts, not for its own prompt: of
    # a round in which `rows` answers are written, and as many prompts read, that is all but one prompt. An engine that
    # is idle between requests counts no steps.
    step_s = itl_s * (1 - reading) / (1 - reading / max(rows, 1.0))
    decode_s = found.step_mean_s * (output - 1) / rows  # of the engine, for one answer; reading gives its first token
    alone = (found.engine_waiting_mean or 0) < QUIET_QUEUE and rows < ALMOST_ALONE
    return _StepsSeen(
        block.number,
        (step_s, rows, rows * (prompt + output / 2)),
        decode_s * reading / (1 - reading),
        prompt,
        found.ttft_p50_s if alone else None,
    )


def _reading(seen: Sequence[_StepsSeen], write_fixed_s: float) -> tuple[float, float]:
    """(fixed, a token) of the seconds that a prompt takes. Where prompts of several lengths were read by themselves,
    these tell; where all are of one length, reading goes once through the weights as writing does, and the rest is of
    its tokens."""
    alone = [one for one in seen if one.ttft_s is not None] or list(seen)
    prompts, seconds = (np.array([getattr(one, name) for one in alone], float) for name in ("prompt", "read_s"))
    if len(set(prompts.round())) > 1:
        return line(prompts, seconds, np.ones_like(prompts))
    fixed_s = min(write_fixed_s, float(np.median(seconds)))
    return fixed_s, float(np.median((seconds - fixed_s) / prompts))
