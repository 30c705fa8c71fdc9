"""What Triton says of itself: cumulative counters, one row a counter and scrape, in the SERVER schema.

Two sources, because each lacks something. The statistics endpoint has the batch sizes and the exact durations (ns),
and starts anew when a model is loaded again. Prometheus (µs) has failures by reason, the queue's length and the GPUs,
and goes on over a reload. Sums run over overlapping requests: divide them by their counts, never show them as elapsed
time. Requests refused because the queue is full are in neither (Triton 2.51).

A counter that cannot be had is a row without value and with the reason, never a zero. Interpretation is
lab/measure/server.py's.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import pyarrow as pa
from tritonclient.utils import InferenceServerException

from lab.measure.records import SERVER
from lab.serve import direct
from lab.serve.health import one_line
from lab.serve.triton import CALL_LIMIT_S, Server

COUNTERS = (
    "success_count",
    "success_ns",
    "fail_count",
    "queue_count",
    "queue_ns",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
    "inference_count",
    "execution_count",
    "cache_hit_count",
)
"""Of the statistics endpoint, since the model was loaded. Beside them, for each batch size k that occurred:
batch_count:k (executions), batch_infer_count:k (the same, as the divisor of the next) and batch_infer_ns:k."""

MODEL_FAMILIES = (
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
)
"""Of Prometheus, with the label `model`. Fields are prometheus:<family>, summed over the other labels, and for
failures also prometheus:<family>:<reason>."""

GPU_FAMILIES = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage")
"""Of Prometheus, one row a GPU under the model name gpu:<uuid>; without any, one row without value under "gpu"."""

ENGINE_FAMILIES = (
    "lab_engine_running",
    "lab_engine_waiting",
    "lab_engine_cache_tokens_used",
    "lab_engine_cache_tokens_total",
    "lab_engine_weight_bytes",
    "lab_engine_scale_bytes",
    "lab_engine_cache_bytes",
    "lab_engine_adapters",
    "lab_engine_adapter_bytes",
    "lab_engine_steps",
    "lab_engine_decode_seconds",
    "lab_engine_prefill_seconds",
    "lab_engine_prefill_tokens",
    "lab_engine_prefill_steps",
    "lab_engine_output_tokens",
    "lab_engine_preemptions",
    "lab_engine_cancelled",
)
"""Of Prometheus too, told by a language model's engine (lab/serve/models/engine_metrics.py) up to half a second late.
Fields are engine_running, …, summed over instances; rows only for a model that has an engine. Unlike Triton's own they
begin at 0 with every load, as the statistics endpoint's do: a counter that falls was reloaded."""

NOTE_FAMILY = "lab_engine_note"
"""What an engine says of itself in words, in the label `note`: the reason of field engine_note, which has no value."""

METRICS_LIMIT_S = 2.0


@dataclass(frozen=True)
class Sample:
    """One line of Prometheus text."""

    family: str
    labels: dict[str, str]
    value: float


Row = tuple[int, str, str, float | None, str | None]
"""t_ns, model, field, value, reason."""


def scrape(server: Server, models: Sequence[str]) -> pa.Table:
    """Everything of `models` now. Does not raise when a source fails: that is a reason in the rows."""
    rows = [row for model in models for row in _statistics(server, model)]
    rows += _prometheus(server.metrics_url, models)
    columns = zip(*rows, strict=True) if rows else ([],) * len(SERVER)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SERVER, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SERVER)


def pending(metrics_url: str | None, model: str) -> int | None:
    """Requests of `model` that wait in Triton's queue now; None when Triton does not say."""
    text, _ = _read(metrics_url)
    wanted = ("nv_inference_pending_request_count", model)
    found = [s.value for s in parse_prometheus(text) if (s.family, s.labels.get("model")) == wanted]
    return round(sum(found)) if found else None


def parse_prometheus(text: str) -> list[Sample]:
    """The samples of the text format 0.0.4; lines that are none (comments, JSON, HTML) are left out."""
    samples = []
    for line in text.splitlines():
        name, labels, rest = _split(line)
        if not name.isidentifier() or line.startswith("#"):
            continue
        try:
            samples.append(Sample(name, labels, float(rest.split()[0])))
        except (ValueError, IndexError):
            continue
    return samples


def _split(line: str) -> tuple[str, dict[str, str], str]:
    """name, labels and what follows of `name{a="x",b="y, \\"z\\""} 1.5 1700000000`."""
    name, brace, rest = line.partition("{")
    if not brace:
        name, _, rest = line.partition(" ")
        return name, {}, rest
    labels: dict[str, str] = {}
    while rest and not rest.startswith("}"):
        label, equals, rest = rest.partition('="')
        value = ""
        while rest and not rest.startswith('"'):
            if rest[0] == "\\" and len(rest) > 1:
                value += {"n": "\n"}.get(rest[1], rest[1])
                rest = rest[2:]
            else:
                value += rest[0]
                rest = rest[1:]
        if not equals or not rest:
            return "", {}, ""
        labels[label.lstrip(", ")] = value
        rest = rest[1:].lstrip(", ")
    return name, labels, rest[1:]


def _statistics(server: Server, model: str) -> Iterator[Row]:
    try:
        answer = server.client.get_inference_statistics(model, client_timeout=CALL_LIMIT_S)
        t_ns = time.perf_counter_ns()
        found = answer.model_stats[0]
    except (InferenceServerException, IndexError) as error:
        t_ns = time.perf_counter_ns()
        said = error.message() if isinstance(error, InferenceServerException) else "no statistics of this model"
        yield from ((t_ns, model, name, None, one_line(said or str(error))) for name in COUNTERS)
        return
    values = dict(zip(COUNTERS, _counters(found), strict=True))
    for batch in found.batch_stats:
        size, infer = batch.batch_size, batch.compute_infer
        values |= {f"batch_count:{size}": infer.count, f"batch_infer_count:{size}": infer.count}
        values |= {f"batch_infer_ns:{size}": infer.ns}
    yield from ((t_ns, model, name, float(value), None) for name, value in values.items())


def _counters(found: Any) -> tuple[int, ...]:
    """In the order of COUNTERS, from one ModelStatistics message."""
    stats = found.inference_stats
    return (
        stats.success.count,
        stats.success.ns,
        stats.fail.count,
        stats.queue.count,
        stats.queue.ns,
        stats.compute_input.ns,
        stats.compute_infer.ns,
        stats.compute_output.ns,
        found.inference_count,
        found.execution_count,
        stats.cache_hit.count,
    )


def _prometheus(url: str | None, models: Sequence[str]) -> Iterator[Row]:
    text, why = _read(url)
    t_ns = time.perf_counter_ns()
    samples = parse_prometheus(text)
    for model in models:
        own = [sample for sample in samples if sample.labels.get("model") == model]
        for family in MODEL_FAMILIES:
            found = [sample for sample in own if sample.family == family]
            if not found:
                yield t_ns, model, f"prometheus:{family}", None, why or f"Triton's metrics have no {family} of {model}"
                continue
            yield t_ns, model, f"prometheus:{family}", sum(sample.value for sample in found), None
            for sample in found:
                if reason := sample.labels.get("reason"):
                    yield t_ns, model, f"prometheus:{family}:{reason}", sample.value, None
        yield from ((t_ns, model, field, value, reason) for field, value, reason in _engine(own))
    for family in GPU_FAMILIES:
        gpus = [sample for sample in samples if sample.family == family]
        if not gpus:
            yield t_ns, "gpu", f"prometheus:{family}", None, why or "Triton reports no GPU"
        for sample in gpus:
            yield t_ns, f"gpu:{sample.labels.get('gpu_uuid', '')}", f"prometheus:{family}", sample.value, None


def _engine(own: Sequence[Sample]) -> Iterator[tuple[str, float | None, str | None]]:
    """field, value, reason. At a reload the engine before lives until its last answers are sent: the newer one counts.
    Without a KV cache an engine has no cache figures."""
    told = [sample for sample in own if sample.family in (*ENGINE_FAMILIES, NOTE_FAMILY)]
    newest: dict[str, int] = {}
    for sample in told:
        instance, loaded = _origin(sample)
        newest[instance] = max(loaded, newest.get(instance, 0))
    told = [sample for sample in told if newest.items() >= {_origin(sample)}]
    for family in ENGINE_FAMILIES if told else ():
        values = [sample.value for sample in told if sample.family == family]
        name = family.removeprefix("lab_engine_")
        yield f"engine_{name}", sum(values) if values else None, None if values else f"the engine tells no {name}"
    notes = sorted({sample.labels.get("note", "") for sample in told if sample.family == NOTE_FAMILY})
    if notes:
        yield "engine_note", None, "; ".join(notes)


def _origin(sample: Sample) -> tuple[str, int]:
    """The instance of the model, and when its engine was made."""
    return sample.labels.get("instance", ""), int(sample.labels.get("loaded", 0))


def _read(url: str | None) -> tuple[str, str | None]:
    """The text, and why there is none."""
    if url is None:
        return "", "the server's metrics are off or their address is not known"
    opener = direct.opener()
    try:
        with opener.open(url, timeout=METRICS_LIMIT_S) as answer:
            return answer.read().decode(errors="replace"), None
    except urllib.error.HTTPError as error:
        return "", f"{url} answered {error.code}"
    except (OSError, HTTPException, ValueError) as error:  # another kind of server may have that port
        return "", f"{url} could not be read: {getattr(error, 'reason', error)}"
