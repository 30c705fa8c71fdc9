"""The models of a fleet, how often each is asked, and the bench whose requests go to all of them through the gate."""

from __future__ import annotations

from collections.abc import Sequence

from lab.load.generator import Job
from lab.run.bench import Bench
from lab.run.gate import Gate
from lab.run.plan import Block
from lab.serve import weights
from lab.spec import Experiment, ModelSpec, set_paths


def members(experiment: Experiment, count: int) -> list[ModelSpec]:
    """The first `count` models of the fleet, most popular first: digits_1, embedder_2, digits_3, …"""
    assert experiment.fleet is not None  # noqa: S101  only asked for experiments that have one
    kinds = [experiment.model, *experiment.fleet.others]
    chosen = [(number, kinds[(number - 1) % len(kinds)]) for number in range(1, count + 1)]
    return [set_paths(spec, [("name", f"{spec.name}_{number}"), ("family", spec.family)]) for number, spec in chosen]


def room_for(together_bytes: Sequence[int], fit: int) -> int:
    """A budget in bytes that holds the first `fit` models and no more, where the first n + 1 take
    `together_bytes[n]`: half way to the next, as heaps grow by some MiB under load; twice those if there is no next."""
    fits = together_bytes[:fit][-1]
    more = together_bytes[fit] if len(together_bytes) > fit else 3 * fits
    return (fits + more) // 2


def shares(models: Sequence[ModelSpec], zipf_exponent: float) -> tuple[tuple[ModelSpec, float], ...]:
    """Zipf's law: the k-th gets a share of 1 / k^exponent, in any unit."""
    return tuple((model, 1.0 / k**zipf_exponent) for k, model in enumerate(models, start=1))


class FleetBench(Bench):
    """A bench whose requests go through the gate, to several models."""

    gate: Gate
    models: list[ModelSpec]

    def put(self, model: ModelSpec) -> None:
        """The gate loads what is asked."""

    def _settle(self, model: ModelSpec) -> None:
        """Nothing of the block before waits in the gate: a request ends with its answer."""

    def _look_at(self, name: str) -> None:
        """The gate does."""

    def _scrape(self, models: Sequence[str]) -> None:
        super()._scrape([name for name, place in self.gate.residency.places().items() if place == "resident"])

    def _job(self, index: int, block: Block) -> Job:
        mix = shares(self.models[: block.workload.models], block.workload.zipf_exponent)
        return Job(index, self.gate.url, block.model, block.workload, weights.tokenizer(block.model), mix)
