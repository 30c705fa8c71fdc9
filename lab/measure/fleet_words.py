"""What happened with many models behind one budget, in sentences: the cliff and its cause, the fit, who slows whom.

Every figure is one of lab/measure/fleet.py's; nothing is computed here but which of them to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from lab.measure.fleet import CLIFF_FRACTION
from lab.measure.words import (
    format_bytes,
    format_count,
    format_fraction,
    format_rate,
    format_ratio,
    format_seconds,
    plural,
)

HARM_FRACTION = 0.25
"""A percentile that grows by less than this beside a busy neighbour is not worth a name."""

SAME_FRACTION = 0.02
"""Two ways to add up memory that differ by less agree."""

Cell = dict[str, Any]


def sentences(fleet: dict[str, Any]) -> list[str]:
    """What there is to say, in reading order; none of what was not measured."""
    return [said for said in (cliff(fleet), fit(fleet), interference(fleet), residue(fleet)) if said]


def by_models(cells: Sequence[Cell]) -> list[tuple[int, Cell]]:
    """(models, the repeat of the middle throughput), in order of models."""
    numbers = sorted({cell["models"] for cell in cells})
    own = {n: sorted((c for c in cells if c["models"] == n), key=lambda c: c["throughput_rps"]) for n in numbers}
    return [(n, own[n][len(own[n]) // 2]) for n in numbers]


def cliff(fleet: dict[str, Any]) -> str:
    """Where throughput breaks down, and why."""
    cells = by_models(fleet["cells"])
    if not cells:
        return ""
    budget = f"a budget of {format_bytes(fleet['budget_bytes'])}"
    all_hit = [(n, cell) for n, cell in cells if not cell["miss_n"] and not cell["swaps"]]
    edge = next(((a, b) for a, b in pairwise(cells) if _falls(a[1], b[1])), None)
    if edge is None:
        if len(all_hit) == len(cells):
            most, last = cells[-1]
            return (
                f"All {plural(most, 'model')} fit into {budget}: every request found its model loaded, and "
                f"{format_rate(last['throughput_rps'])} were served. Nothing was swapped, so there is no cliff to see."
            )
        n, last = cells[-1]
        rate = format_rate(last["throughput_rps"])
        return f"With {n} models {_misses(last)}, and throughput falls gradually, to {rate}."
    (n, before), (more, after) = edge
    drop = before["throughput_rps"] / after["throughput_rps"] if after["throughput_rps"] else None
    fell = f"{format_rate(after['throughput_rps'])}, {format_ratio(drop)} less" if drop else "nothing"
    calm = "every request finds its model loaded" if not before["miss_n"] else _misses(before)
    return (
        f"The cliff lies between {n} and {more} models: with {n}, {calm}, and {format_rate(before['throughput_rps'])} "
        f"are served; with {more}, for which {budget} has no room, {_misses(after)}, and it is {fell}. {_cause(after)}"
    )


def holds(fleet: dict[str, Any]) -> bool | None:
    """Whether throughput falls off a cliff just where the models no longer fit: in every repeat to less than
    CLIFF_FRACTION. None while nothing was measured on both sides of that edge."""
    cells = fleet["cells"]
    inside = [cell["models"] for cell in cells if not cell["miss_n"] and not cell["swaps"]]
    beyond = [cell["models"] for cell in cells if cell["models"] > max(inside, default=10**9)]
    if not inside or not beyond:
        return None
    with_all = [cell["throughput_rps"] for cell in cells if cell["models"] == max(inside)]
    with_more = [cell["throughput_rps"] for cell in cells if cell["models"] == min(beyond)]
    return bool(max(with_more) < CLIFF_FRACTION * min(with_all))


def _falls(before: Cell, after: Cell) -> bool:
    return bool(after["throughput_rps"] < CLIFF_FRACTION * before["throughput_rps"])


def _misses(cell: Cell) -> str:
    missed = 1 - cell["hit_fraction"] if cell["hit_fraction"] is not None else None
    wait = cell["miss_p50_s"]
    waited = f", {format_seconds(wait)} at the median" if wait is not None else ""
    return f"{format_fraction(missed)} of the requests wait for their model to be loaded{waited}"


def _cause(cell: Cell) -> str:
    load, unload, swaps = cell["load_median_s"], cell["unload_median_s"], cell["swaps"]
    if not swaps or load is None:
        return ""
    out = f" and {format_seconds(unload)} to unload the one that makes room" if unload is not None else ""
    hit = "" if cell["hit_p50_s"] is None else f": a hit took {format_seconds(cell['hit_p50_s'])} at the median"
    return (
        f"A swap takes {format_seconds(load)} to load{out}; swaps run one after the other and took "
        f"{format_fraction(cell['swapping_fraction'])} of the time. So the swap, not the model, decides how many "
        f"misses are served a second{hit}, and a user who waits for one asks for nothing else meanwhile."
    )


def fit(fleet: dict[str, Any]) -> str:
    """What the models take together beside what they would take alone, and how well it was predicted."""
    filled = fleet["filled"]
    if len(filled) < 2 or filled[-1]["alone_bytes"] is None:
        return ""
    total, alone = filled[-1]["total_bytes"], sum(entry["alone_bytes"] for entry in filled)
    said = f"{len(filled)} models take {format_bytes(total)} together"
    if alone > 1.02 * total:
        said += f", not the {format_bytes(alone)} that they show one by one: pages of the same libraries are there once"
    error = fleet["fit_error_fraction"]
    if error is not None:
        said += f". Predicted before loading: {format_fraction(abs(error))} {'more' if error > 0 else 'less'}"
    pss = filled[-1]["pss_bytes"]
    if pss and abs(pss / total - 1) > SAME_FRACTION:
        strangers = ", which divides a page by all who map it, other programs too" if pss < total else ""
        said += f". The kernel's own sum, PSS, is {format_bytes(pss)}{strangers}"
    slowest = max(filled, key=lambda entry: entry["load_s"])
    return (
        f"{said}. Loading took {format_seconds(median(entry['load_s'] for entry in filled))} at the median "
        f"({format_seconds(slowest['load_s'])} for {slowest['model']}), the first answer "
        f"{format_seconds(median(entry['first_answer_s'] for entry in filled))}."
    )


def interference(fleet: dict[str, Any]) -> str:
    """The worst pair, by the highest percentile that both of its blocks have enough answers for."""
    worst: tuple[float, str] | None = None
    compared = 0
    for pair in fleet["pairs"]:
        alone = next((p for p in fleet["pairs"] if p["victim"] == pair["victim"] and p["disturber"] is None), None)
        if pair["disturber"] is None or alone is None:
            continue
        name = next((p for p in ("p99", "p95", "p50") if pair[f"{p}_s"] and alone[f"{p}_s"]), None)
        if name is None:
            continue
        compared += 1
        ratio = pair[f"{name}_s"] / alone[f"{name}_s"]
        text = (
            f"{pair['disturber']} at work raises {name} of {pair['victim']} from "
            f"{format_seconds(alone[f'{name}_s'])} to {format_seconds(pair[f'{name}_s'])} ({format_ratio(ratio)})"
        )
        worst = max(worst or (0.0, ""), (ratio, text))
    if worst is None:
        return ""
    if worst[0] < 1 + HARM_FRACTION:
        return f"No model slows another by more than {format_fraction(HARM_FRACTION)}, in {compared} pairs."
    return f"Who slows whom: {worst[1]}, the worst of {compared} pairs."


def residue(fleet: dict[str, Any]) -> str:
    left = fleet["residue_fraction"]
    if left is None:
        return ""
    return (
        "After everything was unloaded, nothing of the models' memory was left."
        if left == 0
        else f"After everything was unloaded, {format_fraction(left)} of the models' memory was left."
    )


def table(fleet: dict[str, Any]) -> list[list[str]]:
    """Rows of text for a terminal: one a block, the header first."""
    rows = [["models", "hits", "hit p50", "hit p99", "miss p50", "swaps", "swapping", "throughput"]]
    for cell in fleet["cells"]:
        rows.append(
            [
                format_count(cell["models"]),
                format_fraction(cell["hit_fraction"]),
                format_seconds(cell["hit_p50_s"]),
                format_seconds(cell["hit_p99_s"]),
                format_seconds(cell["miss_p50_s"]),
                format_count(cell["swaps"]),
                format_fraction(cell["swapping_fraction"]),
                format_rate(cell["throughput_rps"]),
            ]
        )
    return rows if len(rows) > 1 else []
