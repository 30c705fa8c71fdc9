"""A server's model out of measured blocks: what their counters and records say, in the terms of the simulators.

Here are the rules of a server and of a language model's engine, and what a block says; calibrator.py has the servers
that Triton batches for, engine_calibrator.py a language model's engine. A machine's own speed moves by tens of percent
from minute to minute; so what a batch or a step shares, and what a request or an answer costs, is told by all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lab.errors import InputError
from lab.measure.pace import Floats
from lab.measure.planner.engine_simulator import EngineRules
from lab.measure.planner.queueing import Routing, Rules
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
