"""A run folder, followed while it grows: what a page shows each second.

`Live` keeps its place in every stream, so an update reads only what is new. It also serves a finished run: the first
update then reads everything. The figures come from the same `summarize` as the final document, over the block that
runs now and at most its last `RECENT_S` seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.records import SERVER, TELEMETRY, Requests, Window
from lab.measure.resources import MODEL
from lab.measure.series import SECOND_NS, RequestSeries, growth, last_reading
from lab.measure.summary import Summary, summarize
from lab.measure.token_series import TokenSeries
from lab.measure.words import level_label
from lab.run.control import MODEL_FIELDS
from lab.run.folder import RunFolder
from lab.run.readings import Readings
from lab.run.results import between, delta
from lab.run.status import Status
from lab.spec import ClosedLoop, Experiment, Workload, parse

RECENT_S = 60
FLUSH_NS = 500_000_000
"""A load worker writes its rows this often at the latest: the last moment of which all is known lies this far back."""
MOST_PIECES = 32
SUMMED_EVERY_S = 3
"""The figures are of a minute, so they hardly move in a second; to sum them up takes more than all else of a look."""
BEFORE_S = 10
LEAST_S = 1
"""A rate over less is of a few requests, and there are no figures yet."""
ELSE = "no part of this run"
"""Behind the name of a model that an earlier run left loaded."""


@dataclass(frozen=True)
class LiveView:
    """One look at a run. `series` maps names to float32 arrays of one length (seconds since the run's first block);
    `events` are (second, number, label) for the moments that a chart marks; `summary` is of the block in progress."""

    status: Status
    seconds: int
    series: dict[str, Any] = field(default_factory=dict)
    memory_mib: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[float, int, str]] = field(default_factory=list)
    summary: Summary | None = None
    model: dict[str, Any] | None = None
    workload: dict[str, Any] | None = None


class Live:
    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._experiment = parse(Experiment, folder.document["experiment"])
        self._tails = {name: folder.tail(name) for name in ("requests", "server", "telemetry")}
        self._server = SERVER.empty_table()
        self._telemetry = TELEMETRY.empty_table()
        self._counters, self._machine = Readings("model"), Readings("subject")
        self._requests: RequestSeries | None = None
        self._tokens: TokenSeries | None = None
        self._block_rows: list[pa.Table] = []
        self._block = -1
        self._summed: Summary | None = None
        self._summed_ns = 0
        self._scraped_ns = 0

    def update(self) -> LiveView:
        """Read what is new and return the whole picture."""
        status = self.folder.status()
        events = self.folder.events()
        starts = [event for event in events if event["kind"] == "block_start"]
        if not starts:
            return LiveView(status, 0)
        origin_ns = starts[0]["start_ns"]
        self._requests = self._requests or RequestSeries(origin_ns)
        self._tokens = self._tokens or TokenSeries(origin_ns)
        fresh = self._tails["requests"].new()
        ended = Requests.from_table(fresh)
        self._requests.add(ended)
        self._tokens.add(ended)
        server, telemetry = self._tails["server"].new(), self._tails["telemetry"].new()
        self._server, self._telemetry = _longer(self._server, server), _longer(self._telemetry, telemetry)
        self._counters.add(server)
        self._machine.add(telemetry)
        if server.num_rows:
            self._scraped_ns = max(self._scraped_ns, pc.max(server["t_ns"]).as_py())
        # Also seconds of which only the server told something: an answer may take longer than a look at the chart.
        seconds = max(self._requests.seconds, (self._scraped_ns - origin_ns) // SECOND_NS)
        model, workload = _in_force(starts[-1], events)
        return LiveView(
            status=status,
            seconds=seconds,
            series={
                "t_s": np.arange(seconds, dtype=np.float32),
                **self._requests.columns(seconds),
                **(self._tokens.columns(seconds) if model["family"] == "llm" else {}),
                **(
                    _engine_columns(self._counters, model["name"], origin_ns, seconds)
                    if model["family"] == "llm"
                    else {}
                ),
                **_server_columns(self._counters, starts[-1]["model"]["name"], origin_ns, seconds),
            },
            memory_mib=_memory(self._machine, origin_ns, seconds, _models(self._experiment, starts, events)),
            events=_moments(starts, events, origin_ns, self._experiment),
            summary=self._summary(starts[-1], fresh) if status.active else None,
            model=model,
            workload=workload,
        )

    def _summary(self, start: dict[str, Any], fresh: pa.Table) -> Summary | None:
        if start["block"] != self._block:
            self._block, self._block_rows, self._summed = start["block"], [], None
        now_ns = time.perf_counter_ns() - FLUSH_NS
        recent_ns = now_ns - RECENT_S * SECOND_NS
        recent = pc.greater_equal(fresh["done_ns"], recent_ns)
        rows = fresh.filter(pc.and_(pc.equal(fresh["block"], self._block), recent))
        self._block_rows = [
            t for t in [*self._block_rows, rows] if t.num_rows and pc.max(t["done_ns"]).as_py() >= recent_ns
        ]
        if not self._block_rows or now_ns < start["measured_from_ns"] + LEAST_S * SECOND_NS:
            return None
        if self._summed is not None and now_ns - self._summed_ns < SUMMED_EVERY_S * SECOND_NS:
            return self._summed
        window = Window(start["start_ns"], max(start["measured_from_ns"], recent_ns), min(start["end_ns"], now_ns))
        self._summed_ns = now_ns
        self._summed = summarize(
            Requests.from_table(pa.concat_tables(self._block_rows)),
            window=window,
            planned=None,
            slo=parse(Workload, start["workload"]).slo or self._experiment.slo,
            server=delta(_since(self._server, window.measured_from_ns), start["model"]["name"], window),
            telemetry=between(_since(self._telemetry, window.start_ns), window.start_ns, now_ns),
            model=start["model"]["name"],
            closed_loop=isinstance(parse(Workload, start["workload"]).arrival, ClosedLoop),
            now_ns=now_ns,
        )
        return self._summed


def _since(table: pa.Table, t_ns: int) -> pa.Table:
    """The rows from shortly before `t_ns` on, of a table in the order of time: a counter's growth needs one reading
    before its window."""
    first = np.searchsorted(table["t_ns"].to_numpy(), t_ns - BEFORE_S * SECOND_NS)
    return table.slice(int(first))


def _longer(table: pa.Table, fresh: pa.Table) -> pa.Table:
    """Both in one, of few pieces: each look adds a piece, and each column drawn visits every piece there is."""
    longer = pa.concat_tables([table, fresh])
    return longer.combine_chunks() if longer.column(0).num_chunks > MOST_PIECES else longer


def _in_force(start: dict[str, Any], events: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    model, workload = dict(start["model"]), dict(start["workload"])
    for event in events:
        if event["kind"] == "change" and event["t_ns"] >= start["start_ns"]:
            if event["field"] == "model":
                model.update(event["to"])
            elif event["field"] in MODEL_FIELDS:
                model[event["field"]] = event["to"]
            else:
                workload["arrival"] = {**workload["arrival"], event["field"]: event["to"]}
    return model, workload


def _server_columns(counters: Readings, model: str, origin_ns: int, seconds: int) -> dict[str, Any]:
    """queue_ms and compute_ms a request, and requests an execution, each second; NaN where nothing was executed."""

    def grown(name: str) -> Any:
        return growth(*counters.of(model, name), origin_ns, seconds)

    requests, inferences, executions = grown("queue_count"), grown("inference_count"), grown("execution_count")
    compute_ns = grown("compute_input_ns") + grown("compute_infer_ns") + grown("compute_output_ns")
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = {
            "queue_ms": np.where(requests > 0, grown("queue_ns") / requests / 1e6, np.nan),
            "compute_ms": np.where(requests > 0, compute_ns / requests / 1e6, np.nan),
            "batch_mean": np.where(executions > 0, inferences / executions, np.nan),
        }
    return {name: column.astype(np.float32) for name, column in columns.items()}


def _engine_columns(counters: Readings, model: str, origin_ns: int, seconds: int) -> dict[str, Any]:
    """What the engine says of itself: requests that run and wait, tokens in its cache, tokens it wrote each second."""
    columns = {
        name.removeprefix("engine_"): last_reading(*counters.of(model, name), origin_ns, seconds)
        for name in ("engine_running", "engine_waiting", "engine_cache_tokens_used")
    }
    written = growth(*counters.of(model, "engine_output_tokens"), origin_ns, seconds)
    return {**columns, "written_tokens_per_s": written.astype(np.float32)}


def _memory(machine: Readings, origin_ns: int, seconds: int, own: frozenset[str]) -> dict[str, Any]:
    """MiB each second for every model, the server and every GPU that reported memory; of `own` models' names where they
    are known, others marked as no part of the run. The host as a whole is left out: what else the machine does would
    dwarf what is measured."""
    columns = {}
    for subject, name in machine.subjects("memory_bytes", "memory_used_bytes"):  # of a process, of a GPU
        if subject != "host":
            t_ns, size_bytes = machine.of(subject, name)
            called = subject if _is_own(subject, own) else f"{subject} ({ELSE})"
            columns[called] = last_reading(t_ns, size_bytes / 2**20, origin_ns, seconds)
    return columns


def _models(experiment: Experiment, starts: list[dict[str, Any]], events: list[dict[str, Any]]) -> frozenset[str]:
    """The names of all models that the run asks for; none where it loads others than its blocks name."""
    if experiment.fleet is not None or experiment.rollout is not None or experiment.start is not None:
        return frozenset()
    changed = [e["to"] for e in events if e["kind"] == "change" and e["field"] == "model"]
    named = [experiment.model.name, *(neighbour.name for neighbour in experiment.neighbours)]
    return frozenset([*named, *(one["name"] for one in (*(s["model"] for s in starts), *changed) if "name" in one)])


def _is_own(subject: str, own: frozenset[str]) -> bool:
    """Whether this is a part of the run: no model, one of its own, or a copy of one ("llm_1_terse")."""
    name = subject.removeprefix(MODEL)
    return name == subject or not own or any(name == one or name.startswith(f"{one}_") for one in own)


def _moments(
    starts: list[dict[str, Any]], events: list[dict[str, Any]], origin_ns: int, experiment: Experiment
) -> list[tuple[float, int, str]]:
    changes = [e for e in events if e["kind"] == "change"]
    moments = [(e["t_ns"], level_label(f"model.{e['field']}".removesuffix(".model"), e["to"])) for e in changes]
    moments += [(e["t_ns"], f"server died: {e['text']}") for e in events if e["kind"] == "died"]
    if len(starts) > 1:
        cells = experiment.cells()
        for start in starts:
            labels = [level_label(path, level) for path, level in cells[start["cell"]].factors.items()]
            if start["role"] == "saturation":
                judged = experiment.judge.factor if experiment.judge else None
                labels = [
                    "saturation",
                    *(level_label(p, v) for p, v in cells[start["cell"]].factors.items() if p == judged),
                ]
            moments.append((start["start_ns"], ", ".join(labels)))
    moments.sort()
    return [((t_ns - origin_ns) / 1e9, number, label) for number, (t_ns, label) in enumerate(moments, start=1)]
