"""The page Compare: a baseline and up to five other settings, whatever runs they come from.

First paint is one sentence, what differs beside the ratio that decides, and two charts; everything else is one choice
away (lab/show/ui/views.py), and each choice stands in the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
import streamlit as st

from lab.errors import LabError
from lab.measure.sides import LETTERS, Difference, Side, differences, labels, value_label
from lab.measure.versus import Versus, versus
from lab.measure.words import join
from lab.run import sides as stored
from lab.run.folder import RunFolder
from lab.run.sides import Name
from lab.show.charts import compare
from lab.show.charts.compare import brief
from lab.show.ui import chart, picking, reads, reporting, views

WHOLE_NAME = 1000
"""Characters of a side's name where there is room for all of it."""
MOST_ROWS = 7
"""Of a table of fields; more are scrolled."""


def page(names: Sequence[Name]) -> None:
    """Everything below the choice of runs."""
    found = _sides(names)
    if not found:
        return
    called = labels(found)
    with st.container(horizontal=True):
        for place, (name, side) in enumerate(zip(names, found, strict=True)):
            levels = [views.load_label(factors) for factors in stored.cells(RunFolder.open(side.run_id))]
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
    if against.effects and next(iter(against.effects.values())).ratio is not None:
        left, right = st.columns(2, gap="large")
        with left:
            _differences(found, called)
        with right:
            _decides(against)
    else:
        _differences(found, called)
    if found[0].blocks:
        views.show(found, called, other, partial(_versus, found, called))
    reporting.downloads([Name.read(side.name) for side in found])


def _unmeasured(side: Side) -> bool:
    """No request of it was answered, or its run ended before it began."""
    return not any(summary.get("throughput_rps") for summary in side.summaries)


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
        _table(differing, called, labels(found, WHOLE_NAME), "The fields that differ between the runs")
    elif len(found) > 1:
        st.info("They are the same in every setting and on the same machine.", icon=":material/equal:")
    alike = len(rows) - len(differing)
    label = f"{alike} fields are the same" if len(found) > 1 else f"Its {alike} fields"
    with st.expander(label, type="compact", key="c_same", on_change="rerun") as same:
        if same.open:
            _table([row for row in rows if not row.differs], called[:1], called[:1], "The fields that are the same")


def _decides(against: Versus) -> None:
    """The ratio that decides, with its interval, on what could not have been told from no difference."""
    metric, effect = next(iter(against.effects.items()))
    floor = against.noise_floors.get(metric)
    chart.show(compare.ratios({brief(against.b): effect}, brief(against.a), floor), key="c_decides")


def _table(rows: Sequence[Difference], called: Sequence[str], whole: Sequence[str], alt: str) -> None:
    """A column a side; the pointer on its name tells the `whole` of it."""
    columns: dict[str, list[Any]] = {"field": [row.path for row in rows]}
    for n, label in enumerate(called):
        columns[label] = [_value(row, n) for row in rows]
    told = {short: st.column_config.Column(help=name) for short, name in zip(called, whole, strict=True)}
    height: int | Literal["auto"] = "auto" if len(rows) <= MOST_ROWS else 40 + 35 * MOST_ROWS
    st.dataframe(pd.DataFrame(columns), hide_index=True, height=height, column_config=told, alt=alt)


def _value(row: Difference, n: int) -> str:
    value = row.values[n]
    if value is None:
        return "–"
    return (
        value_label(row.path, value, row.values)
        if row.path.startswith(("model.", "workload.", "quick"))
        else str(value)
    )


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
