"""A format of a model: what decides the bytes of its weights and cache, and with them its answers; in words.

Formats are compared by speed, size and quality together. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lab.measure.quality import Measure, Quality
from lab.measure.words import format_bytes, format_ratio, join, level_label, precision_label
from lab.spec import Experiment, ModelSpec

QualityOf = Callable[[Any], Quality | None]
"""The quality of a level of the judged factor; None where it was not evaluated."""
FIELDS = ("precision", "quantizer", "group_size", "kv_cache_precision")
"""Of a ModelSpec; all else that it says changes no answer."""
BASELINES = {"llm": "bf16"}
"""What a family's quality is compared with; fp32 for the others."""


ONCE_4_BIT = "on weights that were 4 bit before"


def format_label(model: ModelSpec) -> str:
    """ "bf16", "int8 weights", "int4 GPTQ", "int4 RTN, group size 64", "bf16, KV cache in int8"."""
    words = [precision_label(model.precision, model.quantizer)]
    if model.precision == "int4" and model.group_size != ModelSpec.model_fields["group_size"].default:
        words.append(level_label("model.group_size", model.group_size))
    if model.kv_cache_precision is not None and model.kv_cache_precision != model.precision:
        words.append(level_label("model.kv_cache_precision", model.kv_cache_precision))
    return ", ".join(words)


def is_baseline(model: ModelSpec) -> bool:
    return model.precision == BASELINES.get(model.family, "fp32") and model.kv_cache_precision != "int8"


def change_answers(experiment: Experiment) -> bool:
    """Whether the levels that are compared differ in format: then they answer differently by design, and how much
    worse is a matter of quality, not of equality."""
    return len({tuple(getattr(cell.model, field) for field in FIELDS) for cell in experiment.cells()}) > 1


def without_kernel(model: ModelSpec, multiplies_bytes: bool | None) -> str | None:
    """Why this format is no faster than fp32 on the model's device, in a sentence; None where it can be, or where that
    is not known. A language model's engine knows it best and says so itself. `multiplies_bytes`: whether the processor
    has products of 8 bits."""
    if model.precision != "int8" or model.family == "llm":
        return None
    what = f"{model.name} in int8 is right and no faster than fp32 here"
    if model.device == "gpu":
        return f"{what}: on a GPU its whole numbers are multiplied as float32."
    if multiplies_bytes is False:
        return f"{what}: this processor has no products of 8 bits (VNNI)."
    return None


def price(quality: Quality | None, memory_bytes: float | None, base_memory_bytes: float | None) -> str:
    """What a format's speed is to be seen with, to go on a sentence: ", in 0.52× the peak memory (412 MiB against
    793 MiB) and with no measurable loss of quality (perplexity 12.31 against 12.28)"."""
    memory = ""
    if memory_bytes and base_memory_bytes:
        beside = f"{format_bytes(memory_bytes)} against {format_bytes(base_memory_bytes)}"
        memory = f", in {format_ratio(memory_bytes / base_memory_bytes)} the peak memory ({beside})"
    if quality is None:
        return f"{memory}; its quality was not evaluated"
    return f"{memory}{' and' if memory else ','} {quality_phrase(quality)}"


def quality_phrase(quality: Quality) -> str:
    """ "with no measurable loss of quality (perplexity 12.31 against 12.28)", "at a price in quality: perplexity loss
    of 5.1 ± 0.4 % (perplexity 12.91 against 12.28, on weights that were 4 bit before)"."""
    lost = [f"{m.label} {m.verdict}" for m in quality.measures if m.loss_low is not None and m.loss_low > 0]
    words = [told for told in (main_figure(quality), ONCE_4_BIT if quality.were_4_bit else "") if told]
    figures = f" ({', '.join(words)})" if words else ""
    return f"{f'at a price in quality: {join(lost)}' if lost else 'with no measurable loss of quality'}{figures}"


def main_figure(quality: Quality) -> str:
    """The measure that tells most, against the baseline's: "perplexity 12.31 against 12.28"."""
    main = main_measure(quality)
    if main is None:
        return ""
    words = f"{main.label} {figure(main.name, main.value)}"
    return words if main.baseline is None else f"{words} against {figure(main.name, main.baseline)}"


def main_measure(quality: Quality) -> Measure | None:
    found = {m.name: m for m in quality.measures}
    return next((found[name] for name in ("perplexity", "recall", "images") if name in found), None)


def figure(name: str, value: float) -> str:
    """A perplexity, a divergence or a count of tokens as a number, all else as percent."""
    if name in ("perplexity", "answer_drift_tokens"):
        return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
    if name in ("kl_nats", "cosine"):
        return f"{value:.4f}"
    return f"{100 * value:.1f} %"


def frontier(points: Sequence[Sequence[float]]) -> list[bool]:
    """Which points no other one dominates: is no worse in any coordinate and better in one. More is better in each."""

    def beats(a: Sequence[float], b: Sequence[float]) -> bool:
        return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))

    return [not any(beats(other, point) for other in points) for point in points]


def distinct(models: Iterable[ModelSpec]) -> list[ModelSpec]:
    """One model of each format, in order of appearance."""
    return list({format_label(model): model for model in reversed(list(models))}.values())[::-1]
