"""An autoscaling run in sentences, and as a table: who kept the objective, at which price, and how far the simulator
was off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.measure.cost import HOUR_S, MILLION
from lab.measure.cost_words import format_usd
from lab.measure.quality import wilson
from lab.measure.words import format_fraction, format_range, format_seconds, join, plural

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
    """Whether some rules keep the objective at a quarter less than the cheapest fixed number that does; None while the
    intervals of the shares in time leave it open."""
    every = ways(found)
    fixed = [way for way in every if not way["scales"] and _keeps(way)]
    if not fixed or not any(way["scales"] for way in every):
        return None
    price = min(way["measured"]["instance_s"] / way["seconds"] for way in fixed)
    cheap = [
        way
        for way in every
        if way["scales"] and way["measured"]["instance_s"] / way["seconds"] <= (1 - CHEAPER) * price
    ]
    surely = [_surely(found, way) for way in cheap]
    if True in surely and any(_surely(found, way) for way in fixed):
        return True
    return False if all(sure is False for sure in surely) else None


def sentences(found: Found) -> list[str]:
    every = ways(found)
    said = []
    kept, missed = [w for w in every if _keeps(w)], [w for w in every if not _keeps(w)]
    if kept:
        cheapest = min(kept, key=lambda way: way["measured"]["instances_mean"])
        said.append(
            f"{_capital(cheapest['label'])} keeps the objective at the least: {_instances(cheapest)} on average, "
            f"{format_fraction(cheapest['measured']['share'])} in time{_sureness(found, cheapest)}"
            f"{_beside(cheapest, kept)}."
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
    labels = [block["label"] for block in found["blocks"]]
    rough = ["One repeat only: take the figures as rough."] if len(set(labels)) == len(labels) > 0 else []
    return [*said, *rough, *simulator(found)]


def simulator(found: Found) -> list[str]:
    off = [abs(block["off_p95"]) for block in found["blocks"] if block["scales"] and block["off_p95"] is not None]
    if not off:
        return []
    return [
        f"The simulator's p95, modelled from the arrivals, service times and starts alone, was off by "
        f"{format_fraction(median(off))} at the median of {plural(len(off), 'scaled block')}, "
        f"{format_fraction(max(off))} at most."
    ]


def costs(found: Found, usd_per_hour: float) -> dict[str, list[str]]:
    """{column: a text for each way}: what its instances cost at a price an hour, and what a million requests in time
    do, by this day's own arrivals."""
    columns: dict[str, list[str]] = {"instances": [], "in time": [], "an hour": [], "a million in time": []}
    for way in ways(found):
        hourly = way["measured"]["instances_mean"] * usd_per_hour
        good_rps = (way["measured"]["share"] or 0.0) * way["requests"] / way["seconds"]
        columns["instances"].append(way["label"])
        columns["in time"].append(format_fraction(way["measured"]["share"]))
        columns["an hour"].append(format_usd(hourly))
        columns["a million in time"].append(format_usd(hourly / HOUR_S / good_rps * MILLION if good_rps else None))
    return columns


def table(found: Found) -> list[list[str]]:
    """Rows of text for a terminal, the header first."""
    rows = [["instances", "in time", "p95", "p95 modelled", "mean instances", "instance-seconds", "most", "changes"]]
    for block in found["blocks"]:
        measured, simulated = block["measured"], block["simulated"]
        rows.append(
            [
                block["label"],
                format_fraction(measured["share"]),
                format_seconds(measured["p95_s"]),
                format_seconds(simulated["p95_s"]),
                f"{measured['instances_mean']:.2f}",
                f"{measured['instance_s']:.0f}",
                str(measured["most"]),
                str(measured["changes"]),
            ]
        )
    return rows


def _keeps(way: Mapping[str, Any]) -> bool:
    share = way["measured"]["share"]
    return share is not None and bool(share >= way["goal"])


def _interval(found: Found, way: Mapping[str, Any]) -> tuple[float, float, int] | None:
    """(low, high, requests): the 95 % interval (Wilson) of the share in time over all repeats; None where nobody
    counted them. Requests of one burst share its fate, so the true one is no narrower."""
    own = [block for block in found["blocks"] if block["label"] == way["label"] and block.get("judged")]
    known = [block for block in own if block["measured"]["share"] is not None]
    count = sum(block["judged"] for block in known)
    if not count:
        return None
    hits = round(sum(block["judged"] * block["measured"]["share"] for block in known))
    return (*wilson(hits, count), count)


def _surely(found: Found, way: Mapping[str, Any]) -> bool | None:
    """Whether the whole interval keeps the objective (True) or misses it (False)."""
    interval = _interval(found, way)
    if interval is None:
        return None
    return True if interval[0] >= way["goal"] else False if interval[1] < way["goal"] else None


def _sureness(found: Found, way: Mapping[str, Any]) -> str:
    """ " (97.9 to 100 % by 180 requests)"."""
    interval = _interval(found, way)
    if interval is None:
        return ""
    low, high, count = interval
    few = "" if low >= way["goal"] else f", too few to be sure of {format_fraction(way['goal'])}"
    return f" ({format_range(low, high, format_fraction)} by {plural(count, 'request')}{few})"


def _instances(way: Mapping[str, Any]) -> str:
    return f"{way['measured']['instances_mean']:.2f} instances"


def _beside(cheapest: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> str:
    others = [way for way in kept if way["label"] != cheapest["label"]]
    if not others:
        return ""
    return "; " + join([f"{way['label']}: {way['measured']['instances_mean']:.2f}" for way in others])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
