"""What came of asking several engines the same (lab/run/engines.py): a row an engine, how far their words agree, and
all of it in sentences. Pure.

Equal words are no proof of equal quality and different ones no proof of worse: in bf16 two words can be so close that
the last digits decide. So how far they agree is told, in tokens, and nothing is judged by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.measure.compare import Effect
from lab.measure.phrases import interval_phrase, ratio_phrase
from lab.measure.summary import Summary
from lab.measure.words import engine_label, format_fraction, format_metric, join, plural
from lab.run.designs import Measured
from lab.spec import ClosedLoop, Experiment, plain

FIGURES = (
    "output_tokens_per_s",
    "throughput_rps",
    "ttft_p50_s",
    "itl_mean_s",
    "latency_p50_s",
    "prompt_tokens_mean",
    "output_tokens_mean",
    "error_fraction",
)
ALIKE = 0.02
"""Lengths that differ by more were not the same requests."""
PIECE = re.compile(r"\s*\S+|\s+$")


def pieces(text: str) -> list[str]:
    """A text in words, with the spaces before them; together they are the text."""
    return PIECE.findall(text)


def agreement(first: Sequence[str], other: Sequence[str]) -> dict[str, Any]:
    """{"equal": answers that are the same, "of": how many, "words": the median number of words before they part, of
    those that do, None where none does}."""
    pairs = list(zip(first, other, strict=False))
    apart = [_common(pieces(a), pieces(b)) for a, b in pairs if a != b]
    return {"equal": len(pairs) - len(apart), "of": len(pairs), "words": median(apart) if apart else None}


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    return next((n for n, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), min(len(a), len(b)))


def beside(
    experiment: Experiment,
    events: Sequence[Mapping[str, Any]],
    blocks: Sequence[Measured],
    effects: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """A run's document's "engines"; None for a run that asked one server alone.

    {"rows": [{"name", "cell", "url", "figures", "blocks", "error", "texts", "agreement"}], "questions", "against",
    "text"}: figures are medians over the engine's blocks, None where no block has them; `texts` its answers to the
    questions, None where it was not asked; `agreement` with `against`, the first engine that was."""
    cells = experiment.cells()
    if not any(cell.workload.url is not None for cell in cells):
        return None
    failed = {event["cell"]: event["text"] for event in events if event["kind"] == "engine_failed"}
    said = {event["cell"]: event["texts"] for event in events if event["kind"] == "words"}
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(cells):
        own = [block.summary for block in blocks if block.cell == number]
        rows.append(
            {
                "name": engine_label(cell.workload.model_dump()),
                "cell": number,
                "url": cell.workload.url,
                "level": plain(cell.factors["workload"]),
                "figures": {name: _middle([getattr(summary, name) for summary in own]) for name in FIGURES},
                "unfinished_fraction": _middle([_unfinished(summary) for summary in own]),
                "blocks": len(own),
                "error": failed.get(number),
                "texts": said.get(number),
                "agreement": None,
            }
        )
    first = next((row for row in rows if row["texts"]), None)
    for row in rows:
        if first is not None and row["texts"] and row is not first:
            row["agreement"] = agreement(first["texts"], row["texts"])
    questions: Sequence[str] = next((event["texts"] for event in events if event["kind"] == "questions"), [])
    found = {"rows": rows, "questions": list(questions), "against": first and first["name"]}
    return {**found, "text": told(experiment, found, effects)}


def _unfinished(summary: Summary) -> float | None:
    """Of the tokens received, those of answers that did not end well."""
    return (summary.output_tokens_incomplete or 0) / summary.output_tokens if summary.output_tokens else None


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def told(experiment: Experiment, found: Mapping[str, Any], effects: Sequence[Mapping[str, Any]]) -> str:
    """Who is how fast beside the first, how far their words agree, and what makes the rows unlike each other."""
    rows = found["rows"]
    measured = [row for row in rows if row["figures"]["throughput_rps"]]
    if not measured:
        return ""
    base, others = rows[0], [row for row in measured if row is not rows[0]]
    if base not in measured:
        said = [f"{base['name']} was not measured, so nothing is compared with it."]
    elif not others:
        said = [f"Only {base['name']} was measured, so nothing is compared."]
    else:
        said = [_speed(experiment, base, row, effects) for row in others]
    said += [_words(row, found["against"]) for row in others if row["agreement"]]
    said += [text for text in map(_unlike(base), others) if text]
    said += [
        f"{format_fraction(row['unfinished_fraction'])} of the tokens of {row['name']} are of answers that failed."
        for row in measured
        if (row.get("unfinished_fraction") or 0) > ALIKE
    ]
    said += [f"{row['name']} failed: {row['error'].rstrip('.?!')}." for row in rows if row["error"]]
    return " ".join(said)


def _speed(
    experiment: Experiment, base: Mapping[str, Any], row: Mapping[str, Any], effects: Sequence[Mapping[str, Any]]
) -> str:
    own = {effect["metric"]: effect for effect in effects if plain(effect["level"]) == row["level"]}
    arrival = experiment.workload.arrival
    load = f"With {arrival.concurrency} in flight, " if isinstance(arrival, ClosedLoop) else ""
    counts = base["figures"]["output_tokens_per_s"] is not None and row["figures"]["output_tokens_per_s"] is not None
    metric, verb = ("output_tokens_per_s", "writes") if counts else ("throughput_rps", "answers")
    a, b = (format_metric(metric, side["figures"][metric]) for side in (base, row))
    uncounted = "" if counts else "; tokens are not counted by both, so answers are"
    return f"{load}{row['name']} {verb} {b} where {base['name']} {verb} {a}{_ratio(own.get(metric))}{uncounted}."


def _ratio(effect: Mapping[str, Any] | None) -> str:
    """ ", 0.41× (0.38 to 0.45×)", ", no detectable difference (0.97 to 1.04×)", "; too few answers to compare"."""
    if effect is None:
        return ""
    found = Effect(**{name: effect[name] for name in Effect.__dataclass_fields__})
    if found.verdict == "not comparable":
        return f"; {(found.reason or 'not comparable').rstrip('.')}"
    if found.verdict == "no detectable difference":
        return f", no detectable difference{interval_phrase(found)}"
    return f", {ratio_phrase(found)}"


def _words(row: Mapping[str, Any], against: str) -> str:
    found = row["agreement"]
    apart = found["of"] - found["equal"]
    same = f"{row['name']} gives {found['equal']} of {plural(found['of'], 'answer')} in the same words as {against}"
    return f"{same}." if not apart else f"{same}; {_parts(apart)} after {found['words']:g} words."


def _parts(count: int) -> str:
    return "the other one parts" if count == 1 else f"the other {count} part"


def _unlike(base: Mapping[str, Any]) -> Any:
    """What an engine was asked or wrote otherwise than the first, by both servers' own counts; "" for nothing."""

    def of(row: Mapping[str, Any]) -> str:
        apart = []
        for field, what in (("prompt_tokens_mean", "prompts"), ("output_tokens_mean", "answers")):
            a, b = base["figures"][field], row["figures"][field]
            if a and b and abs(b / a - 1) > ALIKE:
                apart.append(f"{what} of {b:,.1f} tokens where {base['name']} counts {a:,.1f}")
        return f"Mind that {row['name']} counts {join(apart)}." if apart else ""

    return of
