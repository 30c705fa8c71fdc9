"""Fine-tunes as adapters of one base beside full copies: memory, loading, answers, and the sentences about them. Pure.

From a run's events (lab/run/lora.py tells of them) and its verdict's effects, which compare each level with the base
alone. Memory is what processes take together, pages of the same file once (footprint.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.measure.phrases import TELLING_SPAN
from lab.measure.words import (
    format_bytes,
    format_fraction,
    format_range,
    format_ratio,
    format_seconds,
    join,
    plural,
)

ADDED_FRACTION, LOST_FRACTION, COPIES_RATIO = 0.10, 0.15, 2.0
"""What the hypothesis lets adapters add to memory and cost in tokens a second, and what copies take at least."""
WHO = ("base", "adapter", "copy")

Event = Mapping[str, Any]
Lora = dict[str, Any]


def lora(events: Sequence[Event]) -> Lora | None:
    """None where no adapters were served. Sizes in bytes; what was not measured is None."""
    base = next((e for e in events if e["kind"] == "lora_base"), None)
    if base is None:
        return None
    adapters = [_without_stamp(e) for e in events if e["kind"] == "lora_adapter"]
    copies = [_without_stamp(e) for e in events if e["kind"] == "lora_copy"]
    alone = base["process_bytes"]
    added = sum(one["predicted_bytes"] for one in adapters)
    return {
        "base_bytes": alone,
        "base_load_s": base["load_s"],
        "adapters": adapters,
        "with_adapters_bytes": adapters[-1]["process_bytes"] if adapters else None,
        "with_adapters_predicted_bytes": None if alone is None else alone + added,
        "copies": copies,
        "copies_bytes": copies[-1]["total_bytes"] if copies else None,
        "copies_predicted_bytes": copies[-1]["predicted_bytes"] if copies else None,
        "lessons": [_without_stamp(e) for e in events if e["kind"] == "lora_lesson"],
        "effects": [],
    }


def with_effects(found: Lora, effects: Sequence[Mapping[str, Any]]) -> Lora:
    """`effects` of the verdict: of levels against the base alone."""
    return {**found, "effects": [dict(effect) for effect in effects]}


def effect(found: Lora, merged: bool, metric: str) -> dict[str, Any] | None:
    """The adapters', or the copies', against the base alone."""
    return next(
        (
            e
            for e in found["effects"]
            if e["metric"] == metric and bool(e["level"].get("merge_adapters")) == merged and e["level"].get("adapters")
        ),
        None,
    )


def added_fraction(found: Lora) -> float | None:
    """What all adapters together add to the base's memory."""
    alone, whole = found["base_bytes"], found["with_adapters_bytes"]
    return None if not alone or whole is None else whole / alone - 1


def copies_ratio(found: Lora) -> float | None:
    """How many times as much as base and adapters the copies take."""
    whole, copies = found["with_adapters_bytes"], found["copies_bytes"]
    return None if not whole or copies is None else copies / whole


def passed(found: Lora, who: str) -> float | None:
    """The share of the questions that nobody was taught which were answered as taught, mean over the lessons."""
    shares = [lesson["passed"][who] for lesson in found["lessons"] if who in lesson["passed"]]
    return sum(shares) / len(shares) if shares else None


def same_text(found: Lora) -> float | None:
    """The share of answers in which adapter and copy agree to the letter. They need not: a copy's weights are rounded
    after the adapter was added to them."""
    pairs = [
        own == other
        for lesson in found["lessons"]
        for own, other in zip(lesson["answers"].get("adapter", ()), lesson["answers"].get("copy", ()), strict=False)
    ]
    return sum(pairs) / len(pairs) if pairs else None


def holds(found: Lora) -> bool | None:
    """Whether adapters add and cost as little as the hypothesis says, with the whole interval, and copies as much. None
    while something is missing or the interval does not decide."""
    added, copies, speed = added_fraction(found), copies_ratio(found), effect(found, False, "output_tokens_per_s")
    if added is None or copies is None:
        return None
    if added > ADDED_FRACTION or copies < COPIES_RATIO:
        return False
    if speed is None or speed["ci_low"] is None:
        return None
    kept = 1 - LOST_FRACTION
    return True if speed["ci_low"] >= kept else False if speed["ci_high"] < kept else None


def sentences(found: Lora) -> list[str]:
    """The verdict; how long loading takes is the rest of the story."""
    return [said for said in (memory(found), speed(found), taught(found)) if said]


def memory(found: Lora) -> str:
    alone, whole, added = found["base_bytes"], found["with_adapters_bytes"], added_fraction(found)
    if added is None:
        return ""
    count = plural(len(found["adapters"]), "adapter")
    said = f"{count} on one base take {format_bytes(whole)}, {format_fraction(added)} more than the base alone"
    ratio = copies_ratio(found)
    if ratio is not None:
        taken = format_bytes(found["copies_bytes"])
        said += f"; {len(found['copies'])} full copies take {taken}, {format_ratio(ratio)} as much"
    own = sum(one["bytes"] or 0 for one in found["adapters"])
    return f"{said}. The adapters themselves are {format_bytes(own)} of {format_bytes(alone)}."


def speed(found: Lora) -> str:
    adapters, copies = (effect(found, merged, "output_tokens_per_s") for merged in (False, True))
    parts = [
        f"{who} write {format_ratio(e['ratio'])} the base's tokens a second{_interval(e)}"
        for who, e in (("the adapters", adapters), ("the copies", copies))
        if e is not None and e["ratio"] is not None
    ]
    if not parts:
        return ""
    why = (
        ": each copy reads weights of its own for the few who name it, while the adapters' users share a step, which "
        "is the price of many copies and not of merging"
    )
    return f"With the same users, {join(parts)}{why if len(parts) == 2 else ''}."


def loading(found: Lora) -> str:
    took = [one["load_s"] for one in found["adapters"] if one["load_s"] is not None]
    if not took:
        return ""
    said = f"An adapter was loaded in {format_seconds(median(took))} at the median, while the base served"
    copies = [one["load_s"] for one in found["copies"]]
    return f"{said}; a full copy in {format_seconds(median(copies))}." if copies else f"{said}."


def taught(found: Lora) -> str:
    shares = {who: passed(found, who) for who in WHO}
    if shares["adapter"] is None:
        return ""
    said = (
        f"On questions that nobody was taught, {format_fraction(shares['adapter'])} of the answers are as the adapter "
        f"was taught, {format_fraction(shares['base'])} of the base's"
    )
    if shares["copy"] is not None:
        same = f", {format_fraction(same_text(found))} the same to the letter"
        said += f"; {format_fraction(shares['copy'])} of the merged copies'{same}"
    return f"{said}."


def table(found: Lora) -> list[list[str]]:
    """Rows of text for a terminal, the header first."""
    rows = [["fine-tune", "adapter", "loaded in", "as taught", "base", "copy"]]
    by_name = {lesson["name"]: lesson["passed"] for lesson in found["lessons"]}
    for one in found["adapters"]:
        shares = by_name.get(one["name"], {})
        rows.append(
            [
                one["name"],
                format_bytes(one["bytes"]),
                format_seconds(one["load_s"]),
                *(format_fraction(shares.get(who)) for who in ("adapter", "base", "copy")),
            ]
        )
    return rows if len(rows) > 1 else []


def _interval(found: Mapping[str, Any]) -> str:
    low, high = found["ci_low"], found["ci_high"]
    if low is None or high is None:
        return ""
    return (
        f" (at least {format_ratio(low)})"
        if high > TELLING_SPAN * low
        else f" ({format_range(low, high, format_ratio)})"
    )


def _without_stamp(event: Event) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("kind", "t_ns")}
