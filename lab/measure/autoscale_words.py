"""An autoscaling run in sentences, and as a table: who kept the objective, at which price, and how far the simulator
was off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.measure.words import format_fraction, format_seconds, join, plural

Found = Mapping[str, Any]
CHEAPER = 0.25
"""What scaling must save of the instance-seconds of as many as are ever needed, for the hypothesis to hold."""


def ways(found: Found) -> list[dict[str, Any]]:
    """Each level once, of its repeats the one whose p95 is the middle one."""
    labels = list(dict.fromkeys(block["label"] for block in found["blocks"]))
    picked = []
    for label in labels:
        own = [block for block in found["blocks"] if block["label"] == label]
        own.sort(key=lambda block: block["measured"]["p95_s"] or 0.0)
        picked.append(own[(len(own) - 1) // 2])
    return picked


def holds(found: Found) -> bool | None:
    """Whether some rules keep the objective at a quarter less than the largest fixed number that does."""
    every = ways(found)
    fixed = [way for way in every if not way["scales"] and _keeps(way)]
    if not fixed or not any(way["scales"] for way in every):
        return None
    price = min(way["measured"]["instance_s"] / way["seconds"] for way in fixed)
    return any(
        _keeps(way) and way["measured"]["instance_s"] / way["seconds"] <= (1 - CHEAPER) * price
        for way in every
        if way["scales"]
    )


def sentences(found: Found) -> list[str]:
    every = ways(found)
    said = []
    kept, missed = [w for w in every if _keeps(w)], [w for w in every if not _keeps(w)]
    if kept:
        cheapest = min(kept, key=lambda way: way["measured"]["instances_mean"])
        said.append(
            f"{_capital(cheapest['label'])} keeps the objective at the least: {_instances(cheapest)} on average, "
            f"{format_fraction(cheapest['measured']['share'])} in time{_beside(cheapest, kept)}."
        )
    if missed:
        shares = [f"{way['label']} ({format_fraction(way['measured']['share'])})" for way in missed]
        said.append(f"In time for too few: {join(shares)}.")
    ups = [way["up_s"] for way in every if way["up_s"] is not None]
    if ups:
        said.append(
            f"An instance was there {format_seconds(median(ups))} after it was asked for; a burst waits for that, and "
            "for the window before it in which nobody knows yet."
        )
    return [*said, *simulator(found)]


def simulator(found: Found) -> list[str]:
    off = [abs(block["off_p95"]) for block in found["blocks"] if block["scales"] and block["off_p95"] is not None]
    if not off:
        return []
    return [
        f"The simulator's p95, modelled from the arrivals, service times and starts alone, was off by "
        f"{format_fraction(median(off))} at the median of {plural(len(off), 'scaled block')}, "
        f"{format_fraction(max(off))} at most."
    ]


def table(found: Found) -> list[list[str]]:
    """Rows of text for a terminal, the header first."""
    rows = [["instances", "in time", "p95", "p95 modelled", "mean instances", "most", "changes"]]
    for block in found["blocks"]:
        measured, simulated = block["measured"], block["simulated"]
        rows.append(
            [
                block["label"],
                format_fraction(measured["share"]),
                format_seconds(measured["p95_s"]),
                format_seconds(simulated["p95_s"]),
                f"{measured['instances_mean']:.2f}",
                str(measured["most"]),
                str(measured["changes"]),
            ]
        )
    return rows


def _keeps(way: Mapping[str, Any]) -> bool:
    share = way["measured"]["share"]
    return share is not None and bool(share >= way["goal"])


def _instances(way: Mapping[str, Any]) -> str:
    return f"{way['measured']['instances_mean']:.2f} instances"


def _beside(cheapest: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> str:
    others = [way for way in kept if way["label"] != cheapest["label"]]
    if not others:
        return ""
    return "; " + join([f"{way['label']}: {way['measured']['instances_mean']:.2f}" for way in others])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
