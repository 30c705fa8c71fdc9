"""What happened with many models behind one budget, in sentences: the cliff and its cause, the fit, who slows whom.

Every figure is one of lab/measure/fleet.py's; nothing is computed here but which of them to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from lab.measure.fleet import CLIFF_FRACTION
from lab.measure.percentile import needed
from lab.measure.phrases import TELLING_SPAN
from lab.measure.words import (
    format_bytes,
    format_count,
    format_fraction,
    format_range,
    format_rate,
    format_ratio,
    format_seconds,
    join,
    plural,
)

HARM_FRACTION = 0.25
"""A percentile that grows by less than this beside a busy neighbour is not worth a name."""

FEW = 100
"""A rate counted from fewer answers is known to one digit, its ratio too."""

SAME_FRACTION = 0.02
"""Two ways to add up memory that differ by less agree."""

Cell = dict[str, Any]


def sentences(fleet: dict[str, Any]) -> list[str]:
    """What there is to say, in reading order; none of what was not measured."""
    return [said for said in (cliff(fleet), tail(fleet), fit(fleet), interference(fleet), residue(fleet)) if said]


def besides(fleet: dict[str, Any]) -> list[str]:
    """The same without the cliff, which is the headline wherever there is one."""
    return [said for said in sentences(fleet) if said != cliff(fleet)]


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
    fell = f"{format_rate(after['throughput_rps'])}, {_drop(fleet, n, more, drop)}" if drop else "nothing"
    calm = "every request finds its model loaded" if not before["miss_n"] else _misses(before)
    return (
        f"The cliff lies between {n} and {more} models: with {n}, {calm}, and {format_rate(before['throughput_rps'])} "
        f"are served; with {more}, for which {budget} has no room, {_misses(after)}, and it is {fell}. {_cause(after)}"
    )


def _answers(cell: Cell) -> int:
    return int(cell["hit_n"] + cell["miss_n"])


def _drop(fleet: dict[str, Any], n: int, more: int, drop: float) -> str:
    """ "about 200× less (180 to 250×; n = 2,700 and 2,650 against 13 and 7)": as exact as the fewer answers are."""
    counts = [[_answers(cell) for cell in fleet["cells"] if cell["models"] == models] for models in (n, more)]
    digits = 1 if min(min(own) for own in counts) < FEW else 2
    known = next((e["interval"] for e in fleet.get("throughput", ()) if e["models"] == [n, more]), None)
    interval = ""
    if known:
        low, high = known
        wide = high > TELLING_SPAN * low
        interval = f"at least {format_ratio(low)}; " if wide else f"{format_range(low, high, format_ratio)}; "
    own, others = (join([format_count(count) for count in side]) for side in counts)
    return (
        f"about {float(f'{drop:.{digits}g}'):,.{0 if drop >= 9.5 else 1}f}× less ({interval}n = {own} against {others})"
    )


def intervals(baseline: Any, effects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times less is served with so many models than with the baseline's, as far as the verdict has it."""
    return [
        {"models": [baseline, e["level"]], "interval": [1 / e["ci_high"], 1 / e["ci_low"]]}
        for e in effects
        if e["factor"] == "workload.models" and e["metric"] == "throughput_rps" and e["ci_low"] and e["ci_high"]
    ]


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
    if cell["hit_fraction"] is None:
        return "no request is answered"
    missed = 1 - cell["hit_fraction"]
    wait = cell["miss_p50_s"]
    waited = f", {format_seconds(wait)} at the median" if wait is not None else ""
    return f"{format_fraction(missed)} of the requests wait for their model to be loaded{waited}"


def _cause(cell: Cell) -> str:
    load, unload, swaps = cell["load_median_s"], cell["unload_median_s"], cell["swaps"]
    if not swaps or load is None:
        return ""
    out = f" and {format_seconds(unload)} to unload the one that makes room" if unload is not None else ""
    at_hand = cell.get("from_host")
    kept = f" ({format_count(at_hand)} of {format_count(swaps)} from host memory, in " if at_hand else ""
    kept += f"{format_seconds(cell['from_host_median_s'])})" if at_hand else ""
    hit = "" if cell["hit_p50_s"] is None else f": a hit took {format_seconds(cell['hit_p50_s'])} at the median"
    return (
        f"A swap takes {format_seconds(load)} to load{kept}{out}; swaps run one after the other and took "
        f"{format_fraction(cell['swapping_fraction'])} of the time. So the swap, not the model, decides how many "
        f"misses are served a second{hit}, and a user who waits for one asks for nothing else meanwhile."
    )


def tail(fleet: dict[str, Any]) -> str:
    """What the slowest misses take, all repeats together; where they are too few for p99, the largest that was seen."""
    missed = [level for level in fleet.get("waited", ()) if level["miss_n"]]
    if not missed:
        return ""
    known = [level for level in missed if level["miss_p99_s"] is not None]
    if not known:
        most = max(missed, key=lambda level: float(level["miss_max_s"]))
        count = max(level["miss_n"] for level in missed)
        return (
            f"The slowest miss took {format_seconds(most['miss_max_s'])}, with {most['models']} models; "
            f"p99 of misses needs {needed(0.99)} of them, and the most were {count:,}."
        )
    told = [f"{format_seconds(level['miss_p99_s'])} with {level['models']} models" for level in known]
    n = join([format_count(level["miss_n"]) for level in known])
    return f"p99 of misses is {join(told)} (n = {n}, all repeats together)."


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
    for field, whose in (("host_bytes", "The machine's"), ("gpu_bytes", "All GPUs'")):
        if grown := filled[-1].get(field):
            said += f". {whose} memory in use, of all programs, grew by {format_bytes(grown)} meanwhile"
    slowest = max(filled, key=lambda entry: entry["load_s"])
    return (
        f"{said}. Loading took {format_seconds(median(entry['load_s'] for entry in filled))} at the median "
        f"({format_seconds(slowest['load_s'])} for {slowest['model']}), the first answer "
        f"{format_seconds(median(entry['first_answer_s'] for entry in filled))}."
    )


def statistic(pairs: Sequence[dict[str, Any]]) -> str | None:
    """The highest percentile that every pair has enough answers for: sentence and matrix tell the same."""
    return next((p for p in ("p99", "p95", "p50") if pairs and all(pair[f"{p}_s"] for pair in pairs)), None)


def interference(fleet: dict[str, Any]) -> str:
    """The worst pair, by `statistic`, and whether chance does as much: no neighbour at work makes anyone faster."""
    name = statistic(fleet["pairs"])
    alone = {pair["victim"]: pair for pair in fleet["pairs"] if pair["disturber"] is None}
    beside = [pair for pair in fleet["pairs"] if pair["disturber"] is not None and pair["victim"] in alone]
    if name is None or not beside:
        return ""
    field = f"{name}_s"
    ratios = [pair[field] / alone[pair["victim"]][field] for pair in beside]
    top, least = (pick(zip(ratios, beside, strict=True), key=lambda found: found[0]) for pick in (max, min))
    (worst, pair), fewest = top, min(p["n"] for p in fleet["pairs"])
    among = plural(len(beside), "pair")
    if worst < 1 + HARM_FRACTION:
        harm = format_fraction(HARM_FRACTION)
        return f"No model slows another by more than {harm} at {name}, in {among} (n ≥ {fewest:,})."
    base = alone[pair["victim"]]
    said = (
        f"Who slows whom: {pair['disturber']} at work raises {name} of {pair['victim']} from "
        f"{format_seconds(base[field])} to {format_seconds(pair[field])} "
        f"({format_ratio(worst)}, n = {base['n']:,} and {pair['n']:,}), the worst of {among}."
    )
    if least[0] * worst > 1:
        return said
    lucky = f"{name} of {least[1]['victim']} beside {least[1]['disturber']} is {format_ratio(least[0])} of alone"
    return f"{said} But {lucky}, which only chance can do: noise is as large as the effect."


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
    rows = [["models", "hits", "hit p50", "hit p99", "miss p50", "miss p99", "swaps", "swapping", "throughput"]]
    for cell in fleet["cells"]:
        rows.append(
            [
                format_count(cell["models"]),
                format_fraction(cell["hit_fraction"]),
                format_seconds(cell["hit_p50_s"]),
                format_seconds(cell["hit_p99_s"]),
                format_seconds(cell["miss_p50_s"]),
                format_seconds(cell["miss_p99_s"]),
                format_count(cell["swaps"]),
                format_fraction(cell["swapping_fraction"]),
                format_rate(cell["throughput_rps"]),
            ]
        )
    return rows if len(rows) > 1 else []
