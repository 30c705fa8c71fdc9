"""What a precision costs in quality: the same items answered by a format and by its baseline, judged as pairs.

    lab.run.quality.known(spec)              → Quality | None      what was evaluated before; reads one small file
    lab.run.quality.evaluate(spec, progress) → Quality             evaluates what is missing, in a process of its own

An evaluation sees items: passages of held-out prose, questions, answers (`seen`, a plain dict, see `judge`). The
baseline of a language model is its own weights in bf16, of the other families fp32. A loss is taken item by item, so
that what makes an item hard cancels out; its interval is 95 %:

- means over passages and answers: percentile bootstrap over the items, since tokens of one passage are not independent
- accuracy: Wilson (1927); the difference of two on the same items by Newcombe (1998, "Improved confidence intervals for
  the difference between binomial proportions based on paired data", method 8)

"no measurable loss" says that the interval of the loss holds zero: with these items it could not be told from none.
Agreement, divergence and drift are distances from the baseline, not losses, and carry no verdict.

Pure: knows no model and no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NO_LOSS = "no measurable loss"
DRAWS = 2000
Z = 1.959963984540054
"""The normal quantile of a 95 % interval."""


WERE_4_BIT = (
    "The weights of SmolLM2 were 4 bit (Q4_1, groups of 32) before they were bf16, so 4 bit is judged on weights that "
    "have lost what 4 bit loses once already."
)
"""Belongs beside the quality of its 4 bits (lab/serve/llama_weights.py)."""


@dataclass(frozen=True)
class Measure:
    """One figure of a format. `n` counts the items, `of` says of what. `loss`: how much worse than `baseline`, positive
    is worse; a fraction of the baseline for a perplexity, a difference for accuracies and recall. All of `baseline`,
    `loss*` are None and `verdict` is "" where there is nothing to lose: a distance from the baseline, or the baseline
    itself."""

    name: str
    label: str
    value: float
    low: float
    high: float
    n: int
    of: str
    baseline: float | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Answer:
    """A greedy answer beside the baseline's: the texts of their tokens. `first_difference` is the place of the first
    token that differs, None when none does."""

    prompt: str
    pieces: tuple[str, ...]
    baseline_pieces: tuple[str, ...]
    first_difference: int | None


@dataclass(frozen=True)
class Sensitivity:
    """One block alone quantized, all others as they were: what that does to the baseline's prose."""

    block: int
    perplexity_loss: float
    """A fraction: 0.01 is 1 % more."""
    kl_nats: float


@dataclass(frozen=True)
class Quality:
    """`format` and `baseline` in words, `is_baseline` when they are the same; `baseline` is "" when there is none.
    `notes` belong beside the figures."""

    format: str
    baseline: str
    is_baseline: bool
    measures: tuple[Measure, ...]
    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
    evaluated_s: float
    """How long the evaluation took."""

    def measure(self, name: str) -> Measure | None:
        return next((m for m in self.measures if m.name == name), None)

    @property
    def were_4_bit(self) -> bool:
        return WERE_4_BIT in self.notes

    @property
    def verdict(self) -> str:
        """One sentence: what is lost, by each measure that can tell; or that none can."""
        if self.is_baseline:
            return "The baseline."
        judged = [m for m in self.measures if m.verdict]
        if not judged:
            return "There is no baseline to lose against."
        lost = [f"{m.label}: {m.verdict}" for m in judged if m.verdict != NO_LOSS]
        if not lost:
            return f"No measurable loss on {', '.join(m.label for m in judged)}."
        rest = [m.label for m in judged if m.verdict == NO_LOSS]
        return f"{'; '.join(lost)}" + (f"; {NO_LOSS} on {', '.join(rest)}." if rest else ".")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Quality:
        return cls(
            format=found["format"],
            baseline=found["baseline"],
            is_baseline=found["is_baseline"],
            measures=tuple(Measure(**m) for m in found["measures"]),
            answers=tuple(
                Answer(a["prompt"], tuple(a["pieces"]), tuple(a["baseline_pieces"]), a["first_difference"])
                for a in found["answers"]
            ),
            notes=tuple(found["notes"]),
            evaluated_s=found["evaluated_s"],
        )


def judge(seen: Mapping[str, Sequence[Any]], baseline: Mapping[str, Sequence[Any]] | None) -> tuple[Measure, ...]:
    """The measures of what an evaluation saw; `baseline` is what the baseline's own saw on the same items, None when
    this is the baseline. Keys that are missing are not measured:

    nats, tokens       −log p of each passage's tokens, and how many tokens those are → perplexity
    agreed, kl_nats    of each passage: tokens whose likeliest next token is the baseline's; Σ KL(baseline ‖ format)
    cloze, facts       of each question: whether it was answered rightly
    answers            token ids of each greedy answer
    recall             of each query: the fraction of the nearest texts that are of its topic
    cosine             of each text: the cosine of its vector and the baseline's
    images             of each image: whether it was classified rightly
    """
    found: list[Measure] = []
    if "nats" in seen:
        found.append(perplexity(seen["nats"], seen["tokens"], None if baseline is None else baseline["nats"]))
    for name, label, of in (
        ("cloze", "cloze accuracy", "sentences"),
        ("facts", "fact accuracy", "questions"),
        ("images", "accuracy", "images"),
    ):
        if name in seen:
            found.append(accuracy(name, label, of, seen[name], None if baseline is None else baseline[name]))
    if "recall" in seen:
        found.append(_recall(seen["recall"], None if baseline is None else baseline["recall"]))
    if baseline is None:
        return tuple(found)
    if "agreed" in seen:
        tokens = seen["tokens"]
        found.append(_mean("agreement", "same likeliest token", "passages", seen["agreed"], tokens))
        found.append(_mean("kl_nats", "KL divergence from the baseline", "passages", seen["kl_nats"], tokens))
    if "answers" in seen:
        pairs = list(zip(seen["answers"], baseline["answers"], strict=True))
        same = [sum(a == b for a, b in zip(x, y, strict=False)) for x, y in pairs]
        lengths = [max(len(x), len(y)) for x, y in pairs]
        until = [first if (first := first_difference(x, y)) is not None else len(x) for x, y in pairs]
        found.append(_mean("answer_tokens_equal", "answer tokens equal", "answers", same, lengths))
        found.append(_mean("answer_drift_tokens", "answer tokens until the first difference", "answers", until))
    if "cosine" in seen:
        found.append(_mean("cosine", "cosine to the baseline's vector", "texts", seen["cosine"]))
    return tuple(found)


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """The first place where the two differ (one ending before the other differs there); None when they are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def perplexity(nats: Sequence[float], tokens: Sequence[int], baseline: Sequence[float] | None = None) -> Measure:
    """exp(Σ nats ÷ Σ tokens) over passages; `baseline` holds its nats of the same passages."""
    sums, sizes = np.asarray(nats, float), np.asarray(tokens, float)
    mean, drawn = _bootstrap(sums, sizes)
    name, label, of = "perplexity", "perplexity", "passages"
    value, (low, high) = math.exp(mean), np.exp(drawn)
    if baseline is None:
        return Measure(name, label, value, float(low), float(high), len(sums), of)
    change, (least, most) = _bootstrap(sums - np.asarray(baseline, float), sizes)
    loss, loss_low, loss_high = (math.expm1(x) for x in (change, least, most))
    return Measure(
        name,
        label,
        value,
        float(low),
        float(high),
        len(sums),
        of,
        math.exp(float(np.sum(baseline)) / float(sizes.sum())),
        loss,
        loss_low,
        loss_high,
        _verdict(loss, loss_low, loss_high),
    )


def accuracy(name: str, label: str, of: str, right: Sequence[bool], baseline: Sequence[bool] | None = None) -> Measure:
    """The fraction answered rightly; `baseline` says of each of the same items whether the baseline answered it."""
    n, hits = len(right), sum(right)
    low, high = wilson(hits, n)
    if baseline is None:
        return Measure(name, label, hits / n, low, high, n, of)
    loss, loss_low, loss_high = paired_difference(baseline, right)
    return Measure(
        name,
        label,
        hits / n,
        low,
        high,
        n,
        of,
        sum(baseline) / n,
        loss,
        loss_low,
        loss_high,
        _verdict(loss, loss_low, loss_high, points=True),
    )


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % score interval of a fraction."""
    p, slack = hits / n, Z**2 / n
    middle = (p + slack / 2) / (1 + slack)
    half = Z / (1 + slack) * math.sqrt(p * (1 - p) / n + slack / (4 * n))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def paired_difference(a: Sequence[bool], b: Sequence[bool]) -> tuple[float, float, float]:
    """(fraction of a − fraction of b, and its 95 % interval) of two that answered the same items: the Wilson intervals
    of each, put together with the correlation that the pairs show."""
    n = len(a)
    both, only_a, only_b, neither = (
        sum(x == p and y == q for x, y in zip(a, b, strict=True)) for p, q in ((1, 1), (1, 0), (0, 1), (0, 0))
    )
    p, q = (both + only_a) / n, (both + only_b) / n
    spread = math.sqrt((both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither))
    phi = (both * neither - only_a * only_b) / spread if spread else 0.0
    if not only_a and not only_b:
        return 0.0, 0.0, 0.0  # all items alike: what little is left open is not a difference of the two
    (p_low, p_high), (q_low, q_high) = wilson(both + only_a, n), wilson(both + only_b, n)

    def reach(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    return p - q, p - q - reach(p - p_low, q_high - q), p - q + reach(p_high - p, q - q_low)


def _recall(hits: Sequence[float], baseline: Sequence[float] | None) -> Measure:
    values = np.asarray(hits, float)
    mean, (low, high) = _bootstrap(values)
    name, label, of = "recall", "recall by topic", "queries"
    if baseline is None:
        return Measure(name, label, mean, low, high, len(values), of)
    before = np.asarray(baseline, float)
    loss, (loss_low, loss_high) = _bootstrap(before - values)
    verdict = _verdict(loss, loss_low, loss_high, points=True)
    return Measure(
        name, label, mean, low, high, len(values), of, float(before.mean()), loss, loss_low, loss_high, verdict
    )


def _mean(name: str, label: str, of: str, sums: Sequence[float], sizes: Sequence[float] | None = None) -> Measure:
    """Σ sums ÷ Σ sizes (of ones unless given)."""
    mean, (low, high) = _bootstrap(np.asarray(sums, float), None if sizes is None else np.asarray(sizes, float))
    return Measure(name, label, mean, low, high, len(sums), of)


def _bootstrap(sums: Floats, sizes: Floats | None = None, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Σ sums ÷ Σ sizes and the 2.5 and 97.5 percentiles of that over draws of the items."""
    sizes = np.ones(len(sums)) if sizes is None else sizes
    picked = np.random.default_rng([seed, len(sums)]).integers(len(sums), size=(DRAWS, len(sums)))
    drawn = sums[picked].sum(axis=1) / sizes[picked].sum(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(sums.sum() / sizes.sum()), (float(low), float(high))


def _verdict(loss: float, low: float, high: float, *, points: bool = False) -> str:
    """In percent of the baseline, or in percentage points."""
    if low <= 0:
        return NO_LOSS
    unit = "points" if points else "%"
    half = 100 * (high - low) / 2
    digits = max(0, min(3, 1 - math.floor(math.log10(half)))) if half > 0 else 1
    return f"loss of {100 * loss:.{digits}f} ± {half:.{digits}f} {unit}"
