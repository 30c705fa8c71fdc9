"""The same model served in several ways: what each makes of the machine, and which suits whom.

A way of serving (Workload.pattern: online, streaming, batch) keeps a promise of its own. Here every way is held to
every promise, from its records: the share of requests within it, and what an item and a good item cost, in seconds of
the machine and in units of the cheapest (the machine's price falls out of that ratio: it is the same machine). Who
suits a promise is the cheapest of those that keep it. A batch job's users wait for the file and not for a row, so its
promise is a time by which everything is there; `rows_by_then` is how many rows that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lab.measure.objective import good
from lab.measure.quality import wilson
from lab.measure.records import OK, Requests, Window
from lab.measure.summary import Summary
from lab.measure.words import (
    format_count,
    format_fraction,
    format_range,
    format_ratio,
    format_seconds,
    format_setting_s,
    format_token_rate,
    level_label,
    objective_label,
    plural,
)
from lab.spec import Slo, Workload

DEADLINE_S = 1800.0
"""A limit on the whole answer that is no wait of a person or a program any more: half an hour."""
FIGURES = (
    "throughput_rps",
    "output_tokens_per_s",
    "latency_p50_s",
    "latency_p95_s",
    "ttft_p50_s",
    "itl_mean_s",
    "engine_busy_fraction",
    "cpu_mean_fraction",
    "slo_attainment_fraction",
)


@dataclass(frozen=True)
class Served:
    """A way of serving as it was measured: one block a repeat."""

    workload: Workload
    level: Any
    blocks: Sequence[tuple[Requests, Window]]
    summaries: Sequence[Summary]


def patterns(served: Sequence[Served], factor: str) -> dict[str, Any] | None:
    """{ways: [figures of each], targets: [each promise, and how each way keeps it]}; None where no way has a name."""
    served = [one for one in served if one.workload.pattern is not None and one.blocks]
    if not served:
        return None
    ways = [_way(one, level_label(factor, one.level)) for one in served]
    promises: list[Slo] = []
    for one in served:
        if one.workload.slo is not None and one.workload.slo not in promises:
            promises.append(one.workload.slo)
    return {"ways": ways, "targets": [_target(slo, served, ways) for slo in promises]}


def _way(one: Served, label: str) -> dict[str, Any]:
    middle = {name: _middle([getattr(summary, name) for summary in one.summaries]) for name in FIGURES}
    slo = one.workload.slo
    return {
        "label": label,
        "pattern": one.workload.pattern,
        "streams": one.workload.stream,
        "promise": None if slo is None else told(slo),
        "machine_s_per_item": _per(middle["throughput_rps"]),
        **middle,
    }


def _target(slo: Slo, served: Sequence[Served], ways: Sequence[dict[str, Any]]) -> dict[str, Any]:
    held = []
    for one, way in zip(served, ways, strict=True):
        kept = [_kept(requests, window, slo) for requests, window in one.blocks]
        shares = [within / due if due else None for within, due, _ in kept]
        within, due = sum(each[0] for each in kept), sum(each[1] for each in kept)
        low, high = wilson(within, due) if due else (None, None)
        held.append(
            {
                "label": way["label"],
                "share": _middle(shares),
                "n": due,
                "share_low": low,
                "share_high": high,
                "good_rps": _middle([rate for _, _, rate in kept]),
                "measured_s": sum(window.seconds for _, window in one.blocks),
            }
        )
    best = max((own["good_rps"] or 0.0 for own in held), default=0.0)
    for own in held:
        own["machine_s_per_good"] = _per(own["good_rps"])
        own["cost_ratio"] = best / own["good_rps"] if own["good_rps"] else None
        own["keeps"] = own["share"] is not None and own["share"] >= slo.percentile
    keeping = [own for own in held if own["keeps"] and own["cost_ratio"] is not None]
    suits = min(keeping, key=lambda own: own["cost_ratio"])["label"] if keeping else None
    rows = None
    if slo.latency_s is not None and slo.latency_s >= DEADLINE_S:
        rows = max((way["throughput_rps"] or 0.0 for way in ways), default=0.0) * slo.latency_s
    return {
        "promise": told(slo),
        "percentile": slo.percentile,
        "deadline_s": slo.latency_s if rows is not None else None,
        "rows_by_then": rows,
        "ways": held,
        "suits": suits,
    }


def _kept(requests: Requests, window: Window, slo: Slo) -> tuple[int, int, float | None]:
    """(requests due in the window that were good, of how many, good ones a second that ended in it)."""
    within = good(requests, slo)
    due = (requests.due_ns >= window.measured_from_ns) & (requests.due_ns < window.end_ns)
    ended = (requests.done_ns >= window.measured_from_ns) & (requests.done_ns < window.end_ns)
    rate = float((within & ended & (requests.outcome == OK)).sum()) / window.seconds if window.seconds > 0 else None
    return int(within[due].sum()), int(due.sum()), rate


def told(slo: Slo) -> str:
    """ "4 s", "1 s to the first token and 100 ms between tokens", "by 4 h later"."""
    if slo.latency_s is not None and slo.latency_s >= DEADLINE_S:
        return f"a deadline in {slo.latency_s / 3600:g} h"
    return objective_label(slo)


def sentences(found: dict[str, Any]) -> list[str]:
    """Which way suits which promise, in words and numbers."""
    said = []
    for target in found["targets"]:
        suits = next((one for one in target["ways"] if one["label"] == target["suits"]), None)
        if suits is None:
            said.append(f"None of these ways keeps {target['promise']} for {format_fraction(target['percentile'])}.")
            continue
        way = next(one for one in found["ways"] if one["label"] == suits["label"])
        if target["rows_by_then"] is not None:
            rows = format_count(way["throughput_rps"] * target["deadline_s"]) if way["throughput_rps"] else "no"
            reckoned = f"{rows} rows by then{_from(suits)}"
            said.append(f"For {target['promise']}, {suits['label']}: {reckoned}{_cheaper(target, suits)}.")
        else:
            said.append(f"For {target['promise']}, {suits['label']}: {_share(target, suits)}{_cost(suits)}.")
    said += _streaming(found)
    return said


def _share(target: dict[str, Any], suits: dict[str, Any]) -> str:
    """ "100 % within it (74.1 to 100 % by 11 requests, too few to be sure of 95 %)": the 95 % interval (Wilson)."""
    told = f"{format_fraction(suits['share'])} within it"
    if suits.get("share_low") is None:
        return told
    few = f", too few to be sure of {format_fraction(target['percentile'])}"
    few = few if suits["share_low"] < target["percentile"] else ""
    between = format_range(suits["share_low"], suits["share_high"], format_fraction)
    return f"{told} ({between} by {plural(suits['n'], 'request')}{few})"


def _from(suits: dict[str, Any]) -> str:
    """What the rows by the deadline are reckoned from: nobody measured that long."""
    seconds = suits.get("measured_s")
    return f", extrapolated from {format_setting_s(round(seconds, 1))} measured" if seconds else ", extrapolated"


def _cheaper(target: dict[str, Any], suits: dict[str, Any]) -> str:
    """Beside those that could, too."""
    others = [one for one in target["ways"] if one["label"] != suits["label"] and one["cost_ratio"]]
    dear = max(others, key=lambda one: one["cost_ratio"], default=None)
    return "" if dear is None else f"; with {dear['label']} a row costs {format_ratio(dear['cost_ratio'])} as much"


def _cost(suits: dict[str, Any]) -> str:
    if suits["cost_ratio"] is None or suits["cost_ratio"] < 1.005:
        return ", and no other way makes a good item cheaper"
    return f", a good item at {format_ratio(suits['cost_ratio'])} the price of the cheapest"


def _streaming(found: dict[str, Any]) -> list[str]:
    """What streaming does, beside the same load asked for whole answers."""
    for way in found["ways"]:
        if not way["streams"] or way["ttft_p50_s"] is None:
            continue
        load = way["label"].partition(", ")[2]
        whole = next(
            (o for o in found["ways"] if not o["streams"] and load and o["label"].partition(", ")[2] == load), None
        )
        if whole is not None and whole["latency_p50_s"] is not None:
            rates = [format_token_rate(one["output_tokens_per_s"]) for one in (way, whole)]
            return [
                f"At the same load a reader sees the first token after {format_seconds(way['ttft_p50_s'])} instead of "
                f"the whole after {format_seconds(whole['latency_p50_s'])}; the machine makes {rates[0]} and "
                f"{rates[1]}."
            ]
    return []


def table(found: dict[str, Any]) -> list[list[str]]:
    """Rows of text for a terminal, the header first: each way, how long the machine works on an item, and the share
    within each promise with the cost of a good item, in units of the cheapest."""
    promises = [target["promise"] for target in found["targets"]]
    rows = [["way", "tokens/s", "p95", "TTFT p50", "busy", "an item takes", *promises]]
    for way in found["ways"]:
        cells = []
        for target in found["targets"]:
            own = next(one for one in target["ways"] if one["label"] == way["label"])
            cells.append(f"{format_fraction(own['share'])}, {format_ratio(own['cost_ratio'])}")
        rows.append(
            [
                way["label"],
                format_token_rate(way["output_tokens_per_s"]),
                format_seconds(way["latency_p95_s"]),
                format_seconds(way["ttft_p50_s"]),
                format_fraction(way["engine_busy_fraction"]),
                format_seconds(way["machine_s_per_item"]),
                *cells,
            ]
        )
    return rows


def _per(rate_rps: float | None) -> float | None:
    """Seconds of the machine for one, at so many a second."""
    return 1 / rate_rps if rate_rps else None


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
