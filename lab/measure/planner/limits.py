"""What breaks first as the load grows: the queue, the batch limit, the KV cache, memory, the client, the network.

Each has the rate at which it gives way, found in its own way, and the lowest of them is the answer. "The queue" is the
objective: requests wait longer than it allows while the server still has room in its batches; where batches are full by
then it is the batch limit, and a larger one would carry further; where most of those that miss it would miss it without
any wait as well, it is the service time, or its tail. What nobody measured is assumed and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lab.measure.planner.calibrated import Calibrated, mean
from lab.measure.planner.planner import highest_rate
from lab.measure.planner.prediction import attained
from lab.measure.planner.setting import Setting, at_rate
from lab.measure.words import (
    format_bytes,
    format_count,
    format_fraction,
    format_rate,
    format_seconds,
    objective_label,
    plural,
)
from lab.spec import Slo

Name = Literal["service time", "queue", "batch limit", "KV cache", "memory", "client", "network"]
Known = Literal["predicted", "measured", "assumed", "not known"]
FULL = 0.9
"""A batch with this share of its places taken on average is full most of the time."""
MOSTLY = 0.5
"""Of those that miss the objective, a share that says what they miss it for."""
HALVINGS = 7
"""After which the rate at which the objective breaks is known to 1 % of capacity."""
WIRE_BYTES = 400
"""Of a request and its answer besides what they carry: HTTP/2 frames, headers, and TCP/IP's own; assumed."""
CHUNK_BYTES = 200
"""Of each chunk of a streamed answer; assumed."""
TOKEN_BYTES = 5
"""Of text a token, and a little; assumed."""


@dataclass(frozen=True)
class Limit:
    """`rate_rps`: of all replicas together, from which on this gives way; None: never, or not known, see `text`."""

    name: Name
    rate_rps: float | None
    known: Known
    text: str


@dataclass(frozen=True)
class Surroundings:
    """What of a run's machine and client limits a plan; None: not measured. `client_core_s`: seconds of a core that
    the load generator spent for each request; `client_cores`: how many its workers can use; `request_bytes`: what a
    request and its answer carry; `network_bits_s`: of the link to a replica, assumed."""

    memory_bytes: float | None = None
    replica_bytes: float | None = None
    client_core_s: float | None = None
    client_cores: int = 1
    request_bytes: float | None = None
    network_bits_s: float = 1e9


def limits(model: Calibrated, setting: Setting, slo: Slo, around: Surroundings, *, seed: int = 0) -> tuple[Limit, ...]:
    """All of them, the first to break first, those without a rate last."""
    objective = _objective(model, setting, slo, seed)
    per_replica = None if objective.rate_rps is None else objective.rate_rps / setting.replicas
    found = [
        objective,
        _batch(model, setting),
        *([_cache(model, setting)] if model.is_engine else []),
        _memory(setting, per_replica, around, model),
        _client(around),
        _network(setting, around),
    ]
    named: dict[Name, Limit] = {}
    for limit in found:  # the objective may have been found to break by the batch limit: then it stands for it
        named.setdefault(limit.name, limit)
    return tuple(sorted(named.values(), key=lambda one: (one.rate_rps is None, one.rate_rps or 0.0)))


def first(found: Sequence[Limit]) -> Limit | None:
    """The one that breaks first; None when none has a rate."""
    return next((limit for limit in found if limit.rate_rps is not None), None)


def _objective(model: Calibrated, setting: Setting, slo: Slo, seed: int) -> Limit:
    capacity = model.capacity_rps(setting)

    def keeps(rate_rps: float) -> bool:
        return attained(model.runs(at_rate(setting, rate_rps), seed=seed), slo) >= slo.percentile

    rate = highest_rate(keeps, capacity, HALVINGS)
    within = f"{format_fraction(slo.percentile)} within {objective_label(slo)}"
    if rate is None:
        return Limit(
            "service time",
            0.0,
            "predicted",
            f"Even with next to no load the objective ({within}) is missed: no queue is to blame, one request alone "
            "takes too long.",
        )
    at = model.pattern(at_rate(setting, rate), slo, seed=seed)
    most = model.model_of(setting).max_batch_size if model.is_engine else _largest(model, setting)
    batch = at.batch_mean or 1.0
    places = f"{batch:.1f} of {most} places of a batch taken on average"
    if most > 1 and batch >= FULL * most:
        return Limit(
            "batch limit",
            rate,
            "predicted",
            f"Up to {format_rate(rate)} the objective ({within}) is kept, with {places}: batches are full, and a "
            "larger limit would carry further where memory allows.",
        )
    waited = f", mean wait {format_seconds(at.queue_mean_s)}" if at.queue_mean_s is not None else ""
    if (at.missed_alone_fraction or 0.0) > MOSTLY:
        slow = "each step takes longer for the answers that share it" if model.is_engine else "the tail of its times"
        return Limit(
            "service time",
            rate,
            "predicted",
            f"Above {format_rate(rate)} ({format_fraction(rate / capacity)} of capacity) the objective ({within}) is "
            f"missed, though not for waiting{waited}: {format_fraction(at.missed_alone_fraction)} of those that miss "
            f"it would miss it without a queue too. It is the service time that breaks it, {slow}.",
        )
    room = f", with {places}" if most > 1 else "; each request runs alone, so batching may carry further"
    return Limit(
        "queue",
        rate,
        "predicted",
        f"Above {format_rate(rate)} ({format_fraction(rate / capacity)} of capacity) requests wait "
        f"longer than the objective ({within}) allows{waited}{room}.",
    )


def _batch(model: Calibrated, setting: Setting) -> Limit:
    capacity = model.capacity_rps(setting)
    most = model.model_of(setting).max_batch_size if model.is_engine else _largest(model, setting)
    what = f"batches of {most}" if most > 1 else "requests alone"
    return Limit(
        "batch limit",
        capacity,
        "predicted",
        f"With {what} and never idle, {plural(setting.replicas, 'replica')} can serve {format_rate(capacity)} at the "
        "most, however long requests wait.",
    )


def _largest(model: Calibrated, setting: Setting) -> int:
    batching = model.model_of(setting).batching
    return 1 if batching is None else batching.max_batch_size


def _cache(model: Calibrated, setting: Setting) -> Limit:
    """Tokens: how many places' worth of answers there is room for. A cache that holds every place's longest answer
    never breaks; a smaller one caps how many run together, and so the rate."""
    spec = model.model_of(setting)
    slots = 1 if spec.scheduler == "one" else spec.max_batch_size
    longest = _longest(model.prompt_tokens) + _longest(model.output_tokens)
    room = slots * spec.max_request_tokens
    where = "the engine's cache"
    form = model.formats.get(setting.precision or model.model.precision)
    if setting.accelerator is not None and setting.accelerator.memory_bytes is not None and form is not None:
        left = setting.accelerator.memory_bytes - form.weight_bytes
        room = min(room, int(left / form.kv_bytes_per_token))
        where = f"{setting.accelerator.name} beside {format_bytes(form.weight_bytes)} of weights"
    needed = slots * longest
    if room >= needed:
        return Limit(
            "KV cache",
            None,
            "predicted",
            f"{plural(slots, 'answer')} of {longest:,} tokens hold {format_count(needed)} tokens at the most; {where} "
            f"has room for {format_count(room)}: it never breaks first.",
        )
    fewer = max(0, room // longest)
    held = mean(model.prompt_tokens) + mean(model.output_tokens) / 2
    rate = model.capacity_rps(setting) * fewer / slots
    return Limit(
        "KV cache",
        rate,
        "predicted",
        f"{where} has room for {format_count(room)} tokens, {plural(fewer, 'answer')} of {longest:,} where "
        f"{slots} could run together (each holds {held:,.0f} on average): requests are put back from "
        f"{format_rate(rate)} on.",
    )


def _memory(setting: Setting, per_replica: float | None, around: Surroundings, model: Calibrated) -> Limit:
    accelerator = setting.accelerator
    form = model.formats.get(setting.precision or model.model.precision)
    if accelerator is not None:
        if accelerator.memory_bytes is None or form is None:
            return Limit("memory", None, "not known", f"{accelerator.name}: how much memory it has is not known.")
        fits = form.weight_bytes <= accelerator.memory_bytes
        text = (
            f"{accelerator.name} has {format_bytes(accelerator.memory_bytes)} for {format_bytes(form.weight_bytes)} of "
            f"weights: they {'fit' if fits else 'do not fit'}."
        )
        return Limit("memory", None if fits else 0.0, "predicted", text)
    if not around.replica_bytes or not around.memory_bytes:
        return Limit("memory", None, "not known", "How much memory a replica takes was not measured in this run.")
    fit = int(around.memory_bytes / around.replica_bytes)
    rate = per_replica * fit if per_replica else None
    return Limit(
        "memory",
        rate,
        "measured",
        f"A replica took up to {format_bytes(around.replica_bytes)}; {format_bytes(around.memory_bytes)} like this "
        f"machine's hold {fit:,} of them"
        + (f", enough for {format_rate(rate)} if they had cores of their own." if rate is not None else "."),
    )


def _client(around: Surroundings) -> Limit:
    if not around.client_core_s:
        return Limit("client", None, "not known", "What the load generator takes of a core was not measured.")
    rate = around.client_cores / around.client_core_s
    return Limit(
        "client",
        rate,
        "measured",
        f"The load generator spent {format_seconds(around.client_core_s)} of a core on each request: "
        f"{plural(around.client_cores, 'worker')} of it can send about {format_rate(rate)}.",
    )


def _network(setting: Setting, around: Surroundings) -> Limit:
    if around.request_bytes is None:
        return Limit("network", None, "not known", "What a request carries is not known.")
    rate = setting.replicas * around.network_bits_s / 8 / around.request_bytes
    return Limit(
        "network",
        rate,
        "assumed",
        f"A request and its answer carry about {format_bytes(around.request_bytes)}: a link of "
        f"{around.network_bits_s / 1e9:g} Gbit/s to each replica (assumed) takes {format_rate(rate)}.",
    )


def _longest(tokens: int | tuple[int, int]) -> int:
    return tokens if isinstance(tokens, int) else tokens[1]
