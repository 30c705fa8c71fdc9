"""The engine's counters as custom metrics of Triton, at its /metrics beside Triton's own: lab_engine_running, ….

A thread of its own tells Triton what changed, twice a second and not with every step: each change costs two processes
a tenth of a millisecond.

The label `loaded` tells one engine from the one before it. At a reload both live for a while, until the old one's last
answers are sent, and Triton would let the new one's counters go on where the old one's stand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from .request import Counters

PERIOD_S = 0.5
PREFIX = "lab_engine_"

GAUGES = (
    "running",
    "waiting",
    "cache_tokens_used",
    "cache_tokens_total",
    "weight_bytes",
    "scale_bytes",
    "cache_bytes",
    "adapters",
    "adapter_bytes",
)
"""What is so now."""

SUMS = (
    "steps",
    "decode_seconds",
    "prefill_seconds",
    "prefill_tokens",
    "prefill_steps",
    "output_tokens",
    "preemptions",
    "cancelled",
)
"""Since the engine was made."""


class EngineMetrics:
    def __init__(
        self, args: Mapping[str, str], read: Callable[[], Mapping[str, float]], notes: Sequence[str] = ()
    ) -> None:
        """`args` as Triton gives them to a model. `read` gives values by names of GAUGES and SUMS; one that it lacks
        from the beginning is not told at all. `notes` are lab_engine_note, each as a label of its own 1."""
        labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "instance": args["model_instance_name"],
            "loaded": str(time.perf_counter_ns()),
        }
        self._read = read
        self._told: dict[str, float] = {}
        self._metrics: dict[str, Any] = {}
        for kind, names in ((pb_utils.MetricFamily.GAUGE, GAUGES), (pb_utils.MetricFamily.COUNTER, SUMS)):
            for name in sorted(read().keys() & set(names)):
                family = pb_utils.MetricFamily(name=PREFIX + name, description=f"engine: {name}", kind=kind)
                self._metrics[name] = family, family.Metric(labels=labels)
        if notes:
            family = pb_utils.MetricFamily(
                name=PREFIX + "note", description="engine: what to know of it", kind=pb_utils.MetricFamily.GAUGE
            )
        for note in notes:
            self._metrics[note] = family, family.Metric(labels={**labels, "note": note})
            self._metrics[note][1].set(1)
        self._tell()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._metrics.clear()  # Triton keeps a metric until it is deleted, also when its model is gone

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_S):
            self._tell()

    def _tell(self) -> None:
        for name, value in self._read().items():
            before = self._told.get(name, 0.0)
            if name in self._metrics and value != before:
                metric = self._metrics[name][1]
                metric.set(value) if name in GAUGES else metric.increment(value - before)
                self._told[name] = value


def values(counters: Counters, **sizes: int | None) -> dict[str, float]:
    """By the names of GAUGES and SUMS; without a cache its figures are left out."""
    found = {
        "running": counters.running,
        "waiting": counters.waiting,
        "cache_tokens_used": counters.cache_tokens_used,
        "cache_tokens_total": counters.cache_tokens_total,
        "steps": counters.steps,
        "decode_seconds": counters.decode_s,
        "prefill_seconds": counters.prefill_s,
        "prefill_tokens": counters.prefill_tokens,
        "prefill_steps": counters.prefill_steps,
        "output_tokens": counters.output_tokens,
        "preemptions": counters.preemptions,
        "cancelled": counters.cancelled,
        **sizes,
    }
    return {name: value for name, value in found.items() if value is not None}
