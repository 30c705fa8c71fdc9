"""What Compare draws of its sides, one view at a time: the choice of the view and of what is drawn stands in the link.

A chart of one measurement a side (the heat map, the batch sizes, the memory) is drawn of the baseline and the side
that the headline is about; all others of up to FIRST sides, until somebody asks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from lab.measure.records import OK
from lab.measure.sides import LETTERS, Side
from lab.measure.versus import Versus, metrics
from lab.measure.words import level_label
from lab.run import sides as stored
from lab.run.folder import RunFolder
from lab.show import formats as shown_formats
from lab.show import grid as grids
from lab.show import pooled
from lab.show.charts import batching, compare, distribution, quality
from lab.show.charts import formats as speed
from lab.show.charts.compare import Load, brief
from lab.show.charts.figure import Chart, nothing_to_draw
from lab.show.charts.latency import percentiles
from lab.show.grid import Grid
from lab.show.ui import chart, reads

FIRST = 4
"""Sides that are drawn until somebody asks for more."""
VIEWS = ("Curve", "Distribution", "Over time", "Where time went", "Memory", "Quality", "Ratios")
OF_THE_PAIR = ("Over time", "Memory")
"""Views of the baseline and the headline's side alone."""
PERCENTILES = {"p50": "latency_p50_s", "p95": "latency_p95_s", "p99": "latency_p99_s"}

VersusOf = Callable[[int], Versus]
"""The comparison of a side, by its position, with the first."""


def show(found: Sequence[Side], called: Sequence[str], other: int, versus_of: VersusOf) -> None:
    """The choice of a view and its charts; `other` is the position of the side that the headline is about."""
    view = st.segmented_control("Show", VIEWS, default=VIEWS[0], required=True, key="c_view", bind="query-params")
    left, right = st.columns(2, vertical_alignment="bottom")
    scale = "p99"
    if view == "Curve":
        known = [name for name, field in PERCENTILES.items() if all(_has(side, field) for side in found)]
        scale = left.segmented_control(
            "Percentile",
            list(PERCENTILES),
            default=known[-1] if known else "p99",
            required=True,
            key="c_pct",
            bind="query-params",
        )
    drawn = [0, other] if view in OF_THE_PAIR else list(range(len(found)))
    if len(drawn) > FIRST:
        letters = list(LETTERS[: len(found)])
        chosen = right.pills(
            "Drawn",
            letters,
            selection_mode="multi",
            default=letters[:FIRST],
            key="c_drawn",
            bind="query-params",
        )
        drawn = [letters.index(letter) for letter in chosen or letters[:FIRST]]
    sides = {called[n]: found[n] for n in drawn}
    charts: list[Chart]
    if view == "Curve":
        charts = _curve(sides, scale, found[0].slo.latency_s)
    elif view == "Distribution":
        charts = _distribution(sides, called[0], found[0].slo.latency_s)
    elif view == "Over time":
        charts = [_heat(side, label) for label, side in sides.items()]
    elif view == "Where time went":
        pair = {called[n]: found[n] for n in (0, other)}
        charts = [
            batching.where_time_goes(_as_grid(sides), grids.ALONE),
            batching.batch_sizes(_as_grid(pair), (called[0], called[other]), grids.ALONE),
        ]
    elif view == "Memory":
        charts = [compare.memory({label: _memory(side) for label, side in sides.items()})]
    elif view == "Quality":
        charts = _quality(sides)
    else:
        charts = _ratios([n for n in drawn if n] or [other], found, called, versus_of)
    for first in range(0, len(charts), 2):
        row = charts[first : first + 2]
        for n, (column, figure) in enumerate(zip(st.columns(len(row), gap="large"), row, strict=True), start=first):
            with column:
                chart.show(figure, key=f"c_chart_{view}_{n}")


def _has(side: Side, field: str) -> bool:
    return any(summary.get(field) is not None for summary in side.summaries)


# --- each view ----------------------------------------------------------------------------------------------------


def _curve(sides: dict[str, Side], scale: str, slo_s: float | None) -> list[Chart]:
    loads = {label: _loads(side, PERCENTILES[scale]) for label, side in sides.items()}
    return [compare.curves(loads, scale, slo_s), compare.offered_served(loads)]


def _loads(side: Side, field: str) -> list[Load]:
    """Every load of the side's run at the side's setting: its own cell and those that differ in arrivals only."""
    document = reads.document(RunFolder.open(side.run_id))
    every = stored.cells(RunFolder.open(side.run_id))
    own = _others(every[side.cell])
    loads = []
    for factors in every:
        if _others(factors) != own:
            continue
        summaries = [c["summary"] for c in document["cells"] if c["role"] == "cell" and c["factors"] == factors]
        if not summaries:
            continue
        middle = {
            name: grids.middle(summaries, name)
            for name in ("offered_rps", "throughput_rps", field, "slo_attainment_fraction")
        }
        if factors == every[side.cell]:  # as the headline has it
            for name in ("throughput_rps", field):
                if middle[name] is not None and (value := pooled.whole(side.blocks, name, side.slo)) is not None:
                    middle[name] = value
        attained = middle["slo_attainment_fraction"]
        loads.append(
            Load(
                load_label({p: v for p, v in factors.items() if p.startswith("workload.arrival")}),
                middle["offered_rps"],
                middle["throughput_rps"],
                middle[field],
                grids.why_missing(summaries, field) or "",
                None if attained is None else attained >= side.slo.percentile,
            )
        )
    return loads


def _others(factors: dict[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in factors.items() if not path.startswith("workload.arrival")}


def load_label(factors: dict[str, Any]) -> str:
    """Levels in words: "batching on, 2 ms delay, 80 % of saturation"."""
    return ", ".join(level_label(path, value) for path, value in factors.items()) or "its load"


def _distribution(sides: dict[str, Side], baseline: str, limit_s: float | None) -> list[Chart]:
    values = {brief(label): pooled.of_blocks(side.blocks) for label, side in sides.items()}
    return [percentiles(values, brief(baseline), limit_s, "the chosen cells"), distribution.ecdf(values, limit_s)]


def _heat(side: Side, label: str) -> Chart:
    """Of the first repeat: several laid over each other would show no moment of any."""
    if not side.blocks:
        return nothing_to_draw(f"Latency over time, {label}", "its records are not there")
    requests, window = side.blocks[0]
    own = (requests.outcome == OK) & (requests.due_ns >= window.measured_from_ns) & (requests.due_ns < window.end_ns)
    due_s = (requests.due_ns[own] - window.measured_from_ns) / 1e9
    return distribution.heat_map(label, due_s, (requests.done_ns[own] - requests.due_ns[own]) / 1e9, side.slo.latency_s)


def _as_grid(sides: dict[str, Side]) -> Grid:
    """The sides laid out as the levels of one factor, for charts of an experiment's levels."""
    cells = [
        {"role": "cell", "factors": {"name": label}, "summary": summary}
        for label, side in sides.items()
        for summary in side.summaries
    ]
    return Grid.of({"cells": cells}, "name", next(iter(sides), None))


def _memory(side: Side) -> dict[str, float]:
    """Peak memory of the model's processes in parts; {} where it was not measured."""
    peak = grids.middle(side.summaries, "gpu_memory_peak_bytes") or grids.middle(side.summaries, "memory_peak_bytes")
    if peak is None:
        return {}
    weights = grids.middle(side.summaries, "engine_weight_bytes")
    cache = grids.middle(side.summaries, "engine_cache_bytes")
    base = grids.middle(side.summaries, "memory_base_bytes") or 0.0
    if weights is None:
        return {"before the load": min(base, peak), "added by the load": max(peak - base, 0.0)}
    held = weights + (cache or 0.0)
    return {"weights": weights, "KV cache": cache or 0.0, "the rest of the process": max(peak - held, 0.0)}


def _quality(sides: dict[str, Side]) -> list[Chart]:
    """What each side's format loses, and where speed was counted in tokens, speed beside quality and size."""
    shown = shown_formats.of_sides({brief(label): side for label, side in sides.items()})
    measures = list(dict.fromkeys(one.main.name for one in shown if one.main is not None))
    if len(measures) > 1:  # a perplexity and an accuracy have no axis in common
        return [quality.losses([one for one in shown if one.main and one.main.name == name]) for name in measures]
    charts = [quality.losses(shown)]
    if any(one.tokens_per_s is not None and one.quality is not None for one in shown):
        charts.append(speed.price(shown, "the load of each"))
    return charts


def _ratios(others: Sequence[int], found: Sequence[Side], called: Sequence[str], versus_of: VersusOf) -> list[Chart]:
    """One chart a metric: every other side's ratio to the baseline, with its 95 % interval and noise floor."""
    pairs = {brief(called[n]): versus_of(n) for n in others}
    charts = []
    for metric in dict.fromkeys(name for n in others for name in metrics(found[0], found[n])):
        effects = {label: pair.effects[metric] for label, pair in pairs.items() if metric in pair.effects}
        if effects:
            floor = max((pair.noise_floors.get(metric, 0.0) for pair in pairs.values()), default=0.0) or None
            charts.append(compare.ratios(effects, brief(called[0]), floor))
    return charts or [compare.ratios({}, brief(called[0]))]
