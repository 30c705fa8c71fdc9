"""Does memory come back? The verdict over cycles of loading and unloading one model. Pure.

After each cycle everything that may have kept something is read: the server, processes that are left, neighbours,
shared memory, GPUs. The first cycles are not counted: what a server sets up once is no leak. A straight line through
the readings after the others has a slope, in bytes a cycle, with an interval (least squares, Student's t); readings
that jump about make it wide, and then the answer is "not decided" rather than a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

MIB = 2**20
LEAST_BYTES, LEAST_FRACTION = 0.25 * MIB, 0.005
"""A slope within the larger of these (of the model's own memory) is not worth a verdict: Triton itself keeps about 60
KiB a cycle (2.51, Python backend), and allocators breathe."""

T_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 %, for 1, 2, … degrees of freedom."""

WHERE = {
    "server": "the server's own process",
    "processes": "processes that stayed",
    "neighbours": "the other models' processes",
    "shared_memory": "shared memory (/dev/shm)",
    "gpu": "GPU memory",
}


@dataclass(frozen=True)
class Cycle:
    """`before`, `loaded` and `after` in bytes, by the keys of WHERE; a part that was not measured has no entry.
    `loaded` is while the model is loaded and has answered, its own processes among "processes"."""

    load_s: float
    unload_s: float
    before: Mapping[str, float]
    loaded: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True)
class Slope:
    """Bytes a cycle, and between which it lies at 95 %."""

    bytes: float
    low: float
    high: float


@dataclass(frozen=True)
class Leak:
    """`verdict`: "leak", "clean" or "undecided". `residue_bytes`: what the counted cycles left, of a model that takes
    `model_bytes`; `once_bytes` what the first ones left. `parts`: the slope of each part."""

    verdict: Literal["leak", "clean", "undecided"]
    text: str
    cycles: int
    model_bytes: float
    residue_bytes: float
    residue_fraction: float | None
    once_bytes: float
    slope: Slope
    parts: dict[str, Slope]
    not_measured: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def slope(readings: Sequence[float]) -> Slope:
    """The line through readings at 0, 1, 2, … (three at least)."""
    y = np.asarray(readings, dtype=float)
    n = len(y)
    if n < 3:
        raise ValueError(f"a slope with an interval needs 3 readings, got {n}")
    x = np.arange(n) - (n - 1) / 2
    squares = float(x @ x)
    rise = float(x @ y) / squares
    rest = y - y.mean() - rise * x
    error = math.sqrt(float(rest @ rest) / (n - 2) / squares)
    t = T_975[n - 3] if n - 3 < len(T_975) else 2.1
    return Slope(rise, rise - t * error, rise + t * error)


def judge(cycles: Sequence[Cycle], not_measured: Mapping[str, str], once_bytes: float = 0.0) -> Leak:
    """`cycles` with one uncounted before them, from whose end on the line is drawn: three at least. `once_bytes` is
    what those that are not among them left, in bytes. `not_measured`: part → why."""
    after = [sum(cycle.after.values()) for cycle in cycles]
    model = float(np.median([sum(c.loaded.values()) - sum(c.before.values()) for c in cycles[1:]]))
    whole = slope(after)
    parts = {part: slope([cycle.after[part] for cycle in cycles]) for part in cycles[0].after}
    noise = max(LEAST_BYTES, LEAST_FRACTION * model)
    residue, counted = after[-1] - after[0], len(cycles) - 1
    interval = f"{_mib(whole.bytes)} MiB a cycle (95 %: {_mib(whole.low)} to {_mib(whole.high)})"
    growing = sorted((p for p in parts if parts[p].low > noise / 4), key=lambda p: -parts[p].bytes)
    if whole.low > noise or any(parts[p].low > noise for p in parts):
        where = " and ".join(WHERE[part] for part in growing) or "no single part"
        verdict: Literal["leak", "clean", "undecided"] = "leak"
        text = (
            f"Leaks {interval}, in {where}. {counted} cycles left {_mib(residue)} MiB, "
            f"{_share(residue, model)} of what the model takes ({_mib(model)} MiB)."
        )
    elif whole.high < noise:
        verdict = "clean"
        text = (
            f"No leak found: {interval} over {counted} cycles of a model that takes {_mib(model)} MiB. "
            f"One of more than {_mib(max(noise, whole.high))} MiB a cycle would have shown."
        )
    else:
        verdict = "undecided"
        text = (
            f"Not decided: {interval} over {counted} cycles may be a leak or noise of less than {_mib(noise)} MiB a "
            f"cycle. More cycles narrow it."
        )
    fraction = residue / model if model > 0 else None
    once = once_bytes + after[0] - sum(cycles[0].before.values())
    return Leak(verdict, text, counted, model, residue, fraction, once, whole, parts, dict(not_measured))


def _mib(size_bytes: float) -> str:
    mib = size_bytes / MIB
    return (
        f"{mib:.0f}" if abs(mib) >= 100 else f"{mib:.1f}" if abs(mib) >= 10 else f"{mib:.2f}".replace("-0.00", "0.00")
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "an unknown share"
