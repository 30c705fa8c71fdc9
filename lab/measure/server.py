"""What Triton's own counters say of one model between two times.

Triton counts cumulatively, per request and not per second: 8 requests that waited 1 ms each in one batch add 8 ms, so
sums are divided by counts and never shown as elapsed time. A reload starts the counters anew: when any counter of the
model falls between two scrapes, what it shows afterwards was counted since, and what was counted between the last
scrape and the reload is lost (`resets` says that this happened). The statistics endpoint misses queue-full refusals
altogether; those are counted by the client.

Knows nothing of how the counters were fetched. Names of counters: lab/serve/metrics.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.engine import GAUGES, PREFIX, engine_figures
from lab.measure.fields import EngineFields

BATCH_COUNT, BATCH_INFER_NS, BATCH_INFER_COUNT = "batch_count:", "batch_infer_ns:", "batch_infer_count:"
OUTLIVES_RELOAD = "prometheus:"  # these counters belong to the process, not to the loaded model


@dataclass(frozen=True)
class ServerDelta:
    """Growth of one model's counters from `from_ns` to `to_ns`, the scrapes that were used. None = not measured;
    `reasons` says why, by field.

    success_count        requests answered, those from the response cache included
    *_mean_s             seconds a request: waiting in Triton's queue; in the model's input, infer and output phases
    server_mean_s        seconds a request, from its arrival in Triton to its answer
    batch_mean           requests an execution: Δ inference_count / Δ execution_count
    batch_sizes          {batch size: executions}
    item_compute_s       {batch size: infer seconds a request costs in a batch of that size}
    engine               what a language model's engine says of itself
    """

    from_ns: int
    to_ns: int
    resets: int = 0
    success_count: int | None = None
    executions: int | None = None
    queue_mean_s: float | None = None
    compute_input_mean_s: float | None = None
    compute_infer_mean_s: float | None = None
    compute_output_mean_s: float | None = None
    server_mean_s: float | None = None
    batch_mean: float | None = None
    batch_sizes: dict[int, int] = field(default_factory=dict)
    item_compute_s: dict[int, float] = field(default_factory=dict)
    cache_hit_fraction: float | None = None
    engine: EngineFields = field(default_factory=EngineFields)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def compute_mean_s(self) -> float | None:
        """Input, infer and output together."""
        parts = (self.compute_input_mean_s, self.compute_infer_mean_s, self.compute_output_mean_s)
        return None if None in parts else sum(part for part in parts if part is not None)


def server_delta(table: pa.Table, model: str, from_ns: int, to_ns: int) -> ServerDelta | None:
    """The growth between two times, from a table with the SERVER schema.

    Uses the last scrape at or before `from_ns` and the first at or after `to_ns`, or the nearest there is inside.
    None when the model was scraped less than twice."""
    scrapes, reasons = _scrapes(table, model)
    # Apart: Triton's own counters and the engine's are read from two places, some milliseconds after each other. And a
    # reload that both tell of is one reset, a gauge that falls none at all.
    used = _around({t: own for t, scrape in scrapes.items() if (own := _named(scrape, engine=False))}, from_ns, to_ns)
    told = _around({t: own for t, scrape in scrapes.items() if (own := _named(scrape, engine=True))}, from_ns, to_ns)
    if max(len(used), len(told)) < 2:
        return None
    (grown, resets), (written, _) = _growth(list(used.values())), _growth(list(told.values()))
    inside = [scrape for t, scrape in sorted(scrapes.items()) if from_ns <= t <= to_ns]
    seconds = (max(told) - min(told)) / 1e9 if told else None
    engine, unread = engine_figures(inside or [scrapes[t] for t in (*used, *told)], written, reasons, seconds)
    found = _interpret(grown, reasons, from_ns=min(used or told), to_ns=max(used or told), resets=resets)
    return replace(found, engine=engine, reasons=found.reasons | unread)


def _around(scrapes: Mapping[int, dict[str, float]], from_ns: int, to_ns: int) -> dict[int, dict[str, float]]:
    """The scrapes from the last one before to the first one after, in order of time."""
    first = max((t for t in scrapes if t <= from_ns), default=min(scrapes, default=0))
    last = min((t for t in scrapes if t >= to_ns), default=max(scrapes, default=0))
    return {t: scrapes[t] for t in sorted(scrapes) if first <= t <= last}


def _scrapes(table: pa.Table, model: str) -> tuple[dict[int, dict[str, float]], dict[str, str]]:
    """({time: {counter: value}}, {counter: why it is missing}) of one model, without the process-wide counters."""
    own = pc.and_(pc.equal(table["model"], model), pc.invert(pc.starts_with(table["field"], pattern=OUTLIVES_RELOAD)))
    rows = table.filter(own)
    scrapes: dict[int, dict[str, float]] = {}
    reasons: dict[str, str] = {}
    columns = (rows[name].to_pylist() for name in ("t_ns", "field", "value", "reason"))
    for t_ns, name, value, reason in zip(*columns, strict=True):
        if value is None or not np.isfinite(value):
            reasons[name] = reason or "not available"
        else:
            scrapes.setdefault(t_ns, {})[name] = value
    return scrapes, reasons


def _named(scrape: Mapping[str, float], *, engine: bool) -> dict[str, float]:
    """The counters of one scrape: those of the model's engine, or Triton's own."""
    return {
        name: value
        for name, value in scrape.items()
        if name not in GAUGES.values() and name.startswith(PREFIX) == engine
    }


def _growth(scrapes: list[dict[str, float]]) -> tuple[dict[str, float], int]:
    """How much each counter grew over the scrapes, and how often they fell back to zero in between. A counter of a
    batch size appears with the first batch of that size, so until then it stood at zero; any other counter is
    measured from its first reading."""
    grown: dict[str, float] = {}
    resets = 0
    shown = dict(scrapes[0]) if scrapes else {}
    for scrape in scrapes[1:]:
        fell = any(value < shown[name] for name, value in scrape.items() if name in shown)
        resets += fell
        for name, value in scrape.items():
            start = 0.0 if fell or name.startswith("batch_") else value
            grown[name] = grown.get(name, 0.0) + value - (start if fell else shown.get(name, start))
        shown = dict(scrape) if fell else {**shown, **scrape}
    return grown, resets


def _interpret(
    grown: Mapping[str, float], missing: Mapping[str, str], *, from_ns: int, to_ns: int, resets: int
) -> ServerDelta:
    reasons: dict[str, str] = {}

    def ratio(field: str, top: str, bottom: str, count: float | None, scale: float = 1.0) -> float | None:
        for counter in (top, bottom):
            if counter not in grown:
                reasons[field] = f"Triton gave no {counter}: {missing.get(counter, 'not available')}"
                return None
        if not count:
            reasons[field] = "Triton answered no request of this model in the window"
            return None
        return grown[top] / count * scale

    def total(field: str, counter: str) -> int | None:
        if counter not in grown:
            reasons[field] = f"Triton gave no {counter}: {missing.get(counter, 'not available')}"
            return None
        return round(grown[counter])

    success = grown.get("success_count")
    # A request answered from the response cache counts as a success but never reaches the model.
    computed = None if success is None else success - grown.get("cache_hit_count", 0.0)
    sizes = sorted(int(name.removeprefix(BATCH_COUNT)) for name in grown if name.startswith(BATCH_COUNT))
    executions = {size: round(grown[f"{BATCH_COUNT}{size}"]) for size in sizes}
    item_compute_s = {
        size: grown[f"{BATCH_INFER_NS}{size}"] / grown[f"{BATCH_INFER_COUNT}{size}"] / size / 1e9
        for size in sizes
        if grown.get(f"{BATCH_INFER_COUNT}{size}") and f"{BATCH_INFER_NS}{size}" in grown
    }
    return ServerDelta(
        from_ns=from_ns,
        to_ns=to_ns,
        resets=resets,
        success_count=total("success_count", "success_count"),
        executions=total("executions", "execution_count"),
        queue_mean_s=ratio("queue_mean_s", "queue_ns", "queue_count", grown.get("queue_count"), 1e-9),
        compute_input_mean_s=ratio("compute_input_mean_s", "compute_input_ns", "success_count", computed, 1e-9),
        compute_infer_mean_s=ratio("compute_infer_mean_s", "compute_infer_ns", "success_count", computed, 1e-9),
        compute_output_mean_s=ratio("compute_output_mean_s", "compute_output_ns", "success_count", computed, 1e-9),
        server_mean_s=ratio("server_mean_s", "success_ns", "success_count", success, 1e-9),
        batch_mean=ratio("batch_mean", "inference_count", "execution_count", grown.get("execution_count")),
        batch_sizes={size: count for size, count in executions.items() if count},
        item_compute_s=item_compute_s,
        cache_hit_fraction=ratio("cache_hit_fraction", "cache_hit_count", "success_count", success),
        reasons=reasons,
    )
