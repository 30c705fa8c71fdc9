"""What a language model's engine says of itself between two times, from its gauges and counters.

A reload starts the engine anew, and so its counters; server.py takes that into account before they come here. Nothing
here is per request: a step writes a token for each request that runs, so its seconds belong to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lab.measure.fields import EngineFields

PREFIX = "engine_"
GAUGES = {
    "engine_running_mean": "engine_running",
    "engine_waiting_mean": "engine_waiting",
    "cache_tokens_used_peak": "engine_cache_tokens_used",
    "cache_tokens_total": "engine_cache_tokens_total",
    "engine_weight_bytes": "engine_weight_bytes",
    "engine_scale_bytes": "engine_scale_bytes",
    "engine_cache_bytes": "engine_cache_bytes",
    "engine_adapters": "engine_adapters",
    "engine_adapter_bytes": "engine_adapter_bytes",
}
"""Fields that are read off a gauge."""
COUNTERS = {
    "preemptions": "engine_preemptions",
    "engine_batch_mean": "engine_output_tokens",
    "step_mean_s": "engine_steps",
    "prefill_fraction": "engine_prefill_seconds",
    "prefill_step_mean_s": "engine_prefill_steps",
    "prefill_tokens_mean": "engine_prefill_steps",
    "engine_busy_fraction": "engine_decode_seconds",
}
"""Fields that come from the growth of counters, of which this is one."""
NO_ENGINE = "the model reports no engine counters"
IDLE = "the engine computed nothing in the window"


def engine_figures(
    readings: Sequence[Mapping[str, float]],
    grown: Mapping[str, float],
    missing: Mapping[str, str],
    seconds: float | None = None,
) -> tuple[EngineFields, dict[str, str]]:
    """(figures, {field: why it is None}). `readings`: each scrape of the window; `grown`: how much each counter grew
    over `seconds`; `missing`: why a gauge or counter gave no value."""

    def gauge(field: str, pick: Callable[[list[float]], float]) -> float | None:
        found = [reading[GAUGES[field]] for reading in readings if GAUGES[field] in reading]
        return pick(found) if found else None

    def whole(value: float | None) -> int | None:
        return None if value is None else round(value)

    decode_s, prefill_s = grown.get("engine_decode_seconds"), grown.get("engine_prefill_seconds")
    written = grown.get("engine_output_tokens")
    reads, read = grown.get("engine_prefill_steps"), grown.get("engine_prefill_tokens")
    steps, computed_s = grown.get("engine_steps"), (decode_s or 0.0) + (prefill_s or 0.0)
    figures = EngineFields(
        engine_running_mean=gauge("engine_running_mean", _mean),
        engine_waiting_mean=gauge("engine_waiting_mean", _mean),
        cache_tokens_used_peak=whole(gauge("cache_tokens_used_peak", max)),
        cache_tokens_total=whole(gauge("cache_tokens_total", _last)),
        engine_weight_bytes=gauge("engine_weight_bytes", _last),
        engine_scale_bytes=gauge("engine_scale_bytes", _last),
        engine_cache_bytes=gauge("engine_cache_bytes", _last),
        engine_adapters=whole(gauge("engine_adapters", _last)),
        engine_adapter_bytes=gauge("engine_adapter_bytes", _last),
        preemptions=whole(grown.get("engine_preemptions")),
        engine_batch_mean=written / steps if written is not None and steps else None,
        step_mean_s=decode_s / steps if decode_s is not None and steps else None,
        prefill_fraction=prefill_s / computed_s
        if prefill_s is not None and decode_s is not None and computed_s
        else None,
        prefill_step_mean_s=prefill_s / reads if prefill_s is not None and reads else None,
        prefill_tokens_mean=read / reads if read is not None and reads else None,
        engine_busy_fraction=min(1.0, computed_s / seconds) if decode_s is not None and seconds else None,
    )
    sources = GAUGES | COUNTERS
    nothing = {field: source for field, source in sources.items() if getattr(figures, field) is None}
    return figures, {
        field: IDLE if source in grown else missing.get(source, NO_ENGINE) for field, source in nothing.items()
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _last(values: list[float]) -> float:
    return values[-1]
