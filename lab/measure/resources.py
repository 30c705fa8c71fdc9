"""What a block cost the machine, from telemetry: memory of the model's processes, their CPU, and GPUs.

Peak memory is the largest reading of the block, warm-up included (that is when a model grows), CPU and GPU use are
means over the measured window. With several GPUs the memory is that of the fullest one: a sum or a mean over GPUs
that do not serve the model says nothing about fitting.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.figures import Figures
from lab.measure.records import Window

MODEL, GPU = "model:", "gpu:"
FIELDS = (
    "memory_base_bytes",
    "memory_peak_bytes",
    "cpu_mean_fraction",
    "gpu_memory_peak_bytes",
    "gpu_utilization_mean_fraction",
    "gpu_power_mean_w",
)
BEFORE_NS = 2_000_000_000
"""A reading this long before the block still shows the loaded, idle model."""


def resources(figures: Figures, telemetry: pa.Table | None, model: str | None, window: Window) -> None:
    """Adds the fields of FIELDS. `telemetry` has the TELEMETRY schema; rows outside the block are ignored."""
    if telemetry is None or telemetry.num_rows == 0:
        for name in FIELDS:
            figures.set(name, None, "no telemetry was recorded")
        return
    block = _between(telemetry, window.start_ns - BEFORE_NS, window.end_ns)
    subject = f"{MODEL}{model}" if model else _only_model(block)
    t_ns, memory, why = _readings(block, subject, "memory_bytes")
    before = memory[t_ns <= window.start_ns]
    during = memory[t_ns > window.start_ns]
    base = before[-1] if len(before) else during[0] if len(during) else None
    figures.set("memory_base_bytes", None if base is None else float(base), why)
    figures.set("memory_peak_bytes", float(during.max()) if len(during) else None, why)
    measured = _between(block, window.measured_from_ns, window.end_ns)
    figures.set("cpu_mean_fraction", *_mean(measured, subject, "cpu_fraction"))
    _, used, why = _readings(_between(block, window.start_ns, window.end_ns), GPU, "memory_used_bytes")
    figures.set("gpu_memory_peak_bytes", float(used.max()) if len(used) else None, why)
    figures.set("gpu_utilization_mean_fraction", *_mean(measured, GPU, "utilization_fraction"))
    figures.set("gpu_power_mean_w", *_mean(measured, GPU, "power_w"))


def _mean(table: pa.Table, subject: str | None, name: str) -> tuple[float | None, str]:
    _, values, why = _readings(table, subject, name)
    return (float(values.mean()) if len(values) else None), why


def _readings(table: pa.Table, subject: str | None, name: str) -> tuple[np.ndarray, np.ndarray, str]:
    """(times, values, why there are none) of one field; a subject that ends in ":" stands for all that begin so."""
    if subject is None:
        return np.zeros(0, np.int64), np.zeros(0), "no model was named"
    match = pc.starts_with if subject.endswith(":") else pc.equal
    own = table.filter(pc.and_(match(table["subject"], subject), pc.equal(table["field"], name)))
    known = own.filter(pc.is_valid(own["value"])).sort_by("t_ns")
    reasons = own["reason"].drop_null().to_pylist()
    why = reasons[-1] if reasons else f"{subject.rstrip(':')} gave no {name}"
    return known["t_ns"].to_numpy(), known["value"].to_numpy(), why


def _only_model(table: pa.Table) -> str | None:
    models = [s for s in pc.unique(table["subject"]).to_pylist() if s.startswith(MODEL)]
    return models[0] if len(models) == 1 else None


def _between(table: pa.Table, from_ns: int, to_ns: int) -> pa.Table:
    return table.filter(pc.and_(pc.greater_equal(table["t_ns"], from_ns), pc.less(table["t_ns"], to_ns)))
