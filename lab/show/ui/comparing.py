"""The page Compare: a baseline and up to five other settings, whatever runs they come from.

First paint is one sentence, what differs, and two charts; everything else is one choice away, and each choice stands
in the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from lab.errors import LabError
from lab.measure.records import OK
from lab.measure.sides import LETTERS, Difference, Side, differences, labels, value_label
from lab.measure.versus import Versus, metrics, versus
from lab.measure.words import join, level_label, metric_label
from lab.run import sides as stored
from lab.run.folder import RunFolder
from lab.run.sides import Name
from lab.show import grid as grids
from lab.show import pooled
from lab.show.charts import batching, compare, distribution
from lab.show.charts.compare import Load, brief
from lab.show.charts.figure import Chart
from lab.show.charts.latency import percentiles
from lab.show.grid import Grid
from lab.show.ui import chart, picking, reads, reporting

FIRST = 4
"""Sides that are drawn until somebody asks for more."""
VIEWS = ("Curve", "Distribution", "Over time", "Where time went", "Memory")
PERCENTILES = {"p50": "latency_p50_s", "p95": "latency_p95_s", "p99": "latency_p99_s"}


def page(names: Sequence[Name]) -> None:
    """Everything below the choice of runs."""
    found = _sides(names)
    if not found:
        return
    called = labels(found)
    with st.container(horizontal=True):
        for place, (name, side) in enumerate(zip(names, found, strict=True)):
            levels = [_levels(factors) for factors in stored.cells(RunFolder.open(side.run_id))]
            if len(levels) > 1:
                picking.cell(name, place, levels, side.cell)
    empty = [label for side, label in zip(found, called, strict=True) if _unmeasured(side)]
    if empty:
        st.error(
            f"Nothing was measured in {join(empty)}, so there is nothing to compare; choose another run or cell.",
            icon=":material/error:",
        )
        return
    if len(found) == 1:
        st.info("Choose a run to compare with this one.", icon=":material/info:")
        _differences(found, called)
        reporting.downloads([Name.read(side.name) for side in found])
        return
    other = _other(called)
    against = _versus(found, called, other)
    st.markdown(f"#### {against.text}")
    for text in against.forbids[1:] if against.effects else ():
        st.markdown(f":orange-badge[:material/report: No verdict] {text}")
    for text in against.read_with:
        st.caption(f":material/info: {text}")
    _differences(found, called)
    if found[0].blocks:
        _charts(found, called, other)
    reporting.downloads([Name.read(side.name) for side in found])


def _unmeasured(side: Side) -> bool:
    """No request of it was answered, or its run ended before it began."""
    return not any(summary.get("throughput_rps") for summary in side.summaries)


def _has(side: Side, field: str) -> bool:
    return any(summary.get(field) is not None for summary in side.summaries)


def _other(called: Sequence[str]) -> int:
    """Which of the others the headline and the pairs are about."""
    if len(called) == 2:
        return 1
    letters = list(LETTERS[1 : len(called)])
    by_letter = dict(zip(letters, called[1:], strict=True))
    chosen = st.segmented_control(
        "Headline",
        letters,
        default=letters[0],
        required=True,
        key="c_other",
        bind="query-params",
        format_func=by_letter.__getitem__,
    )
    return 1 + letters.index(chosen if chosen in letters else letters[0])


def _differences(found: Sequence[Side], called: Sequence[str]) -> None:
    """The fields that differ, as a table; those that are the same one click away."""
    rows = differences(found)
    differing = [row for row in rows if row.differs]
    if differing:
        st.markdown("**What differs**")
        _table(differing, called, "The fields that differ between the runs")
    elif len(found) > 1:
        st.info("They are the same in every setting and on the same machine.", icon=":material/equal:")
    with st.expander(
        f"{len(rows) - len(differing)} fields are the same", type="compact", key="c_same", on_change="rerun"
    ) as same:
        if same.open:
            _table([row for row in rows if not row.differs], called[:1], "The fields that are the same")


def _table(rows: Sequence[Difference], called: Sequence[str], alt: str) -> None:
    columns: dict[str, list[Any]] = {"field": [row.path for row in rows]}
    for n, label in enumerate(called):
        columns[label] = [_value(row, n) for row in rows]
    st.dataframe(pd.DataFrame(columns), hide_index=True, height=min(40 + 35 * len(rows), 260), alt=alt)


def _value(row: Difference, n: int) -> str:
    value = row.values[n]
    if value is None:
        return "–"
    return (
        value_label(row.path, value, row.values)
        if row.path.startswith(("model.", "workload.", "quick"))
        else str(value)
    )


def _charts(found: Sequence[Side], called: Sequence[str], other: int) -> None:
    view = st.segmented_control("Show", VIEWS, default=VIEWS[0], required=True, key="c_view", bind="query-params")
    left, right = st.columns(2, vertical_alignment="bottom")
    scale = "p99"
    if view == VIEWS[0]:
        known = [name for name, field in PERCENTILES.items() if all(_has(side, field) for side in found)]
        scale = left.segmented_control(
            "Percentile",
            list(PERCENTILES),
            default=known[-1] if known else "p99",
            required=True,
            key="c_pct",
            bind="query-params",
        )
    drawn = list(range(len(found)))
    if len(found) > FIRST:
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
    pair = [0, other]
    charts: list[Chart]
    if view == "Curve":
        loads = {called[n]: _loads(found[n], PERCENTILES[scale]) for n in drawn}
        slo_s = found[0].slo.latency_s
        charts = [compare.curves(loads, scale, slo_s), compare.offered_served(loads)]
    elif view == "Distribution":
        values = {brief(called[n]): pooled.of_blocks(found[n].blocks) for n in drawn}
        limit = found[0].slo.latency_s
        charts = [percentiles(values, brief(called[0]), limit, "the chosen cells"), distribution.ecdf(values, limit)]
    elif view == "Over time":
        charts = [_heat(found[n], called[n]) for n in pair]
    elif view == "Where time went":
        laid = _as_grid([found[n] for n in drawn], [called[n] for n in drawn])
        two = _as_grid([found[n] for n in pair], [called[n] for n in pair])
        charts = [
            batching.where_time_goes(laid, grids.ALONE),
            batching.batch_sizes(two, (called[0], called[other]), grids.ALONE),
        ]
    else:
        charts = [compare.memory({called[n]: _memory(found[n]) for n in pair})]
    for n, (column, figure) in enumerate(zip(st.columns(len(charts), gap="large"), charts, strict=True)):
        with column:
            chart.show(figure, key=f"c_chart_{n}")
    with st.expander("Every ratio, with its 95 % interval and noise floor", key="c_all", on_change="rerun") as every:
        if every.open:
            pairs = {called[n]: _versus(found, called, n) for n in range(1, len(found))}
            for metric in metrics(found[0], found[other]):
                effects = {label: v.effects[metric] for label, v in pairs.items() if metric in v.effects}
                if effects:
                    floor = max((v.noise_floors.get(metric, 0.0) for v in pairs.values()), default=0.0) or None
                    chart.show(compare.ratios(effects, called[0], floor), key=f"c_ratio_{metric_label(metric)}")


# --- what is read, kept for a moment -------------------------------------------------------------------------------


def _sides(names: Sequence[Name]) -> list[Side]:
    """The sides that can be read; the others are told."""
    found: list[Side] = []
    like: dict[str, Any] | None = None
    for name in names:
        try:
            folder = RunFolder.open(name.run_id)
            status = folder.status()
            side = _side(str(name), status.state, status.heartbeat_ns, like)
        except LabError as error:
            st.error(str(error), icon=":material/error:")
            return []
        like = like if like is not None else stored.cells(folder)[side.cell]
        found.append(side)
    return found


@st.cache_data(max_entries=12, show_spinner="Reading the records")
def _side(name: str, state: str, heartbeat_ns: int, like: dict[str, Any] | None) -> Side:
    # state and heartbeat are part of the key, as in reads.document.
    asked = Name.read(name)
    return stored.side(asked, reads.document(RunFolder.open(asked.run_id)), like=like)


def _versus(found: Sequence[Side], called: Sequence[str], n: int) -> Versus:
    a, b = found[0], found[n]
    return _compared(a.name, b.name, called[0], called[n], a.state + b.state, _a=a, _b=b)


@st.cache_data(max_entries=32, show_spinner="Comparing")
def _compared(a: str, b: str, label_a: str, label_b: str, states: str, *, _a: Side, _b: Side) -> Versus:
    return versus(_a, _b, label_a, label_b)


# --- what charts are drawn from ------------------------------------------------------------------------------------


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
        attained = middle["slo_attainment_fraction"]
        loads.append(
            Load(
                _levels({p: v for p, v in factors.items() if p.startswith("workload.arrival")}),
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


def _levels(factors: dict[str, Any]) -> str:
    return ", ".join(level_label(path, value) for path, value in factors.items()) or "its load"


def _heat(side: Side, label: str) -> Chart:
    """Of the first repeat: several laid over each other would show no moment of any."""
    requests, window = side.blocks[0]
    own = (requests.outcome == OK) & (requests.due_ns >= window.measured_from_ns) & (requests.due_ns < window.end_ns)
    due_s = (requests.due_ns[own] - window.measured_from_ns) / 1e9
    return distribution.heat_map(label, due_s, (requests.done_ns[own] - requests.due_ns[own]) / 1e9, side.slo.latency_s)


def _as_grid(found: Sequence[Side], called: Sequence[str]) -> Grid:
    """The sides laid out as the levels of one factor, for charts of an experiment's levels."""
    cells = [
        {"role": "cell", "factors": {"name": label}, "summary": summary}
        for side, label in zip(found, called, strict=True)
        for summary in side.summaries
    ]
    return Grid.of({"cells": cells}, "name", called[0])


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
