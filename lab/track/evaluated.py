"""How good a version's files are as its spec serves them: what `lab quality` found of them, or finds now.

A language model is evaluated with any files; the other families only with their own weights, so nothing is claimed of
files that are others.
"""

from __future__ import annotations

from lab.errors import InputError
from lab.measure.quality import Quality
from lab.run import quality
from lab.serve import weights
from lab.spec import ModelSpec, set_path
from lab.track.sources import Held, digest


def known(spec: ModelSpec, held: Held) -> dict[str, float]:
    """{measure: value} of what was evaluated before; empty when nothing was."""
    served = _as_served(spec, held)
    found = None if served is None else quality.known(served)
    return {} if found is None else _values(found)


def evaluate(spec: ModelSpec, held: Held) -> dict[str, float]:
    """The same, evaluated now where it is not known: up to a minute of all processors, for which the caller holds the
    lock. InputError for files that cannot be evaluated."""
    served = _as_served(spec, held)
    if served is None:
        raise InputError(f"files of {spec.name}: family {spec.family} is evaluated with its own weights only")
    return _values(quality.evaluate(served))


def _as_served(spec: ModelSpec, held: Held) -> ModelSpec | None:
    if spec.family == "llm":
        return set_path(spec, "weights", str(held.path))
    own = weights.folder(spec) if weights.is_ready(spec) else None
    return spec if own is not None and digest(own)[0] == held.sha256 else None


def _values(found: Quality) -> dict[str, float]:
    return {measure.name: measure.value for measure in found.measures}
