"""Records of one measured block → one flat summary: what the field calls each figure, and what makes it doubtful.

`summarize` is the only place where figures come from: the live page, the report, `--json` and the benchmarks call it
on the same records. Latency counts from the *scheduled* arrival of requests due in the window, however late their
answers came; throughput counts answers that ended in the window. A failed request is counted by kind and enters
neither. What was not measured, or is not worth showing, is None, and `notes` says why.

Reads no clock and no file: `now_ns` comes from the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lab.measure.fields import EngineFields, RequestFields, ServerFields, TokenFields
from lab.measure.figures import Figures, latency, little, load, outcomes, queue_not_full, server_figures
from lab.measure.problems import Facts, Problem, problems
from lab.measure.records import OK, REFUSED, TIMEOUT, Int64s, Requests, Streams, Window
from lab.measure.resources import resources
from lab.measure.server import ServerDelta
from lab.measure.steady import steadiness
from lab.measure.tokens import token_figures
from lab.spec import Slo

DEFAULT_PERCENTILE = 0.99
SCRAPE_NS = 50_000_000
"""How far a scrape's stamp may be from the moment that Triton read its counters."""


@dataclass(frozen=True, kw_only=True)
class Summary(ServerFields, EngineFields, TokenFields, RequestFields):
    """Every figure of one block, flat; what each means stands with its name in fields.py.

    batch_sizes     {batch size: executions}
    item_compute_s  {batch size: seconds of compute a request costs in a batch of that size}
    notes           {field: why it is None}
    problems        what makes the figures doubtful, the worst first
    """

    batch_sizes: dict[int, int] = field(default_factory=dict)
    item_compute_s: dict[int, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON knows; `from_dict` gives the same summary back."""
        return dataclasses.asdict(self) | {
            "batch_sizes": {str(size): count for size, count in self.batch_sizes.items()},
            "item_compute_s": {str(size): seconds for size, seconds in self.item_compute_s.items()},
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Summary:
        """A summary that an older version kept lacks the newer fields; they are None, as not measured."""
        lacking: dict[str, Any] = dict.fromkeys(cls.__dataclass_fields__)
        return cls(
            **lacking
            | dict(data)
            | {
                "batch_sizes": {int(size): count for size, count in data["batch_sizes"].items()},
                "item_compute_s": {int(size): seconds for size, seconds in data["item_compute_s"].items()},
                "problems": tuple(Problem(**problem) for problem in data["problems"]),
            }
        )


def summarize(
    requests: Requests,
    *,
    window: Window,
    planned: int | None,
    slo: Slo | None,
    server: ServerDelta | None = None,
    telemetry: pa.Table | None = None,
    model: str | None = None,
    closed_loop: bool = False,
    now_ns: int | None = None,
) -> Summary:
    """The summary of one block.

    `planned`: arrivals in the block's whole schedule; None in a closed loop or when not known. `window.end_ns` must be
    when the load really ended: a window that outlasts the load lowers every rate. `now_ns` makes it a live summary:
    the window is cut there and only requests that ended by then count. `model` picks telemetry of "model:<name>".
    """
    live = now_ns is not None
    if now_ns is not None:
        window = Window(window.start_ns, window.measured_from_ns, min(window.end_ns, now_ns))
        requests = _ended_by(requests, now_ns)
    figures = Figures()
    failures = outcomes(figures, requests, window, planned=planned, live=live)
    load_counts = load(figures, requests, window, slo=slo, live=live)
    latency(figures, requests, window)
    uncounted = token_figures(figures, requests, window, slo=slo, live=live)
    little(figures, requests, window)
    server_figures(figures, server)
    resources(figures, telemetry, model, window)
    steady = steadiness(requests, window) if window.seconds > 0 else None
    figures.set("steady", None if steady is None else steady.steady, "fewer than 30 successes in the window")
    summary = Summary(**figures.values, notes=figures.notes)
    found = problems(
        summary,
        Facts(
            live=live,
            recorded=len(requests),
            due=load_counts.due,
            sent=load_counts.sent,
            failures=failures,
            uncounted=uncounted,
            waited_in_vain=int(((requests.sent_ns < 0) & (requests.outcome == TIMEOUT)).sum()),
            queue_not_full=queue_not_full(requests),
            steadiness=steady,
            expected_success=None if server is None or live else _countable(requests, server),
            resets=0 if server is None else server.resets,
            closed_loop=closed_loop,
            p=DEFAULT_PERCENTILE if slo is None else slo.percentile,
        ),
    )
    return dataclasses.replace(summary, problems=found)


def _ended_by(requests: Requests, now_ns: int) -> Requests:
    ended = requests.done_ns <= now_ns
    if ended.all():
        return requests
    return Requests(
        due_ns=requests.due_ns[ended],
        sent_ns=requests.sent_ns[ended],
        done_ns=requests.done_ns[ended],
        outcome=requests.outcome[ended],
        detail=None if requests.detail is None else requests.detail.filter(pa.array(ended)),
        streams=None if requests.streams is None else _of(requests.streams, np.flatnonzero(ended)),
    )


def _of(streams: Streams, rows: Int64s) -> Streams:
    lengths = np.diff(streams.first)
    kept = np.isin(np.repeat(np.arange(len(lengths)), lengths), rows)
    return Streams(
        prompt_tokens=streams.prompt_tokens[rows],
        output_tokens=streams.output_tokens[rows],
        reasoning_chunks=streams.reasoning_chunks[rows],
        first=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[rows])]),
        t_ns=streams.t_ns[kept],
        tokens=streams.tokens[kept],
    )


def _countable(requests: Requests, server: ServerDelta) -> tuple[int, int]:
    """(fewest, most) successes that the server can have counted between its two scrapes, from the client's records.

    A request sent and answered between them is counted for certain; one that was under way at either scrape may be,
    and so may one that the client gave up on. The scrapes' own stamps may be off by as much as a scrape takes."""
    sent, done, succeeded = requests.sent_ns, requests.done_ns, requests.outcome == OK
    surely = succeeded & (sent >= server.from_ns + SCRAPE_NS) & (done <= server.to_ns - SCRAPE_NS)
    served = ~succeeded & (requests.outcome != REFUSED)  # given up by the client, yet perhaps served
    perhaps = (sent >= 0) & (sent <= server.to_ns + SCRAPE_NS) & (served | (done >= server.from_ns - SCRAPE_NS))
    return int(surely.sum()), int((perhaps & (requests.outcome != REFUSED)).sum())
