"""The charts that only one kind of run has, for what shows every kind alike: many models, fine-tunes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.show.charts import fleet, fleet_memory, lora
from lab.show.charts.figure import Chart


def own_charts(document: Mapping[str, Any]) -> list[Chart]:
    """In reading order; none for a run that is of no such kind."""
    if many := document.get("fleet"):
        return [fleet.throughput(many), fleet.waits(many), fleet_memory.waterfall(many), fleet.matrix(many)]
    if tunes := document.get("lora"):
        return [lora.memory(tunes), lora.taught(tunes)]
    return []
