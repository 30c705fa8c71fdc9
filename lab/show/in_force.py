"""What a run of one cell does at the moment: as declared until its load begins, then as last changed, by whichever
browser or terminal. A page's controls show it, and are drawn again when it becomes another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.run.live import LiveView


@dataclass(frozen=True)
class InForce:
    """`field` is what the load is set by, "rate_rps" or "concurrency"; `load` is None when its arrivals are given one
    by one; `model` is the ModelSpec as JSON."""

    field: str
    load: float | int | None
    model: dict[str, Any]

    @property
    def batching(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.model["batching"]
        return found

    @property
    def delay_ms(self) -> float:
        return float((self.batching or {}).get("max_queue_delay_us") or 0) / 1000

    @property
    def token(self) -> str:
        """The same text for the same settings, for a browser to compare."""
        return json.dumps([self.field, self.load, self.model], sort_keys=True)


def in_force(document: Mapping[str, Any], view: LiveView) -> InForce | None:
    """Of the run whose run.json is `document`; None for one that compares several cells."""
    if len(document["cells"]) != 1:
        return None
    cell = document["cells"][0]
    arrival = (view.workload or cell["workload"])["arrival"]
    model = view.model or cell["model"]
    if arrival["kind"] == "closed":
        return InForce("concurrency", int(arrival["concurrency"]), model)
    rate_rps = arrival.get("rate_rps")
    return InForce("rate_rps", None if rate_rps is None else float(rate_rps), model)
