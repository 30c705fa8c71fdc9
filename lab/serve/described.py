"""A model on a Triton that somebody else runs, as its server describes it: what it takes, gives, and how it batches.

Read from the model's configuration, which says which dimension is the batch, what is optional, and whether requests
belong to sequences; the metadata endpoint says less and mixes the batch dimension in. What no server says: which
values make sense, how long a variable dimension is in practice, and what the model costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.errors import InputError, ModelError
from lab.serve.triton import Server
from lab.spec import Batching, nearest

DATATYPES = {"TYPE_STRING": "BYTES", **{f"TYPE_{t}": t for t in ("BOOL", "FP16", "FP32", "FP64", "BF16")}}
DATATYPES |= {f"TYPE_{sign}INT{bits}": f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Tensor:
    """`dims` without the batch dimension; -1 where any length goes."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False
    has_batch: bool = True

    def words(self) -> str:
        dims = ", ".join("any" if d < 0 else str(d) for d in self.dims)
        return f"{self.name} {self.datatype} [{dims}]{' (optional)' if self.optional else ''}"


@dataclass(frozen=True)
class Described:
    """`max_batch_size` 0: the model has no batch dimension. `batching`: the dynamic batching in force, None for none.
    `sequence_places`: how many of them the model's instances hold at a time, 0 without.
    `decoupled`: a request may have any number of responses. `sequences`: requests belong to one and need its id."""

    name: str
    backend: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    batching: Batching | None
    decoupled: bool
    sequences: bool
    sequence_places: int
    instances: int
    response_cache: bool

    def lines(self) -> list[str]:
        """What a person wants to know first."""
        batch = f"batches of up to {self.max_batch_size}" if self.max_batch_size else "no batch dimension"
        how = "Triton joins no requests"
        if self.batching is not None:
            how = f"Triton joins requests, waiting up to {self.batching.max_queue_delay_us:,} µs for company"
        facts = [f"{self.backend or 'unknown backend'}, {batch}; {how}; instances: {self.instances}"]
        if self.decoupled:
            facts.append("decoupled: a request may have several responses")
        if self.sequences:
            facts.append("requests belong to sequences, each with an id")
        if self.response_cache:
            facts.append("its response cache is on: equal requests are answered from it")
        takes, gives = ", ".join(t.words() for t in self.inputs), ", ".join(t.words() for t in self.outputs)
        return [*facts, f"takes {takes}", f"gives {gives}"]


def plainest(batching: Batching | None) -> Batching | None:
    """Without what Triton fills in by itself: the largest batch as the preferred one."""
    if batching is None or batching.preferred_batch_sizes != (batching.max_batch_size,):
        return batching
    return batching.model_copy(update={"preferred_batch_sizes": ()})


def describe(server: Server, name: str) -> Described:
    """InputError when the server has no model of that name, ModelError when it is not loaded."""
    states = {state.name: state for state in server.states()}
    if name not in states:
        raise InputError(f"model {name!r}: the server at {server.called} has none of that name{nearest(name, states)}")
    if not states[name].ready:
        reason = states[name].reason or "no reason given"
        raise ModelError(f"model {name!r} is not ready at {server.called}: {reason}")
    return read(server.config(name))


def read(config: Mapping[str, Any]) -> Described:
    """From a configuration as JSON has it; numbers may be texts, as protobuf writes 64 bits."""
    most = int(config.get("max_batch_size", 0))
    dynamic = config.get("dynamic_batching")
    batching = None
    if dynamic is not None and most:
        queue = dynamic.get("default_queue_policy") or {}
        batching = Batching(
            max_batch_size=min(most, 1024),
            max_queue_delay_us=int(dynamic.get("max_queue_delay_microseconds", 0)),
            preferred_batch_sizes=tuple(int(n) for n in dynamic.get("preferred_batch_size", ()) if int(n) <= most),
            max_queue_size=int(queue["max_queue_size"]) if int(queue.get("max_queue_size", 0)) else None,
        )
    instances = sum(int(group.get("count", 1)) for group in config.get("instance_group", ())) or 1
    sequences = config.get("sequence_batching")
    places = 0
    if sequences is not None:
        oldest = sequences.get("oldest") or {}
        places = int(oldest.get("max_candidate_sequences", 0)) or max(most, 1) * instances
    return Described(
        name=str(config["name"]),
        backend=str(config.get("backend") or config.get("platform") or ""),
        inputs=_tensors(config.get("input", ()), most),
        outputs=_tensors(config.get("output", ()), most),
        max_batch_size=most,
        batching=plainest(batching),
        decoupled=bool((config.get("model_transaction_policy") or {}).get("decoupled")),
        sequences=sequences is not None,
        sequence_places=places,
        instances=instances,
        response_cache=bool((config.get("response_cache") or {}).get("enable")),
    )


def _tensors(found: Sequence[Mapping[str, Any]], most: int) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(
            name=str(tensor["name"]),
            datatype=DATATYPES.get(str(tensor.get("data_type", "")), str(tensor.get("data_type", "unknown"))),
            dims=tuple(int(d) for d in tensor.get("dims", ())),
            optional=bool(tensor.get("optional")),
            has_batch=most > 0 and not tensor.get("is_shape_tensor"),
        )
        for tensor in found
    )
