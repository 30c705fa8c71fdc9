"""The blocks of a run, read back from its records: each with its requests, its window and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.instruments import clock_step, near_ceiling, near_stream_ceiling, prefix_warm
from lab.measure.problems import Problem
from lab.measure.records import Requests, Window
from lab.measure.server import ServerDelta, server_delta
from lab.measure.summary import Summary, summarize
from lab.run.copies import served_as, summed
from lab.run.folder import RunFolder
from lab.spec import ClosedLoop, Experiment, ModelSpec, Slo, Workload, parse


@dataclass(frozen=True)
class BlockResult:
    """One measured block: what it was and what came of it."""

    number: int
    role: str
    cell: int
    repeat: int
    model: str
    window: Window
    requests: Requests
    summary: Summary
    workload: Workload


def block_results(folder: RunFolder, experiment: Experiment, slo: Slo | None = None) -> list[BlockResult]:
    """Every block of the run that began, in order, summarised: against its own objective, or against `slo`."""
    events = folder.events()
    starts = [e for e in events if e["kind"] == "block_start"]
    if not starts:
        return []
    ends = {e["block"]: e for e in events if e["kind"] == "block_end"}
    table = folder.read("requests")
    server, telemetry = folder.read("server"), folder.read("telemetry")
    ceilings = {
        (e.get("protocol", "grpc"), e.get("streamed", False)): e["rate_rps"] for e in events if e["kind"] == "ceiling"
    }
    results = []
    for start in starts:
        requests = Requests.from_table(table, block=start["block"])
        end = ends.get(start["block"]) or _unfinished(start, requests)
        window = Window(start["start_ns"], start["measured_from_ns"], max(end["end_ns"], start["measured_from_ns"]))
        name, served = start["model"]["name"], served_as(parse(ModelSpec, start["model"]))
        workload = parse(Workload, start["workload"])
        # Of somebody else's server nothing is read: what there is belongs to the run's own, which stands idle.
        elsewhere = start["workload"].get("url") is not None
        watched = between(telemetry, window.start_ns, window.start_ns if elsewhere else window.end_ns)
        if len(served) > 1:
            watched = summed(watched, [own.name for own in served], name)
        summary = summarize(
            requests,
            window=window,
            planned=end["planned"],
            slo=slo or workload.slo or experiment.slo,
            server=delta(server, name, window) if len(served) == 1 and not elsewhere else None,
            telemetry=watched,
            model=name,
            closed_loop=isinstance(workload.arrival, ClosedLoop),
        )
        near_limit = near_own_limit(start, summary, requests, window, ceilings)
        summary = _doubted(summary, start, ends.get(start["block"]), near_limit)
        results.append(
            BlockResult(
                start["block"],
                start["role"],
                start["cell"],
                start["repeat"],
                name,
                window,
                requests,
                summary,
                workload,
            )
        )
    return results


def _doubted(
    summary: Summary, start: dict[str, Any], end: dict[str, Any] | None, near_limit: Problem | None
) -> Summary:
    """With what the records themselves do not show: how much of the load generator the block used, what a prefix cache
    had, and whether the clock on the wall was set meanwhile. A load that changes by design is not asked to be
    steady."""
    if start["workload"]["arrival"]["kind"] == "steps":
        problems = tuple(problem for problem in summary.problems if problem.code != "unsteady")
        notes = {**summary.notes, "steady": "the load changes by design"}
        summary = replace(summary, steady=None, problems=problems, notes=notes)
    if end is not None and end.get("prompt_tokens"):
        notes = {name: why for name, why in summary.notes.items() if name != "prompt_cached_fraction"}
        cached = end["cached_tokens"] / end["prompt_tokens"]
        summary = replace(summary, prompt_cached_fraction=cached, notes=notes)
    stepped_s = 0.0
    if end is not None and "wall_ns" in start and "wall_ns" in end:
        stepped_s = ((end["wall_ns"] - start["wall_ns"]) - (end["t_ns"] - start["t_ns"])) / 1e9
    more = (
        near_limit,
        clock_step(stepped_s),
        prefix_warm(summary.prompt_cached_fraction),
    )
    found = (*summary.problems, *(problem for problem in more if problem is not None))
    return replace(summary, problems=tuple(sorted(found, key=lambda problem: not problem.forbids_verdict)))


def near_own_limit(
    start: dict[str, Any],
    summary: Summary,
    requests: Requests,
    window: Window,
    ceilings: Mapping[tuple[str, bool], float],
) -> Problem | None:
    """Of a block that used most of what the load generator can; None too where that was not measured. Answers in chunks
    are limited by their reading, others by their sending."""
    streamed = start["model"]["family"] == "llm"
    ceiling = ceilings.get((start["workload"]["protocol"], streamed))
    if not streamed:
        return near_ceiling(summary.sent_rps, ceiling)
    if requests.streams is None or window.seconds <= 0:
        return None
    at_ns = requests.streams.t_ns
    chunks = int(((at_ns >= window.measured_from_ns) & (at_ns < window.end_ns)).sum())
    return near_stream_ceiling(chunks / window.seconds, ceiling)


def _unfinished(start: dict[str, Any], requests: Requests) -> dict[str, Any]:
    """The end of a block that goes on, or whose runner was killed: the last moment of which anything is known."""
    last_ns = int(requests.done_ns.max()) if len(requests) else start["start_ns"]
    return {"planned": start["planned"], "end_ns": min(last_ns, start["end_ns"])}


def delta(server: pa.Table, model: str, window: Window) -> ServerDelta | None:
    """What Triton counted for `model` inside the window; None when it was never scraped."""
    if server.num_rows == 0:
        return None
    return server_delta(server, model, window.measured_from_ns, window.end_ns)


def between(table: pa.Table, from_ns: int, to_ns: int) -> pa.Table:
    """The rows of a stamped table with from_ns <= t_ns < to_ns."""
    return table.filter(pc.and_(pc.greater_equal(table["t_ns"], from_ns), pc.less(table["t_ns"], to_ns)))
