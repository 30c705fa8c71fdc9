"""Numbers and levels as people read them: "1,900 req/s", "5.1 ms", "2.6×", "batching on, 0.5 ms delay".

One place for the words, so that a card, a chart's alt text, a table and a verdict never show one figure in two ways.
None is "n/a": the reason stands in the summary's notes. Knows nothing of charts, pages or files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lab.measure.levels import same
from lab.measure.start_words import start_label
from lab.spec import Slo

NOT_MEASURED = "n/a"

HOST_MEMORY, GPU_MEMORY = "host memory (PSS)", "GPU memory (NVML)"
"""Which memory a figure is of: that of processes by their share of each page, or that of a device as its driver says.
"""

METRICS = {
    "goodput_rps": "goodput",
    "throughput_rps": "throughput",
    "offered_rps": "offered load",
    "slo_attainment_fraction": "share served in time",
    "error_fraction": "share that failed",
    "latency_mean_s": "mean latency",
    "latency_max_s": "largest latency",
    "latency_p999_s": "p99.9",
    "cold_start_s": "cold start",
    "memory_peak_bytes": f"peak {HOST_MEMORY}",
    "gpu_memory_peak_bytes": f"peak {GPU_MEMORY}",
    "queue_mean_s": "mean queue time",
    "compute_mean_s": "mean compute time",
    "batch_mean": "mean batch",
    "output_tokens_per_s": "output token rate",
    "decode_tokens_per_s_user": "token rate of one answer",
    "step_mean_s": "mean step",
    "prefill_fraction": "share of time on prompts",
    "engine_busy_fraction": "share of time computing",
    "engine_batch_mean": "answers in a step, mean",
    "engine_running_mean": "mean running",
    "engine_waiting_mean": "mean waiting",
}
ABBREVIATED = {"ttft": "TTFT", "ttfo": "TTFO", "itl": "ITL", "icl": "ICL", "ntpot": "NTPOT"}
TIMED = re.compile(rf"({'|'.join(ABBREVIATED)})_(mean|p[0-9]{{2,}})_s")


def format_seconds(seconds: float | None) -> str:
    """ "85 µs", "0.85 ms", "5.1 ms", "123 ms", "1.90 s", "12.3 s"."""
    if seconds is None:
        return NOT_MEASURED
    size = abs(seconds)
    if size >= 0.9995:
        return _signed(
            seconds, f"{size:.2f} s" if size < 9.995 else f"{size:.1f} s" if size < 99.95 else f"{size:,.0f} s"
        )
    ms = size * 1e3
    if size == 0:
        return "0 ms"
    if ms >= 0.9995:
        return _signed(seconds, f"{ms:.1f} ms" if ms < 99.95 else f"{ms:.0f} ms")
    return _signed(
        seconds, f"{ms:.2f} ms" if ms >= 0.0995 else f"{ms * 1e3:.0f} µs" if ms >= 0.00095 else f"{ms * 1e6:.0f} ns"
    )


def format_setting_s(seconds: float) -> str:
    """A duration that somebody chose, without the decimals of a measurement: "20 ms", "0.5 ms", "1.5 s", "4 h"."""
    if seconds >= 3600 and seconds % 360 == 0:
        return f"{seconds / 3600:g} h"
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


def format_range(low: float, high: float, write: Callable[[float], str]) -> str:
    """ "4.9 to 5.3 ms", "2.4 to 2.8×"; "43.5 ms to 177 s" where the units differ."""
    first, last = write(low), write(high)
    for unit in (f" {last.rpartition(' ')[2]}", "×"):
        if first.endswith(unit) and last.endswith(unit):
            return f"{first.removesuffix(unit)} to {last}"
    return f"{first} to {last}"


def format_rate(per_second: float | None) -> str:
    """ "1,900 req/s", "45.2 req/s", "0.50 req/s"."""
    return NOT_MEASURED if per_second is None else f"{_number(per_second)} req/s"


def format_token_rate(per_second: float | None) -> str:
    """ "187 tok/s"."""
    return NOT_MEASURED if per_second is None else f"{_number(per_second)} tok/s"


def format_bytes(size_bytes: float | None) -> str:
    """ "512 B", "40 KiB", "195 MiB", "12.3 MiB", "1.5 GiB"."""
    if size_bytes is None:
        return NOT_MEASURED
    size = abs(size_bytes)
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        value = size / 1024**power
        if value >= 1 or (power < 3 and value >= 0.9995):
            return _signed(size_bytes, f"{value:.1f} {unit}" if value < 99.95 else f"{value:,.0f} {unit}")
    return _signed(size_bytes, f"{size:.0f} B")


def format_ratio(ratio: float | None) -> str:
    """ "0.0097×", "1.03×", "2.6×", "12×": two decimals where they decide, none where they don't matter."""
    if ratio is None:
        return NOT_MEASURED
    if 0 < ratio < 0.0995:
        return f"{ratio:.2g}×"
    return f"{ratio:.2f}×" if ratio < 1.995 else f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:,.0f}×"


def format_fraction(fraction: float | None) -> str:
    """ "4.76 %", "80 %", "99.2 %"; neither "0 %" nor "100 %" unless it is just that."""
    if fraction is None:
        return NOT_MEASURED
    percent = abs(fraction) * 100
    if 0 < percent < 0.01:
        return "under 0.01 %"
    if 99.99 < percent < 100:
        return "over 99.99 %"
    decimals = 2 if percent < 9.995 or 99 < percent < 100 else 1 if percent < 99.95 else 0
    text = f"{percent:,.{decimals}f}"
    return _signed(fraction, f"{text.rstrip('0').rstrip('.') if '.' in text else text} %")


def format_count(count: float | None) -> str:
    """ "1,050"."""
    return NOT_MEASURED if count is None else f"{count:,.0f}"


def format_metric(name: str, value: float | None) -> str:
    """A summary's field by the unit at the end of its name."""
    for ending, write in _BY_UNIT.items():
        if name.endswith(ending):
            return write(value)
    return NOT_MEASURED if value is None else format_count(value) if isinstance(value, int) else _number(value)


def metric_label(name: str) -> str:
    """ "p99", "goodput", "mean ITL", "TTFT p95": a summary's field in words, without its unit."""
    if name in METRICS:
        return METRICS[name]
    if match := TIMED.fullmatch(name):
        short, of = ABBREVIATED[match[1]], match[2]
        return f"mean {short}" if of == "mean" else f"{short} {of}"
    words = name
    for unit in _BY_UNIT:
        words = words.removesuffix(unit)
    words = words.removeprefix("latency_")
    return words.replace("_", " ")


def level_label(path: str, level: Any, among: Iterable[Any] = ()) -> str:
    """One level of the factor at `path`, a plain value: "batching off", "80 % of saturation", "150 req/s",
    "2 instances". Levels of `among` that would read the same are told apart by naming all their fields."""
    label = _level(path, level)
    twins = [other for other in among if not same(other, level) and _level(path, other) == label]
    return f"{label} ({_fields(level)})" if twins and isinstance(level, dict) else label


def objective_label(slo: Slo) -> str:
    """The limits of an objective: "20 ms", "500 ms to the first token and 60 ms between tokens"."""
    whole = "" if slo.ttft_s is None and slo.itl_s is None else " in all"
    limits = ((slo.latency_s, whole), (slo.ttft_s, " to the first token"), (slo.itl_s, " between tokens"))
    return join([f"{format_setting_s(limit)}{of}" for limit, of in limits if limit is not None])


def join(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def plural(count: int, noun: str) -> str:
    """ "1 request", "1,050 requests"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_BY_UNIT = {
    "_rps": format_rate,
    "_per_s": format_token_rate,
    "_per_s_user": format_token_rate,
    "_bytes": format_bytes,
    "_fraction": format_fraction,
    "_ratio": format_ratio,
    "_s": format_seconds,
}


SAID: dict[str, dict[Any, str]] = {
    "kv_cache": {True: "KV cache on", False: "KV cache off"},
    "scheduler": {"one": "one at a time", "static": "static batching", "continuous": "continuous batching"},
    "stream": {True: "streaming on", False: "streaming off"},
    "weights": {None: "SmolLM2-135M-Instruct"},
    "max_tokens_in_cache": {None: "no limit on tokens in the cache"},
    "threads": {None: "threads as the engine chooses"},
    "kv_cache_precision": {
        None: "KV cache as precise as the rest",
        "bf16": "KV cache in bf16",
        "int8": "KV cache in int8",
    },
    "precision": {"int8_weight": "int8 weights"},
    "challenger": {
        "good": "a v2 that is as good",
        "slower": "a slower v2",
        "errs": "a v2 that errs",
        "worse": "a v2 of lower quality",
    },
    "quantizer": {"rtn": "RTN", "gptq": "GPTQ", "awq": "AWQ", "smoothquant": "SmoothQuant"},
}
"""Levels that have words of their own, by the last part of their path."""
SCALED_BY = {"concurrency": "concurrency", "queue": "queue length", "rps": "arrival rate"}
LENGTHS = {"prompt_tokens": "prompts", "output_tokens": "answers", "stream_interval": "chunks"}


def precision_label(precision: str, quantizer: str | None = None) -> str:
    """ "bf16", "int8", "int8 weights" (these alone in 8 bits), "int4 GPTQ": a quantizer where there is a choice."""
    words = SAID["precision"].get(precision, precision)
    tells = quantizer is not None and (precision == "int4" or quantizer != "rtn")
    return f"{words} {SAID['quantizer'].get(quantizer, quantizer)}" if tells else words


def engine_label(fields: Mapping[str, Any]) -> str:
    """Who is asked, by fields of a workload: "the lab's engine", "SmolLM2 at 127.0.0.1:8100"."""
    if fields["url"] is None:
        return "the lab's engine"
    place = str(fields["url"]).rpartition("://")[2].partition("/")[0]
    return f"{fields['served_model']} at {place}" if fields.get("served_model") else place


def _together(path: str, fields: dict[str, Any]) -> str:
    """Several fields that one level sets: "int4 GPTQ", "int8, KV cache in int8"."""
    if "url" in fields:
        return engine_label(fields)
    rest = dict(fields)
    if (pattern := rest.get("pattern")) is not None:  # which says what the others are
        fraction = (rest.get("arrival") or {}).get("saturation_fraction")
        return pattern if fraction is None else f"{pattern}, {_level('saturation_fraction', fraction)}"
    if rest.get("scaling") is not None:
        return f"scaled {_level('scaling', rest['scaling'])}"
    adapters = _adapters(rest.pop("adapters", None), bool(rest.pop("merge_adapters", False)))
    precision = rest.pop("precision", None)
    words = [] if precision is None else [precision_label(precision, rest.pop("quantizer", None))]
    return ", ".join([*adapters, *words, *(_level(f"{path}.{name}", value) for name, value in rest.items())])


def _adapters(names: Sequence[str] | None, merged: bool) -> list[str]:
    """["10 adapters"], ["10 merged copies"], ["the base alone"]; [] where a level says nothing of them."""
    if names is None:
        return []
    if not names:
        return ["the base alone"]
    return [
        f"{len(names)} merged {'copy' if len(names) == 1 else 'copies'}" if merged else plural(len(names), "adapter")
    ]


def _level(path: str, level: Any) -> str:
    name = path.rsplit(".", 1)[-1]
    if name in ("model", "workload") and isinstance(level, dict):
        return _together(path, level)
    if name == "start" and isinstance(level, dict):
        return start_label(level)
    if name == "batching":
        if level is None:
            return "batching off"
        delay_us = level.get("max_queue_delay_us", 0)
        return f"batching on, {format_setting_s(delay_us / 1e6) if delay_us else 'no'} delay"
    if name == "scaling":
        return "no scaling" if level is None else f"by {SCALED_BY[level.get('metric', 'concurrency')]}"
    if name in SAID and isinstance(level, str | int | None) and level in SAID[name]:
        return SAID[name][level]
    if name in LENGTHS:
        first, last = level if isinstance(level, list | tuple) else (level, level)
        return f"{LENGTHS[name]} of {first:,}{f' to {last:,}' if last != first else ''} token{'' if last == 1 else 's'}"
    if isinstance(level, dict):
        kind = level.get("kind")
        rest = _fields({k: v for k, v in level.items() if k != "kind"})
        return f"{kind} {rest}" if kind else f"{name} {rest}"
    if isinstance(level, bool) or level is None:
        return f"{name} {'off' if not level else 'on'}"
    if name == "saturation_fraction":
        return f"{format_fraction(level)} of saturation"
    if name == "rate_rps":
        return format_rate(level)
    if name == "concurrency":
        return f"{level} in flight"
    if name in ("instances", "workers", "threads", "models"):
        return plural(int(level), name.removesuffix("s"))
    if name.endswith("_us"):
        return f"{name.removesuffix('_us').replace('_', ' ')} {format_setting_s(level / 1e6)}"
    if name in ("precision", "device", "protocol", "family", "name"):
        return str(level)
    if isinstance(level, int | float):
        return f"{metric_label(name)} {format_metric(name, level) if name.endswith(tuple(_BY_UNIT)) else f'{level:g}'}"
    return f"{metric_label(name)} {level if isinstance(level, str) else json.dumps(level)}"


def _fields(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, int | float | str) else json.dumps(value)}"
        for name, value in values.items()
        if value not in (None, (), [])
    )


def _number(value: float) -> str:
    size = abs(value)
    return _signed(value, f"{size:.2f}" if 0 < size < 9.995 else f"{size:.1f}" if 0 < size < 99.95 else f"{size:,.0f}")


def _signed(value: float, text: str) -> str:
    return f"−{text}" if value < 0 else text
