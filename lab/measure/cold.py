"""Cold starts taken apart: each stage with its interval, whether they add up, what each remedy buys and costs. Pure.

From a run's events (lab/run/cold.py): `cold_start` is one start, `cold_cell` what was there before a cell's first one.
A start counts from the moment it is asked for to the end of its first answer, on the owner's clock; its stages are
stamped by the process that starts. So their sum is a check: what is between them is in the whole and in no stage.
Figures are means with Student's 95 % interval over the starts of a cell; of two it would tell nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from lab.measure.compare import compare_figures, student
from lab.measure.levels import same
from lab.measure.start_words import ALL, STAGES, stage_label, start_label
from lab.measure.words import (
    NOT_MEASURED,
    format_bytes,
    format_fraction,
    format_range,
    format_ratio,
    format_seconds,
    join,
    level_label,
    plural,
)

METRIC = "cold_start_s"
SUM_OFF = 0.05
"""Stages that miss more than this share of the whole do not explain it."""
GOAL_RATIO = 0.25
"""What the hypothesis lets remedies leave of a plain cold start."""
FEWEST = 3
"""Starts that an interval needs: Student's t of two is 12.7."""
STILL_RESIDENT = 0.05
"""More of the files than this in memory is no cold page cache."""

Event = Mapping[str, Any]
Cold = dict[str, Any]


def cold(events: Sequence[Event], cells: Sequence[Mapping[str, Any]]) -> Cold:
    """`cells`: of the run's document, as declared. One entry a cell that was tried, in their order; None is not
    measured."""
    found = []
    for index, declared in enumerate(cells):
        own = [e for e in events if e["kind"] == "cold_start" and e["cell"] == index]
        before = next((e for e in events if e["kind"] == "cold_cell" and e["cell"] == index), None)
        if own or before is not None:
            found.append(_cell(index, declared, own, before or {}))
    off = [abs(one["unexplained_fraction"]) for one in found if one["unexplained_fraction"] is not None]
    return {"cells": found, "unexplained_max_fraction": max(off, default=None)}


def _cell(index: int, declared: Mapping[str, Any], starts: Sequence[Event], before: Event) -> Cold:
    ok = [start for start in starts if start.get("error") is None]
    whole = [seconds(start["asked_ns"], start["answered_ns"]) for start in ok]
    names = [name for name in STAGES if any(stage["name"] == name for start in ok for stage in start["stages"])]
    stages = {name: figure([_stage(start, name) for start in ok]) for name in names}
    gaps = [1 - sum(_stages_s(start)) / total for start, total in zip(ok, whole, strict=True)]
    resident = [fraction for start in ok if (fraction := start.get("resident_fraction")) is not None]
    answers = [answer for start in ok for answer in start["steady_s"]]
    return {
        "cell": index,
        "factors": dict(declared["factors"]),
        "start": declared["start"],
        "label": start_label(declared["start"]),
        "model": model_label(declared["model"]),
        "starts": len(ok),
        "seconds": whole,
        "total_s": figure(whole),
        "stages": stages,
        "unexplained_fraction": max(gaps, key=abs, default=None),
        "steady_s": figure(answers),
        "first_answer_s": stages["first_answer"]["mean"] if "first_answer" in stages else None,
        "memory_bytes": _mean([start.get("memory_bytes") for start in ok]),
        "resident_fraction": max(resident, default=None),
        "weight_bytes": before.get("weight_bytes"),
        "kept_bytes": before.get("kept_bytes") or {},
        "parent_bytes": before.get("parent_bytes"),
        "not_measured": before.get("not_measured"),
        "failed": [start["error"] for start in starts if start.get("error") is not None],
    }


def seconds(begin_ns: int, end_ns: int) -> float:
    return (end_ns - begin_ns) / 1e9


def figure(values: Sequence[float | None]) -> dict[str, Any]:
    """{"mean", "low", "high", "n"} with Student's 95 % interval; None where there are too few."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "low": None, "high": None, "n": 0}
    mean = fmean(known)
    if len(known) < FEWEST:
        return {"mean": mean, "low": None, "high": None, "n": len(known)}
    half = student(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return {"mean": mean, "low": max(mean - half, 0.0), "high": mean + half, "n": len(known)}


def _mean(values: Sequence[float | None]) -> float | None:
    mean: float | None = figure(values)["mean"]
    return mean


def _stage(start: Event, name: str) -> float | None:
    own = [seconds(s["begin_ns"], s["end_ns"]) for s in start["stages"] if s["name"] == name]
    return sum(own) if own else None


def _stages_s(start: Event) -> list[float]:
    return [seconds(stage["begin_ns"], stage["end_ns"]) for stage in start["stages"]]


def model_label(model: Mapping[str, Any]) -> str:
    """ "llm, int8": the model and its format."""
    return f"{model['name']}, {level_label('model.precision', model['precision'])}"


# --- what a remedy does -------------------------------------------------------------------------------------------


def effects(found: Cold, judge: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """As a verdict has them (lab/measure/verdict.py): each level of the judged factor against the baseline, for each
    model, on the time of the i-th starts."""
    if judge is None:
        return []
    factor, told = judge["factor"], []
    for one in found["cells"]:
        level, at = _split(one, factor)
        if same(level, judge["baseline"]) or not one["seconds"]:
            continue
        base = baseline_of(found, one, judge)
        effect = compare_figures(base["seconds"] if base else [], one["seconds"], METRIC)
        told.append({"factor": factor, "level": level, "at": at, **dataclasses.asdict(effect)})
    return told


def baseline_of(found: Cold, one: Cold, judge: Mapping[str, Any]) -> Cold | None:
    """The same model's cell at the baseline of the judged factor."""
    _, at = _split(one, judge["factor"])
    for other in found["cells"]:
        level, where = _split(other, judge["factor"])
        if same(level, judge["baseline"]) and same(where, at):
            return dict(other)
    return None


def _split(one: Cold, factor: str) -> tuple[Any, dict[str, Any]]:
    return one["factors"].get(factor), {path: level for path, level in one["factors"].items() if path != factor}


def is_remedied(level: Any) -> bool:
    """Whether a level has every remedy that leaves nothing running but a parent."""
    return isinstance(level, Mapping) and all(level.get(name) for name in ALL) and not level.get("keep_warm")


def holds(told: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether all remedies leave at most a quarter of the first model's plain start, with the whole interval; None
    while that is not decided."""
    effect = next((e for e in told if is_remedied(e["level"])), None)
    if effect is None or effect["ci_low"] is None:
        return None
    return True if effect["ci_high"] <= GOAL_RATIO else False if effect["ci_low"] > GOAL_RATIO else None


# --- in words -----------------------------------------------------------------------------------------------------


def text(found: Cold, told: Sequence[Mapping[str, Any]], judge: Mapping[str, Any] | None) -> str:
    """The verdict: the first model's plain start and what it is made of, then what remedies leave of it, then what
    they cost in memory."""
    measured = [one for one in found["cells"] if one["total_s"]["mean"] is not None]
    if not measured:
        why = next((one["failed"][0] for one in found["cells"] if one["failed"]), "")
        return f"No start was measured. {why}".strip()
    plain = measured[0]
    parts = [_whole(plain)]
    effect = next((e for e in told if is_remedied(e["level"])), None) or (told[0] if told else None)
    remedied = None
    if effect is not None:
        remedied = next(
            (one for one in measured if judge and same(_split(one, judge["factor"])[0], effect["level"])), None
        )
    if remedied is not None and effect is not None and effect["ratio"] is not None:
        called = remedied["label"][0].upper() + remedied["label"][1:]
        parts.append(f"{called}: {_time(remedied['total_s'])}, {_ratio_said(effect)} of that.")
        parts.append(price(remedied))
    return " ".join(part for part in parts if part)


def _whole(plain: Cold) -> str:
    largest = sorted(plain["stages"].items(), key=lambda item: -(item[1]["mean"] or 0.0))[:3]
    total = plain["total_s"]["mean"]
    shares = [
        f"{stage_label(name, plain['start'])} {format_fraction(stage['mean'] / total)}"
        for name, stage in largest
        if stage["mean"]
    ]
    return f"{plain['model']}, {plain['label']}: {_time(plain['total_s'])} to the first answer ({join(shares)})."


def _ratio_said(effect: Mapping[str, Any]) -> str:
    low, high = effect["ci_low"], effect["ci_high"]
    between = "" if low is None or high is None else f" ({format_range(low, high, format_ratio)})"
    return f"{format_ratio(effect['ratio'])}{between}"


def _time(one: Mapping[str, Any]) -> str:
    if one["low"] is None:
        return format_seconds(one["mean"])
    return f"{format_seconds(one['mean'])} ({format_range(one['low'], one['high'], format_seconds)})"


def price(one: Cold) -> str:
    """What its remedies hold while nothing runs; "" where they hold nothing that was measured."""
    parts = [f"{format_bytes(size)} of disk for {_FOR.get(name, name)}" for name, size in one["kept_bytes"].items()]
    if one["parent_bytes"] is not None:
        parts.insert(0, f"{format_bytes(one['parent_bytes'])} of memory for the parent that waits")
    if one["start"].get("keep_warm") and one["memory_bytes"] is not None:
        parts.insert(0, f"{format_bytes(one['memory_bytes'])} of memory for the process that is never let go")
    return f"Its price: {join(parts)}." if parts else ""


_FOR = {"compile_cache": "kept code", "mapped_weights": "packed weights"}


def steady(found: Cold) -> str:
    """The first answer beside those after it, of the first start with all remedies; "" if unknown."""
    for one in found["cells"]:
        usual = one["steady_s"]["mean"]
        if usual and one["first_answer_s"] and is_remedied(one["start"]):
            return (
                f"{one['model']}, {one['label']}: its first answer takes {format_seconds(one['first_answer_s'])}, "
                f"later ones {format_seconds(usual)} (means of {plural(one['starts'], 'start')})."
            )
    return ""


def problems(found: Cold) -> list[str]:
    """What makes the figures doubtful, in sentences."""
    told = []
    for one in found["cells"]:
        what = f"{one['model']}, {one['label']}"
        off = one["unexplained_fraction"]
        if off is not None and abs(off) > SUM_OFF:
            told.append(f"{what}: the stages miss {format_fraction(abs(off))} of the whole; allowed is 5 %.")
        resident = one["resident_fraction"]
        if one["start"]["page_cache"] == "cold" and not one["start"].get("keep_warm"):
            if resident is None and one["starts"]:
                told.append(f"{what}: whether its files had left the page cache could not be seen.")
            elif resident is not None and resident > STILL_RESIDENT:
                told.append(
                    f"{what}: {format_fraction(resident)} of its files were still in the page cache, so its reads are "
                    "not those of a cold one."
                )
        if one["failed"]:
            told.append(f"{what}: {plural(len(one['failed']), 'start')} failed: {one['failed'][0].rstrip('.')}.")
    reasons = dict.fromkeys(one["not_measured"] for one in found["cells"] if one["not_measured"])
    for reason in reasons:
        ways = [f"{one['model']}, {one['label']}" for one in found["cells"] if one["not_measured"] == reason]
        told.append(f"{'; '.join(ways)} {'was' if len(ways) == 1 else 'were'} not measured: {reason}.")
    if any(one["start"]["page_cache"] == "cold" for one in found["cells"]):
        told.append(
            "Cold is said of the weights' files and of kept code. Python and its libraries stay in the page cache, as "
            "other processes map them: a fresh machine would read these too."
        )
    return told


def table(found: Cold) -> list[list[str]]:
    """Rows of text for a terminal, the header first."""
    names = [name for name in STAGES if any(name in one["stages"] for one in found["cells"])]
    header = ["start", "n", *(STAGES[name] for name in names), "whole", "unexplained", "later answers", "memory"]
    rows = [header]
    for one in found["cells"]:
        means = [one["stages"].get(name, {}).get("mean") for name in names]
        rows.append(
            [
                f"{one['model']}, {one['label']}",
                str(one["starts"]),
                *("–" if mean is None else format_seconds(mean) for mean in means),
                format_seconds(one["total_s"]["mean"]) if one["starts"] else NOT_MEASURED,
                format_fraction(one["unexplained_fraction"]),
                format_seconds(one["steady_s"]["mean"]),
                format_bytes(one["memory_bytes"]),
            ]
        )
    return rows
