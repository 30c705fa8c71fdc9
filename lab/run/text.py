"""A run's document as lines for a terminal: its end and the verdict, then a table, then what makes it doubtful."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.measure import autoscale_words, fleet_words, lamps, lora, patterns, rehearsal
from lab.measure.answers import all_equal
from lab.measure.steps import TOO_QUICK
from lab.measure.words import (
    HOST_MEMORY,
    format_metric,
    format_range,
    format_rate,
    format_seconds,
    join,
    level_label,
    metric_label,
)
from lab.run import format_text, starts
from lab.run.columns import aligned

COLUMNS = {
    "offered": "offered_rps",
    "throughput": "throughput_rps",
    "goodput": "goodput_rps",
    "p50": "latency_p50_s",
    "p95": "latency_p95_s",
    "p99": "latency_p99_s",
    "queue": "queue_mean_s",
    "compute": "compute_mean_s",
    "batch": "batch_mean",
    "errors": "error_fraction",
    HOST_MEMORY: "memory_peak_bytes",
}

TOKEN_COLUMNS = {
    "tokens/s": "output_tokens_per_s",
    "TTFT p50": "ttft_p50_s",
    "TTFT p95": "ttft_p95_s",
    "ITL mean": "itl_mean_s",
    "ITL p95": "itl_p95_s",
    "goodput": "goodput_rps",
    "p50": "latency_p50_s",
    "p95": "latency_p95_s",
    "errors": "error_fraction",
    HOST_MEMORY: "memory_peak_bytes",
}
"""Instead, where a language model was measured."""
BESIDE = ("output_tokens_per_s", "ttft_p50_s", "itl_mean_s", "latency_p50_s", "error_fraction")
"""Of engines beside each other."""
MOST_PAIRS = 4
"""Of more rates than these only the one whose draw is furthest off is told."""


def lines(document: dict[str, Any]) -> list[str]:
    """The whole report; "n/a" where a figure was not measured or is withheld."""
    out = [f"{document['run']}: {document['state']}"]
    if document.get("ending"):
        out += ["", document["ending"]]
    if document["verdict"]["text"]:
        out += ["", document["verdict"]["text"]]
    if document["answers"] and (same := all_equal(document["answers"])):
        out += ["", same]  # where they differ, the verdict says so
    if document["cells"]:
        generated = any(cell["summary"].get("output_tokens_per_s") is not None for cell in document["cells"])
        columns = TOKEN_COLUMNS if generated else COLUMNS
        rows = [["cell", "repeat", *columns]]
        rows += [_row(cell, columns) for cell in document["cells"]]
        out += ["", *aligned(rows)]
        out += ["", offered] if (offered := as_drawn(document)) else []
    if document["cells"] and (checked := lamps.told([cell["summary"] for cell in document["cells"]])):
        out += ["", checked]
    if engines := document.get("engines"):
        out += ["", *aligned(_engines(engines))]
    if document.get("trace"):
        out += ["", *_traced(document["trace"])]
    several = len(document.get("formats", {})) > 1  # then a table has them
    # A floor that a step undercut stands below, among what is doubtful.
    floors = [] if several else [(_label(c), c.get("floor")) for c in document["cells"] if c.get("floor") != TOO_QUICK]
    out += format_text.lines(document)
    out += ["", *(f"{label}: {floor}" for label, floor in floors if floor)] if any(f for _, f in floors) else []
    out += starts.lines(document)
    if tuned := document.get("lora"):
        out += ["", lora.loading(tuned), "", *aligned(lora.table(tuned))]
    if scaling := document.get("autoscaling"):
        out += ["", *aligned(autoscale_words.table(scaling))]
    if ways := document.get("patterns"):
        out += ["", "Share within each promise, and what a good item costs beside the cheapest:"]
        out += aligned(patterns.table(ways))
    if rehearsed := document.get("rehearsal"):
        out += ["", *aligned(rehearsal.table(rehearsed))]
    if fleet := document.get("fleet"):
        out += [line for said in fleet_words.besides(fleet) for line in ("", said)]
        out += ["", *aligned(fleet_words.table(fleet))]
    if document["problems"]:
        out += ["", "What makes it doubtful:"]
        out += [f"- {doubt(problem)} {problem['remedy']}".rstrip() for problem in document["problems"]]
    if waived := document.get("waivers"):
        out += ["", "Waived by name (`python -m lab review RUN` has the questions):"]
        out += [f"- {one['code']}, by {one['who']}, {one['utc'][:10]}: {one['why']}" for one in waived]
    return out


def as_drawn(document: Mapping[str, Any]) -> str:
    """What offered rates are where arrivals are random: "… 45.5 req/s drawn of 51.8 req/s asked …". "" where all is
    as asked, and where nothing was drawn."""
    if any(problem["code"] == "changed" for problem in document["problems"]):
        return ""
    rates: dict[float, list[float]] = {}
    for cell in document["cells"]:
        offered, asked = cell["summary"].get("offered_rps"), cell.get("asked_rps")
        if offered is not None and asked:
            rates.setdefault(asked, []).append(offered)
    pairs = []
    for asked, found in sorted(rates.items()):
        low, high, wanted = format_rate(min(found)), format_rate(max(found)), format_rate(asked)
        if {low, high} != {wanted}:
            of = low if low == high else format_range(min(found), max(found), format_rate)
            pairs.append((max(abs(one / asked - 1) for one in found), f"{of} drawn of {wanted} asked"))
    if not pairs:
        return ""
    told = [text for _, text in pairs] if len(pairs) <= MOST_PAIRS else [f"the furthest off {max(pairs)[1]}"]
    return f"Offered rates are what was drawn in the window, as arrivals are random: {join(told)}."


def _engines(found: dict[str, Any]) -> list[list[str]]:
    """A row an engine: its speed, and how far its words are the first one's."""
    rows = [["engine", *(metric_label(name) for name in BESIDE), f"same words as {found['against'] or 'the first'}"]]
    for row in found["rows"]:
        agreed = row["agreement"]
        same = "n/a" if agreed is None else f"{agreed['equal']} of {agreed['of']}"
        if agreed is not None and agreed["words"] is not None:
            same += f", else the first {agreed['words']:g}"
        rows.append([row["name"], *(format_metric(name, row["figures"][name]) for name in BESIDE), same])
    return rows


def _traced(found: dict[str, Any]) -> list[str]:
    """Where the time of each request went, and the slowest of them."""
    columns = ("mean", "p50", "p95", "p99")
    rows = [["part of latency", *columns]]
    rows += [[name, *(format_seconds(part[c]) for c in columns)] for name, part in found["parts"].items()]
    slow = []
    for one in found["slowest"]:
        queue, compute = (format_seconds(one["parts_s"][part]) for part in ("queue", "compute"))
        slow.append(
            f"request {one['request']:,}: {format_seconds(one['latency_s'])}, of which {queue} in Triton's queue and "
            f"{compute} computing, {len(one['mates'])} beside it in its batch; {one['waited_for']}"
        )
    head = f"{found['traced']:,} of {found['of']:,} measured answers are traced through the server:"
    return [head, *aligned(rows), "The slowest:", *slow]


def doubt(problem: dict[str, Any]) -> str:
    """A problem of the document in words, here and on pages: how many blocks have it, and whose figures it names."""
    return f"{problem['blocks']} blocks, the first: {problem['text']}" if problem["blocks"] else str(problem["text"])


def _row(cell: dict[str, Any], columns: dict[str, str]) -> list[str]:
    summary, label = cell["summary"], _label(cell)
    figures = [format_metric(name, summary[name]) for name in columns.values()]
    return [label, str(cell["repeat"] + 1), *figures]


def _label(cell: dict[str, Any]) -> str:
    """The cell's levels, in words."""
    if cell["role"] == "saturation":
        return f"saturation: {level_label(*list(cell['factors'].items())[-1])}" if cell["factors"] else "saturation"
    return ", ".join(level_label(path, level) for path, level in cell["factors"].items()) or "the model as it is"
