"""A ledger (ledger.py) beside what the model's process and its engine showed, row by row.

What was allocated the engine says itself. The rest is the difference of two looks at the process, so a row can only be
as exact as the one moment at which it was idle; what has no figure of its own says why. A model of several instances is
as many processes: what they wrote adds up, and pages of one file that several of them have are there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.measure.ledger import Ledger

OLDER = {"whole process": "in all"}
"""What a row was called in the documents of an older lab."""


@dataclass(frozen=True)
class Measured:
    """What a process and its engine showed, in bytes. `idle`: written by the process itself once the model was loaded
    and before it was asked anything; `held`: after it was asked; `libraries`: pages of files in memory by then.
    `weights`, `scales` and `adapters` are what the engine allocated, `cache` the room for keys and values, which takes
    memory only as tokens come, and `cache_in_use` as much of it as the most tokens that the engine counted in it."""

    idle: float | None = None
    held: float | None = None
    libraries: float | None = None
    weights: float | None = None
    scales: float | None = None
    cache: float | None = None
    adapters: float | None = None
    cache_in_use: float | None = None


@dataclass(frozen=True)
class Row:
    """`predicted_bytes` or `measured_bytes` is None where there is none, and `how` says where the measured figure comes
    from, or why it is missing. `error_fraction`: predicted ÷ measured - 1."""

    name: str
    predicted_bytes: float | None
    measured_bytes: float | None
    how: str
    formula: str = ""

    @property
    def error_fraction(self) -> float | None:
        if self.predicted_bytes is None or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes - 1


def by_name(rows: Iterable[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    """The rows of a document's ledger by today's names; {} where it has none."""
    return {OLDER.get(row["name"], row["name"]): row for row in rows or ()}


def reconcile(predicted: Ledger, measured: Measured) -> list[Row]:
    """Predicted against measured, row by row, the whole last. What the engine allocated it says itself; the process
    says the rest: idle it holds weights, scales, the rotations and the runtime, after a load also activations, logits
    and as much of the cache as was ever written, since untouched pages of zeros cost nothing."""
    missing, count = "not measured", predicted.instances
    processes = "the process" if count == 1 else f"the model's {count} processes together"
    once = "" if count == 1 else ", each file once"

    def row(name: str, measured_bytes: float | None, how: str) -> Row:
        return Row(name, predicted[name].size_bytes, measured_bytes, how, predicted[name].formula)

    def told(name: str, found: float | None, how: str = "what the engine allocated") -> Row:
        return row(name, found, missing if found is None else how)

    quantized = predicted["scales"].size_bytes > 0
    scales = measured.scales if quantized else 0.0
    taken = None if measured.weights is None or scales is None else measured.weights + scales
    parts = ("KV cache, in use", "activations", "workspace")
    idle = None if measured.idle is None else measured.idle - predicted.taken_at_once
    loaded = None if measured.held is None or idle is None else max(0.0, measured.held - idle)
    rest = None if loaded is None or measured.cache_in_use is None else max(0.0, loaded - measured.cache_in_use)
    runtime = None if idle is None or taken is None else idle - taken
    adapted = any(one.name == "adapters" for one in predicted.rows)
    if adapted and runtime is not None:
        runtime = None if measured.adapters is None else runtime - measured.adapters
    all_ = ("weights", "scales", *(["adapters"] if adapted else []), *parts, "runtime", "libraries")
    in_memory = None if measured.held is None or measured.libraries is None else measured.held + measured.libraries
    return [
        told("weights", measured.weights),
        told("scales", measured.scales) if quantized else row("scales", None, "nothing is quantized"),
        *([told("adapters", measured.adapters)] if adapted else []),
        row("zero-points", None, predicted["zero-points"].formula),
        told("KV cache, room", measured.cache),
        told("KV cache, in use", measured.cache_in_use, "the most tokens seen in it at a time × bytes of each"),
        *(row(name, None, "measured together, below") for name in parts[1:]),
        Row(
            "activations and workspace",
            sum(predicted[name].size_bytes for name in parts[1:]),
            rest,
            missing
            if rest is None
            else "what is held under load without the cache in use; with the rest of its pages once written",
            "activations and workspace",
        ),
        Row(
            "under load",
            sum(predicted[name].size_bytes for name in parts),
            loaded,
            missing if loaded is None else f"what {processes} wrote since idle, and a cache taken at once",
            "cache in use, activations and workspace",
        ),
        told("runtime", runtime, f"{processes}, idle, without weights, scales and a cache taken at once"),
        told("libraries", measured.libraries, f"pages of files in {processes}{once}"),
        Row(
            "in all",
            sum(predicted[name].size_bytes for name in all_),
            in_memory,
            missing if in_memory is None else f"what of {processes} is in memory{once}",
            "all of the above; of the cache what is in use",
        ),
    ]
