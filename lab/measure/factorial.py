"""Several settings at once: what each does by itself, and what they do to each other (2^k designs).

Changing one setting at a time can't see that two of them only work together. In a full factorial every combination of
low and high is measured, so each main effect uses all blocks, and each interaction shows as such (Box, Hunter and
Hunter, "Statistics for Experimenters", chapter 5). Figures are compared as logarithms, so effects are ratios: a main
effect is the high level's figure over the low level's, at the others' average; a two-factor interaction is the factor
by which one ratio changes when the other setting goes from low to high: 1 means that they do not care for each other.

The error is the spread of repeats about their cell's mean, moderated with an expected one as in compare.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.measure.compare import EXPECTED_WEIGHT, Finding, finding, student
from lab.measure.samples import is_time
from lab.measure.segments import START_SD
from lab.measure.words import format_metric, format_range, format_ratio, join, level_label, metric_label

Levels = tuple[Any, Any]


@dataclass(frozen=True)
class Contrast:
    """`factors`: one for a main effect, more for an interaction. `ratio` with its 95 % interval; `finding` speaks of
    going from low to high."""

    factors: tuple[str, ...]
    ratio: float
    ci_low: float
    ci_high: float
    finding: Finding


@dataclass(frozen=True)
class Factorial:
    """`means`: {levels (0 low, 1 high) by factor: geometric mean of the metric}. `repeats`: the fewest of a cell."""

    metric: str
    factors: Mapping[str, Levels]
    means: Mapping[tuple[int, ...], float]
    repeats: int
    contrasts: tuple[Contrast, ...]

    def main(self) -> tuple[Contrast, ...]:
        return tuple(c for c in self.contrasts if len(c.factors) == 1)

    def interactions(self) -> tuple[Contrast, ...]:
        return tuple(c for c in self.contrasts if len(c.factors) == 2)


def is_factorial(factors: Mapping[str, Sequence[Any]]) -> bool:
    """Two or more factors of two levels each."""
    return len(factors) >= 2 and all(len(levels) == 2 for levels in factors.values())


def factorial(
    factors: Mapping[str, Levels], values: Mapping[tuple[int, ...], Sequence[float | None]], metric: str
) -> Factorial | None:
    """`values`: of each combination (0 low, 1 high, in the order of `factors`) the metric of its repeats. None when a
    combination lacks one above zero, since nothing then is balanced."""
    cells = list(itertools.product((0, 1), repeat=len(factors)))
    logs = {}
    for cell in cells:
        known = [value for value in values.get(cell, ()) if value is not None and value > 0]
        if not known:
            return None
        logs[cell] = np.log(known)
    means = {cell: float(logs[cell].mean()) for cell in cells}
    freedom = sum(len(logs[cell]) - 1 for cell in cells)
    within = sum(float(((logs[cell] - means[cell]) ** 2).sum()) for cell in cells)
    variance = (EXPECTED_WEIGHT * START_SD**2 + within) / (EXPECTED_WEIGHT + freedom)
    # Of the difference between the mean of the high half and of the low half.
    error = math.sqrt(variance * sum(1 / len(logs[cell]) for cell in cells)) * 2 / len(cells)
    half = student(EXPECTED_WEIGHT + freedom) * error
    contrasts = []
    names = list(factors)
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), size):
            sign = {cell: math.prod(1 if cell[i] else -1 for i in chosen) for cell in cells}
            effect = sum(sign[cell] * means[cell] for cell in cells) * 2 / len(cells)
            scale = 2 ** (size - 1)  # of an interaction: by how much the ratio of one changes with the other
            low, high = scale * (effect - half), scale * (effect + half)
            contrasts.append(
                Contrast(
                    tuple(names[i] for i in chosen),
                    math.exp(scale * effect),
                    math.exp(low),
                    math.exp(high),
                    finding(low, high),
                )
            )
    return Factorial(
        metric,
        dict(factors),
        {cell: math.exp(mean) for cell, mean in means.items()},
        min(len(logs[cell]) for cell in cells),
        tuple(contrasts),
    )


def told(found: Factorial) -> str:
    """The largest main effect, what does nothing, and the interactions that can be told, in sentences."""
    label = metric_label(found.metric)
    real = sorted((c for c in found.main() if c.finding in ("higher", "lower")), key=_size, reverse=True)
    parts = []
    for contrast in real:
        path = contrast.factors[0]
        low, high = (level_label(path, level) for level in found.factors[path])
        parts.append(f"{high} has {ratio_words(contrast)} the {label} of {low}")
    said = [f"At the others' average, {join(parts)}."] if parts else []
    nothing = [_short(c.factors[0]) for c in found.main() if c.finding == "no detectable difference"]
    if nothing:
        said.append(f"No detectable difference by {join(nothing)}.")
    together = sorted((c for c in found.interactions() if c.finding != "no detectable difference"), key=_size)
    pairs = []
    for contrast in reversed(together):
        a, b = contrast.factors
        low, high = (level_label(b, level) for level in found.factors[b])
        pairs.append(f"what {_short(a)} does is {ratio_words(contrast)} as much with {high} as with {low}")
    if pairs:
        said.append(f"They interact: {'; '.join(pairs)}.")
    if found.interactions() and not together:
        said.append("No two of them can be told to interact: their effects multiply.")
    lower = is_time(found.metric) or found.metric.endswith("_bytes")
    best = (min if lower else max)(found.means, key=lambda cell: found.means[cell])
    settings = [level_label(path, levels[at]) for (path, levels), at in zip(found.factors.items(), best, strict=True)]
    which = "lowest" if lower else "highest"
    said.append(f"The {which} {label}, {format_metric(found.metric, found.means[best])}, is with {join(settings)}.")
    if found.repeats == 1:
        said.append("One repeat only: the error is the expected one, not this run's.")
    return " ".join(said)


def ratio_words(contrast: Contrast) -> str:
    return f"{format_ratio(contrast.ratio)} ({format_range(contrast.ci_low, contrast.ci_high, format_ratio)})"


def _size(contrast: Contrast) -> float:
    return abs(math.log(contrast.ratio))


def _short(path: str) -> str:
    return path.rsplit(".", 1)[-1].replace("_", " ")
