"""Qualities as the terminal shows them: a table of formats, then what was lost and what belongs beside the figures."""

from __future__ import annotations

from collections.abc import Sequence

from lab.measure.formats import figure
from lab.measure.quality import Measure, Quality, Sensitivity
from lab.run.columns import aligned

HEADS = {
    "perplexity": "perplexity",
    "agreement": "same token",
    "kl_nats": "KL, nats",
    "cloze": "cloze",
    "facts": "facts",
    "answer_tokens_equal": "answers equal",
    "recall": "recall",
    "cosine": "cosine",
    "images": "accuracy",
}


def table(qualities: Sequence[Quality]) -> list[str]:
    """One line a format. Brackets hold 95 % intervals."""
    heads = {name: head for name, head in HEADS.items() if any(q.measure(name) for q in qualities)}
    rows = [["format", *heads.values()]]
    rows += [[q.format, *(_cell(q.measure(name)) for name in heads)] for q in qualities]
    out = aligned(rows)
    out += [f"{q.format}: {q.verdict}" for q in qualities]
    notes = dict.fromkeys(note for q in qualities for note in q.notes)
    counts = {(m.of, m.n) for q in qualities for m in q.measures}
    out.append(f"On {', '.join(f'{n} {of}' for of, n in sorted(counts))}; intervals are 95 %.")
    return out + list(notes)


def blocks(format: str, found: Sequence[Sensitivity]) -> list[str]:
    rows = [["block", "perplexity, % more", "KL, nats"]]
    rows += [[str(b.block), f"{100 * b.perplexity_loss:.2f}", f"{b.kl_nats:.4f}"] for b in found]
    return [f"One block at a time in {format}, all others as they were:", *aligned(rows)]


def _cell(measure: Measure | None) -> str:
    if measure is None:
        return "–"
    low, high = figure(measure.name, measure.low), figure(measure.name, measure.high)
    return f"{figure(measure.name, measure.value)} [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"
