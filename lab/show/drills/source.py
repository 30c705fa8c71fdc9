"""One run as drills look at it: its figures by level and load, and what its events say of loading and of the model.

Reads the document of lab.run.results, the declaration and the events; no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.measure.prices import Price
from lab.show.grid import Grid

Summaries = list[dict[str, Any]]


@dataclass(frozen=True)
class Source:
    """`recorded`: where and when, of a run that is no own one; None of an own. `price`: of this machine or one like it,
    where there is one. `latencies` gives {level: seconds} from the records at a load, for a chart."""

    run_id: str
    document: Mapping[str, Any]
    declared: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]] = ()
    recorded: str | None = None
    price: Price | None = None
    latencies: Callable[[str, Sequence[str]], dict[str, np.ndarray]] = field(default=lambda load, levels: {})

    @property
    def experiment(self) -> str:
        return str(self.declared["id"])

    @property
    def model(self) -> str:
        return str(self.declared["model"]["name"])

    @property
    def grid(self) -> Grid:
        judge = self.declared.get("judge") or {}
        return Grid.of(dict(self.document), judge.get("factor"), judge.get("baseline"))

    @property
    def primary(self) -> str:
        return str((self.declared.get("judge") or {}).get("primary", "throughput_rps"))

    def level(self, raw: Any) -> str | None:
        """The words of the judged factor's level `raw`; for an object the first that holds all of its fields."""
        for name in self.grid.levels:
            found = self.grid.raw(name)
            if found == raw:
                return name
            if isinstance(raw, Mapping) and isinstance(found, Mapping) and raw and raw.items() <= found.items():
                return name
        return None

    def load(self, position: int) -> str | None:
        """The load that asks for least (0), next (1), … most (-1)."""
        ordered: list[str] = []
        left = list(self.grid.loads)
        while left:
            ordered.insert(0, self.grid.highest(left))
            left.remove(ordered[0])
        try:
            return ordered[position]
        except IndexError:
            return None

    def at(self, level: str | None, load: str | None, *wanted: str) -> dict[str, Any] | None:
        """The wanted figures there, as cards show them; None when one is missing."""
        if level is None or load is None:
            return None
        found = {name: self.grid.figure(level, load, name) for name in wanted}
        return None if any(value is None for value in found.values()) else found

    def some(self, *wanted: str, fits: Callable[[dict[str, Any]], bool] = lambda s: True) -> dict[str, Any] | None:
        """The first cell's summary that has all wanted figures and fits, with `cell`, its words."""
        for load in self.grid.loads:
            for level in self.grid.levels:
                for summary in self.grid.at(level, load):
                    if all(summary.get(name) is not None for name in wanted) and fits(summary):
                        words = [w for w in (level, load) if w not in ("as it is", "this load")]
                        return {**summary, "cell": ", ".join(words) or "the model as it is"}
        return None

    def saturation(self, level: str | None, metric: str = "throughput_rps") -> float | None:
        """What this level answered when it was asked for all it could."""
        judge = self.declared.get("judge")
        if not judge or level is None:
            return None
        raw = self.grid.raw(level)
        for cell in self.document["cells"]:
            if cell["role"] == "saturation" and cell["factors"].get(judge["factor"]) == raw:
                value: float | None = cell["summary"].get(metric)
                return value
        return None

    def effect(self, level: str | None, load: str | None, metric: str) -> dict[str, Any] | None:
        if level is None or load is None:
            return None
        return self.grid.effect(dict(self.document), level, load, metric)

    def event(self, kind: str) -> Mapping[str, Any] | None:
        return next((event for event in self.events if event["kind"] == kind), None)

    @property
    def load_s(self) -> float | None:
        """The middle time that a model took to be ready."""
        times = sorted(event["seconds"] for event in self.events if event["kind"] in ("loaded", "model_loaded")
                       and isinstance(event.get("seconds"), int | float))  # fmt: skip
        return times[(len(times) - 1) // 2] if times else None

    @property
    def architecture(self) -> Mapping[str, Any] | None:
        """The language model's config.json, where the run noted it."""
        limits = self.event("limits")
        config = None if limits is None else limits.get("config")
        return config if isinstance(config, Mapping) else None
