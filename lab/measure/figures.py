"""The arithmetic of a summary, a group of fields at a time. Definitions: the docstring of summary.Summary.

Each function adds its fields to a `Figures`: a value, or None with the reason. Times are int64 nanoseconds until the
last step, so a mean over a million requests loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.fields import EngineFields
from lab.measure.objective import good as in_time
from lab.measure.pace import Mask
from lab.measure.percentile import Numbers, interval, needed, ordered_at, percentile_of_sorted
from lab.measure.records import OK, OUTCOMES, REFUSED, Int64s, Requests, Window
from lab.measure.server import ServerDelta
from lab.measure.words import format_count, format_seconds
from lab.spec import Slo

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
WITH_INTERVAL = ("p50", "p95", "p99")
SEGMENTS = 20
"""Stretches of the window whose tails are compared to see how much neighbouring requests share their fate."""
DETAIL_LENGTH = 160

NO_WINDOW = "the measured window has not begun"
NO_OBJECTIVE = "no objective is given"
NO_SUCCESS = "no request due in the window succeeded"
UNREAD = "Triton's counters were not read twice in the window"


@dataclass
class Figures:
    values: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: Any, reason: str = "not measured") -> None:
        """A field and, when it is None, why."""
        self.values[name] = value
        if value is None:
            self.notes[name] = reason


@dataclass(frozen=True)
class Failures:
    """Failures that ended in the window, by kind, and the text of the most frequent one."""

    by_kind: dict[str, int]
    detail: str | None


@dataclass(frozen=True)
class Load:
    """Requests due in the window, and how many were sent in it."""

    due: int
    sent: int


def outcomes(figures: Figures, requests: Requests, window: Window, *, planned: int | None, live: bool) -> Failures:
    """Counts of the whole block, and the share of failures among what was due in the window: a request that
    timed out after the window was asked for in it, and a hang must not look like a smaller load. What a stopped run
    gave up is in neither."""
    was_sent = requests.sent_ns >= 0
    sent = int(was_sent.sum())
    counts = np.bincount(requests.outcome[was_sent], minlength=len(OUTCOMES))
    figures.set("window_s", window.seconds if window.seconds > 0 else None, NO_WINDOW)
    figures.set("planned", planned, "not known in a closed loop or while the run goes on")
    figures.set("sent", sent)
    for name, count in zip(OUTCOMES, counts.tolist(), strict=True):
        figures.set(name, count)
    never_sent = len(requests) - sent
    dropped = None if live else never_sent if planned is None else max(planned - sent, never_sent)
    figures.set("dropped", dropped, "known once the run is over")
    due = inside(requests.due_ns, window) & ~requests.given_up
    failed = due & (requests.outcome != OK)
    total, bad = int(due.sum()), int(failed.sum())
    figures.set("error_fraction", bad / total if total else None, "no request that was due in the window has ended")
    kinds = np.bincount(requests.outcome[failed], minlength=len(OUTCOMES)).tolist()
    by_kind = {name: count for name, count in zip(OUTCOMES, kinds, strict=True) if name != "ok"}
    explained = failed if bad else requests.outcome != OK
    return Failures(by_kind, _most_frequent(requests.detail, explained))


def load(figures: Figures, requests: Requests, window: Window, *, slo: Slo | None, live: bool) -> Load:
    """What was asked for, what was sent, what was served and what was served in time."""
    due, ok = inside(requests.due_ns, window), requests.outcome == OK
    asked, seconds = window, window.seconds
    if live and due.any():
        asked = Window(window.start_ns, window.measured_from_ns, int(requests.due_ns[due].max()) + 1)
    sent = inside(requests.sent_ns, asked) & (requests.sent_ns >= 0)
    good = in_time(requests, slo) if slo else None
    ended_ok = inside(requests.done_ns, window) & ok

    def rate(count: int, over_s: float) -> float | None:
        return count / over_s if over_s > 0 else None

    figures.set("offered_rps", rate(int(due.sum()), asked.seconds), NO_WINDOW)
    figures.set("sent_rps", rate(int(sent.sum()), asked.seconds), NO_WINDOW)
    figures.set("throughput_rps", rate(int(ended_ok.sum()), seconds), NO_WINDOW)
    good_rps = None if good is None else rate(int((ended_ok & good).sum()), seconds)
    figures.set("goodput_rps", good_rps, NO_OBJECTIVE if good is None else NO_WINDOW)
    attained = None if good is None or not due.any() else int((due & good).sum()) / int(due.sum())
    nothing_due = "no request was due in the window"
    figures.set("slo_attainment_fraction", attained, NO_OBJECTIVE if good is None else nothing_due)
    return Load(int(due.sum()), int(sent.sum()))


def latency(figures: Figures, requests: Requests, window: Window) -> None:
    """Latency from the scheduled arrival with intervals, service time from the send, and the client's lag between."""
    due = inside(requests.due_ns, window)
    good = due & (requests.outcome == OK)
    due_ns, took_ns = requests.due_ns[good], requests.done_ns[good] - requests.due_ns[good]
    ordered = np.sort(took_ns)
    figures.set("latency_n", len(ordered))
    distribution(figures, "latency", ordered, PERCENTILES, NO_SUCCESS)
    intervals(figures, "latency", due_ns, took_ns, ordered, window)
    was_sent = requests.sent_ns >= 0
    sent_ok, sent_due = good & was_sent, due & was_sent
    quantiles = {name: PERCENTILES[name] for name in ("p50", "p95", "p99")}
    service = ordered_at(requests.done_ns[sent_ok] - requests.sent_ns[sent_ok], quantiles.values())
    distribution(figures, "service", service, quantiles, NO_SUCCESS)
    # The lag's p99 judges the client, whatever the count: with few requests it is close to the largest.
    del quantiles["p95"]
    lag = ordered_at(requests.sent_ns[sent_due] - requests.due_ns[sent_due], quantiles.values())
    distribution(figures, "send_lag", lag, quantiles, "no request due in the window was sent", withhold=False)


def little(figures: Figures, requests: Requests, window: Window) -> None:
    """Requests in flight, exactly: the overlap of each [sent, done) with the window, summed, over its length."""
    if window.seconds <= 0:
        figures.set("in_flight_mean", None, NO_WINDOW)
        figures.set("little_ratio", None, NO_WINDOW)
        return
    was_sent, ok = requests.sent_ns >= 0, requests.outcome == OK
    figures.set("in_flight_mean", _overlap_s(requests.sent_ns, requests.done_ns, was_sent, window) / window.seconds)
    in_system = _overlap_s(requests.due_ns, requests.done_ns, ok, window) / window.seconds
    throughput, mean_s = figures.values["throughput_rps"], figures.values["latency_mean_s"]
    expected = (throughput or 0.0) * (mean_s or 0.0)
    figures.set("little_ratio", in_system / expected if expected > 0 else None, NO_SUCCESS)


def server_figures(figures: Figures, server: ServerDelta | None) -> None:
    """Triton's side of the same window, and that of the engine inside it."""
    names = {"success_count": "server_success_delta"}
    for source in (
        "queue_mean_s",
        "compute_mean_s",
        "compute_infer_mean_s",
        "server_mean_s",
        "batch_mean",
        "executions",
        "success_count",
        "cache_hit_fraction",
    ):
        if server is None:
            figures.set(names.get(source, source), None, UNREAD)
            continue
        reasons = server.reasons
        why = reasons.get(source) or reasons.get("compute_input_mean_s") or "Triton did not say"
        figures.set(names.get(source, source), getattr(server, source), why)
    for name in EngineFields.__dataclass_fields__:
        why = UNREAD if server is None else server.reasons.get(name, "not measured")
        figures.set(name, None if server is None else getattr(server.engine, name), why)
    figures.set("batch_sizes", {} if server is None else server.batch_sizes)
    figures.set("item_compute_s", {} if server is None else server.item_compute_s)


def distribution(
    figures: Figures,
    prefix: str,
    ordered: Numbers,
    quantiles: Mapping[str, float],
    empty: str,
    *,
    withhold: bool = True,
    largest: bool = True,
    of: str = "successes",
) -> None:
    """Mean, percentiles and, if asked for, maximum of nanoseconds that are `ordered_at` these quantiles, as seconds.
    `of` names what is counted where there are too few."""
    n = len(ordered)
    figures.set(f"{prefix}_mean_s", float(ordered.mean()) / 1e9 if n else None, empty)
    if largest:
        figures.set(f"{prefix}_max_s", float(ordered[-1]) / 1e9 if n else None, empty)
    for name, p in quantiles.items():
        field_name, need = f"{prefix}_{name}_s", needed(p)
        if n == 0:
            figures.set(field_name, None, empty)
        elif withhold and n < need:
            most = format_seconds(float(ordered[-1]) / 1e9)
            figures.set(field_name, None, f"needs {format_count(need)} {of}, has {n}; largest seen {most}")
        else:
            found = percentile_of_sorted(ordered, p)
            figures.set(field_name, None if found is None else found / 1e9)


def intervals(figures: Figures, prefix: str, due_ns: Int64s, took_ns: Int64s, ordered: Numbers, window: Window) -> None:
    """The bounds of the percentiles WITH_INTERVAL that were set, as seconds; `ordered` is `took_ns` in order."""
    for name in WITH_INTERVAL:
        shown = figures.values[f"{prefix}_{name}_s"]
        low, high, why = None, None, figures.notes.get(f"{prefix}_{name}_s", "")
        if shown is not None:
            worth = _independent(due_ns, took_ns, window, shown * 1e9)
            low, high = interval(ordered, PERCENTILES[name], effective_n=worth)
            why = "the slow requests came in too few clumps to bound it"
        figures.set(f"{prefix}_{name}_low_s", None if low is None else low / 1e9, why)
        figures.set(f"{prefix}_{name}_high_s", None if high is None else high / 1e9, why)


def _independent(due_ns: Int64s, took_ns: Int64s, window: Window, threshold_ns: float) -> float:
    """How many independent samples the latencies are worth for the percentile that lies at `threshold_ns`.

    Requests behind the same stall are slow together. The share of slow ones in each of 20 stretches of the window
    varies more than a coin's would; by that factor (the design effect of cluster sampling, at least 1) there are
    fewer samples than requests."""
    n = len(took_ns)
    if n < SEGMENTS:
        return float(n)
    part = ((due_ns - window.measured_from_ns) * (SEGMENTS / (window.end_ns - window.measured_from_ns))).astype(
        np.int64
    )
    count = np.bincount(part, minlength=SEGMENTS)[:SEGMENTS].astype(np.float64)
    slow = np.bincount(part, weights=took_ns > threshold_ns, minlength=SEGMENTS)[:SEGMENTS]
    share = float(slow.sum()) / n
    by_chance = share * (1 - share) * n
    if by_chance == 0:
        return float(n)
    observed = float(((slow - share * count) ** 2).sum()) * SEGMENTS / (SEGMENTS - 1)
    return float(n / max(1.0, observed / by_chance))


def queue_not_full(requests: Requests) -> int:
    """Requests that were sent and refused for another reason than a full queue: nobody listened, no model was there.
    Those of which nothing is said are not among them."""
    if requests.detail is None:
        return 0
    said = requests.detail.filter(pa.array((requests.outcome == REFUSED) & (requests.sent_ns >= 0))).drop_null()
    return len(said) - (pc.sum(pc.match_substring(said, "queue", ignore_case=True)).as_py() or 0)


def _most_frequent(detail: pa.ChunkedArray | None, rows: Mask) -> str | None:
    if detail is None or not rows.any():
        return None
    counted = pc.value_counts(detail.filter(pa.array(rows)).drop_null())
    if not len(counted):
        return None
    top = max(counted.to_pylist(), key=lambda item: item["counts"])
    text = " ".join(str(top["values"]).split())
    return text if len(text) <= DETAIL_LENGTH else f"{text[: DETAIL_LENGTH - 1]}…"


def _overlap_s(start_ns: Int64s, end_ns: Int64s, rows: Mask, window: Window) -> float:
    begin = np.maximum(start_ns[rows], window.measured_from_ns)
    end = np.minimum(end_ns[rows], window.end_ns)
    return float(np.maximum(end - begin, 0).sum()) / 1e9


def inside(t_ns: Int64s, window: Window) -> Mask:
    """Which of the times lie in the measured window."""
    return (t_ns >= window.measured_from_ns) & (t_ns < window.end_ns)
