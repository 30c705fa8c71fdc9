"""Runs about how a model comes up: a cold start taken apart, and a runner that scales to zero.

Which of the two measures an experiment, and what a run's document says of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.measure import cold as cold_figures
from lab.measure import serverless as serverless_figures
from lab.measure.verdict import Verdict
from lab.run import cold, serverless
from lab.run.columns import aligned
from lab.run.folder import RunFolder
from lab.spec import Experiment


def measure_of(experiment: Experiment) -> Callable[..., bool] | None:
    """What measures it, as fleet.measure is called; None for an experiment of blocks on a server."""
    if experiment.start is not None:
        return cold.measure
    return serverless.measure if experiment.serverless is not None else None


@dataclass(frozen=True)
class Starts:
    """The parts "cold" and "serverless" of a document, each None where the experiment asks no such question."""

    cold: dict[str, Any] | None
    serverless: dict[str, Any] | None

    @classmethod
    def of(cls, experiment: Experiment, folder: RunFolder, events: Sequence[dict[str, Any]]) -> Starts:
        cells = folder.document["cells"]
        starts, scaled = None, None
        if experiment.start is not None:
            judge = experiment.judge and experiment.judge.model_dump(mode="json")
            starts = {**cold_figures.cold(events, cells), "judge": judge}
        if experiment.serverless is not None:
            scaled = serverless_figures.serverless(events, folder.read("requests"), cells)
        return cls(starts, scaled)

    @property
    def document(self) -> dict[str, Any]:
        return {"cold": self.cold, "serverless": self.serverless}

    def verdict(self, found: Verdict) -> Verdict:
        """`found` with what the starts say in place of what blocks would."""
        changes: dict[str, Any] = {}
        if self.cold is not None:
            effects = cold_figures.effects(self.cold, self.cold["judge"])
            text = cold_figures.text(self.cold, effects, self.cold["judge"])
            changes = {"holds": cold_figures.holds(effects), "text": text, "effects": effects}
        elif self.serverless is not None:
            changes = {"text": serverless_figures.text(self.serverless)}
        return dataclasses.replace(found, **changes)

    @property
    def problems(self) -> list[dict[str, Any]]:
        """Of the run as a whole."""
        texts = [] if self.cold is None else cold_figures.problems(self.cold)
        texts += [] if self.serverless is None else serverless_figures.problems(self.serverless)
        return [{"code": "start", "text": text, "remedy": "", "blocks": None} for text in texts]


def lines(document: dict[str, Any]) -> list[str]:
    """A document's parts for a terminal."""
    out: list[str] = []
    if starts := document.get("cold"):
        out += ["", *aligned(cold_figures.table(starts)), "", cold_figures.steady(starts)]
    if scaled := document.get("serverless"):
        out += ["", *aligned(serverless_figures.table(scaled))]
    return out
