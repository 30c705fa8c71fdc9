"""Will they fit? What models take together, known before they are loaded.

    python -m lab fit digits embedder --copies 4 --budget 900MiB

From what each kind of model was seen to take on this machine (footprints.py). A kind that was never seen is loaded
once, on a Triton of its own, asked as it will be, measured and unloaded: seconds a kind, and nothing is modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.measure.words import format_bytes, join
from lab.run import footprints, leak
from lab.run.footprints import TritonShelf
from lab.run.lock import MeasureLock
from lab.serve import weights
from lab.spec import ModelSpec, set_paths

Report = Callable[[str], None]


@dataclass(frozen=True)
class Line:
    """One model of the list: what it adds to those before it, and what they take with it, in bytes. `fits` is None
    without a budget."""

    model: str
    adds_bytes: int
    together_bytes: int
    fits: bool | None


def copies_of(kinds: Sequence[ModelSpec], copies: int) -> list[ModelSpec]:
    """digits_1, embedder_2, digits_3, …: each kind in turn, so many times."""
    named = [kinds[n % len(kinds)] for n in range(len(kinds) * copies)]
    return [
        set_paths(spec, [("name", f"{spec.name}_{n}"), ("family", spec.family)])
        for n, spec in enumerate(named, start=1)
    ]


def unknown(specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """One of each kind that was never seen here."""
    found = {footprints.kind(spec): spec for spec in specs if footprints.known(spec) is None}
    return list(found.values())


def look(specs: Sequence[ModelSpec], report: Report) -> None:
    """Load, ask and measure one of each kind that was never seen here, while no run measures."""
    missing = unknown(specs)
    if not missing:
        return
    for spec in missing:
        weights.prepare(spec)
    with MeasureLock("fit") as lock:
        lock.acquire(lambda place, holder: report(f"waiting to measure: place {place} behind {holder}"))
        with leak.own_server(()) as server:
            shelf = TritonShelf(server, missing)
            for spec in missing:
                shelf.load(spec.name)
                leak.Declared(spec).ask(server)
                shelf.unload(spec.name)  # which looks at it first
                report(f"{spec.name}: {shelf.size_bytes([spec.name]) / 2**20:.0f} MiB alone")


def told(kinds: Sequence[ModelSpec], copies: int, found: Sequence[Line]) -> list[str]:
    """What of a list of models was measured and what is estimated, and what one more copy of each kind adds."""
    alone = {kind.name: footprints.predicted_bytes([kind]) for kind in kinds}
    sizes = [f"{name} {format_bytes(size)}" for name, size in alone.items() if size is not None]
    out = [
        f"Measured here, of one of each kind, loaded and asked: {join(sizes)} alone.",
        "Estimated from that: adds and together. Files that several map are counted once, all else for each of them.",
    ]
    again = found[len(kinds) :][: len(kinds)]
    if copies > 1 and again:
        more = [f"{format_bytes(line.adds_bytes)} of {kind.name}" for kind, line in zip(kinds, again, strict=False)]
        out.append(f"A further copy adds {join(more)}: its own memory, as the files that it maps are there.")
    return out


def lines(specs: Sequence[ModelSpec], budget_bytes: int | None) -> list[Line]:
    """What they take one after the other; ends before the first whose kind is unknown."""
    found: list[Line] = []
    before = 0
    for n, spec in enumerate(specs, start=1):
        together = footprints.predicted_bytes(specs[:n])
        if together is None:
            break
        fits = None if budget_bytes is None else together <= budget_bytes
        found.append(Line(spec.name, together - before, together, fits))
        before = together
    return found
