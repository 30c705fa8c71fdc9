"""What one experiment's page says and draws. All else is the same on each: lab/show/ui/comparison.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.run.folder import RunFolder
from lab.show.charts.figure import Chart
from lab.show.grid import Grid
from lab.show.ui import reads
from lab.spec import Experiment, ModelSpec, Slo, parse


@dataclass(frozen=True)
class Seen:
    """A finished comparison as the page looks at it: one `level` of the judged factor against the baseline, at one
    `load`."""

    folder: RunFolder
    document: dict[str, Any]
    grid: Grid
    level: str
    load: str

    @property
    def experiment(self) -> dict[str, Any]:
        declared: dict[str, Any] = self.folder.document["experiment"]
        return declared

    @property
    def pair(self) -> tuple[str, str]:
        return self.grid.baseline, self.level

    @property
    def model(self) -> str:
        return str(self.experiment["model"]["name"])

    @property
    def spec(self) -> ModelSpec:
        """The model as it was served at this level and load."""
        factor, level = self.experiment["judge"]["factor"], self.grid.raw(self.level)
        served = next(c["model"] for c in self.folder.document["cells"] if c["factors"].get(factor) == level)
        return parse(ModelSpec, served)

    @property
    def primary(self) -> str:
        return str(self.experiment["judge"]["primary"])

    @property
    def slo(self) -> Slo:
        """What this level's requests were promised: its own objective, or the experiment's."""
        factor, level = self.experiment["judge"]["factor"], self.grid.raw(self.level)
        cell = next(c for c in self.folder.document["cells"] if c["factors"].get(factor) == level)
        return parse(Slo, cell["workload"].get("slo") or self.experiment["slo"])

    def limit_s(self, field: str) -> float | None:
        """A limit of the objective: latency_s, ttft_s or itl_s."""
        limit: float | None = self.experiment["slo"][field]
        return limit

    def records(self, what: str, levels: tuple[str, ...] | None = None) -> dict[str, Any]:
        """{level: …} at this load from the records; `what` names a function of lab.show.pooled."""
        factor = self.experiment["judge"]["factor"]
        return reads.from_records(what, self.folder.run_id, factor, self.load, levels or self.pair)


@dataclass(frozen=True)
class Link:
    page: str
    label: str
    icon: str
    params: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Topic:
    """`prefix` begins the keys of the page's choices in its link. `bet` is the question of the bet, with {objective}
    where the limits stand, `counted` what more or fewer there is of. `form` draws the run's own fields and gives its
    settings; `depths` says how long a quick and a whole run take. `figures` maps at most four fields of a summary to
    the labels of their cards. `happened` and `why` give the charts of these blocks and `cause` a sentence before the
    latter ("" for none), `beside` shows what is no chart after the former; `foresight` draws below bet and form what
    is known before a run of the experiment as it is set; `compared` are the metrics of every
    comparison. `cost` tells what it costs where a price of the machine that was measured does not. `meanwhile` gives
    the charts that are drawn while the run goes on, `unmeasured` those of a run (its document) that ended before a cell
    was measured."""

    experiment: str
    page: str
    prefix: str
    title: str
    bet: str
    counted: str
    form: Callable[[Experiment], list[str]]
    depths: str
    figures: dict[str, str]
    happened: Callable[[Seen], Sequence[Chart]]
    cause: Callable[[Seen], str]
    why: Callable[[Seen], Sequence[Chart]]
    compared: tuple[str, ...]
    next: Callable[[str], Sequence[Link]]
    beside: Callable[[Seen], None] | None = None
    foresight: Callable[[Experiment], None] | None = None
    cost: Callable[[Seen], None] | None = None
    meanwhile: Callable[[RunFolder], Sequence[Chart]] = lambda folder: ()
    unmeasured: Callable[[dict[str, Any]], Sequence[Chart]] = lambda document: ()
