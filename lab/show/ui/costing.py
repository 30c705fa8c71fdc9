"""The page Cost: what a run's answers cost at a price and an assumed use, and the prices themselves."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from lab.errors import LabError
from lab.measure import cost
from lab.measure.cost import HOUR_S, Use
from lab.measure.cost_words import commitment_label, even_sentence, format_usd, sentence
from lab.measure.prices import FIELDS, STALE_DAYS, Price, written
from lab.measure.words import format_seconds, objective_label
from lab.run import prices
from lab.run.folder import RunFolder
from lab.show.charts.cost import Point, by_load, by_use
from lab.show.grid import Grid
from lab.show.ui import chart, pricing, reads
from lab.show.ui.cards import Card, cards
from lab.show.ui.words import plain
from lab.spec import Slo, parse


def use_form(price: Price) -> Use:
    """How the paid hours are used; assumptions, each with its default at "always in use"."""
    share, copies, on = st.columns([3, 2, 2], vertical_alignment="bottom")
    percent = share.slider(
        "Share of all hours in use, % (assumed)", 1, 100, 100, key="x_use", bind="query-params", persist_state="session"
    )
    most = price.count
    shared = 1
    if most > 1:
        label = f"Copies on its {most} accelerators (assumed)"
        shared = copies.number_input(label, 1, most, 1, key="x_copies", bind="query-params")
    kept_on = price.billing in ("hour", "spot") and on.toggle(
        "Kept on while idle",
        key="x_kept",
        bind="query-params",
        help="Else it is switched off, and not paid, while idle",
    )
    wakes, cold_s, idle_s = 0.0, 0.0, 0.0
    if price.billing == "second":
        first, second, third = st.columns(3)
        wakes = first.number_input("Starts a day", 0.0, 10_000.0, 24.0, key="x_wakes", bind="query-params")
        cold_s = second.number_input("Cold start, s", 0.0, 3_600.0, 30.0, key="x_cold", bind="query-params")
        idle_s = third.number_input("Up while idle, s", 0.0, 3_600.0, 60.0, key="x_idle", bind="query-params")
    return Use(
        utilization=percent / 100,
        kept_on=kept_on,
        copies=shared,
        wakes_per_day=wakes,
        cold_start_s=cold_s,
        idle_s=idle_s,
    )


LIMITS = {
    "latency_s": ("x_within", "An answer within, ms"),
    "ttft_s": ("x_ttft", "The first token within, ms"),
    "itl_s": ("x_itl", "Between tokens, at most, ms"),
}
"""What an objective may limit: (key in the link, label)."""


def objective(folder: RunFolder) -> Slo:
    """What counts as good: the run's own objective, until another limit is given. It is scored from the records, so
    nothing has to run again."""
    own = parse(Slo, folder.document["experiment"]["slo"])
    writes = folder.document["experiment"]["model"]["name"] == "llm"
    offered = [field for field in LIMITS if field == "latency_s" or writes or getattr(own, field) is not None]
    limits: dict[str, float | None] = {}
    for field, column in zip(offered, st.columns(3), strict=False):
        key, label = LIMITS[field]
        declared = getattr(own, field)
        limit_ms = column.number_input(
            f"{label} (0: no limit)",
            0.0,
            3_600_000.0,
            0.0 if declared is None else 1e3 * declared,
            format="%g",
            key=f"{key}_{folder.run_id[-4:]}",  # of this run: another one has an objective of its own
            bind="query-params",
            help=f"The run was measured with {'no limit' if declared is None else format_seconds(declared)}.",
        )
        limits[field] = limit_ms / 1e3 if limit_ms else None
    if not any(limits.values()):
        st.caption(":material/info: Without any limit nothing is good or bad; the run's own objective stands.")
        return own
    return own.model_copy(update=limits)


def of_run(folder: RunFolder, price: Price, use: Use, slo: Slo) -> None:
    """Headline, four figures and two charts for one run, whose answers are good within `slo`."""
    document = reads.rescored(folder, slo)
    experiment = folder.document["experiment"]
    judge = experiment["judge"]
    device = str(experiment["model"].get("device", "cpu"))
    grid = Grid.of(document, judge and judge["factor"], judge and judge["baseline"])
    if not grid.levels:
        st.info("No cell of this run was measured, so there is nothing to divide a price by.", icon=":material/info:")
        return
    every = (grid.baseline, *grid.others()) if judge else grid.levels
    points = {level: _points(grid, level, price, use, slo) for level in every}
    best = _cheapest(points)
    shown = grid.few(best and best[0]) if judge else grid.levels[:4]
    points = {level: points[level] for level in shown}
    place, summary = _at(grid, best, shown)
    found = cost.cost(summary, price, use)
    told = sentence(found, slo, summary.get("slo_attainment_fraction"))
    st.markdown(f"#### {plain(f'{place}: {told[0].lower()}{told[1:]}')}")
    for caveat in pricing.caveats(price, use, document["environment"], device):
        st.caption(f":material/info: {caveat}")
    if any(problem["forbids_verdict"] for problem in summary.get("problems", ())):
        doubt = next(p["text"] for p in summary["problems"] if p["forbids_verdict"])
        st.markdown(f":orange-badge[:material/report: No verdict on these figures] {doubt}")
    same = [row for row in prices.catalogue() if cost.same_machine(row, price) and row != price]
    cards(_cards(found, price, same, use))
    for even in _evens(price, same, use):
        st.markdown(even)
    left, right = st.columns(2, gap="large")
    with left:
        chart.show(by_load(points, grid.baseline, f"within {objective_label(slo)}"), key="x_chart_load")
    with right:
        good = summary.get("good_tokens_per_s") if found.counts_tokens else summary.get("goodput_rps")
        per_hour = good * HOUR_S if good else None
        chart.show(by_use([price, *same], price, use, per_hour, found.unit), key="x_chart_use")


def editor() -> None:
    """The price list: edit, add, import, take away, and back to the lab's own."""
    rows = prices.catalogue()
    today = prices.today()
    stale = sum(row.is_stale(today) for row in rows)
    st.caption(
        f"{len(rows)} prices, {stale} of them older than {STALE_DAYS} days. None was read live: read a price again at "
        f'its source before you rely on it. A row with the accelerator "{cost.THIS_MACHINE}" prices this machine.'
    )
    table = pd.DataFrame([{name: getattr(row, name) for name in FIELDS} for row in rows])
    table.insert(0, "age, days", [row.age_days(today) for row in rows])
    with st.form("x_form", border=False):
        edited = st.data_editor(
            table,
            num_rows="dynamic",
            hide_index=True,
            height=320,
            key="x_table",
            disabled=["age, days"],
            column_config={"usd_per_hour": st.column_config.NumberColumn(format="%.4f")},
            alt="The price list: what is paid an hour for which machine, with source, date and certainty",
        )
        if st.form_submit_button("Keep these prices", icon=":material/save:"):
            _keep(lambda: prices.replace(edited[list(FIELDS)].to_dict("records")))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.download_button(
            "Download",
            written(rows),
            "prices.csv",
            "text/csv",
            key="x_get",
            icon=":material/download:",
            on_click="ignore",
        )
        with st.popover("Import", icon=":material/upload:"):
            given = st.file_uploader("A CSV file with these columns replaces the list", "csv", key="x_file")
            if st.button("Replace the list", key="x_import", disabled=given is None) and given is not None:
                _keep(lambda: prices.take_in(given.getvalue()))
        if prices.own().is_file() and st.button("Back to the lab's own prices", key="x_forget", type="tertiary"):
            _keep(prices.forget)


def _keep(change: Any) -> None:
    try:
        change()
    except LabError as error:
        st.error(str(error), icon=":material/error:")
        return
    st.session_state.pop("x_table", None)
    st.rerun()


def _points(grid: Grid, level: str, price: Price, use: Use, slo: Slo) -> list[Point]:
    points = []
    for load in grid.loads:
        summary = cost.typical(grid.at(level, load))
        if summary is None:
            continue
        found = cost.cost(summary, price, use)
        good = summary.get("good_tokens_per_s") if found.counts_tokens else summary.get("goodput_rps")
        attained = summary.get("slo_attainment_fraction")
        points.append(Point(load, good, found, None if attained is None else attained >= slo.percentile))
    return points


def _cheapest(points: dict[str, list[Point]]) -> tuple[str, str] | None:
    """(level, load) of the least cost at which the objective was met; None when it was met nowhere."""
    met = [
        (point.cost.per_million_good, level, point.load)
        for level, row in points.items()
        for point in row
        if point.met and point.cost.per_million_good is not None
    ]
    return min(met)[1:] if met else None


def _at(grid: Grid, best: tuple[str, str] | None, shown: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The place that the headline is about, in words, with its figures: the cheapest that met the objective, else the
    lowest load of the last level."""
    if best is None:
        load = next(load for load in grid.loads if grid.at(shown[-1], load))
        best = shown[-1], load
    level, load = best
    summary = cost.typical(grid.at(level, load))
    place = f"{level[0].upper()}{level[1:]}"
    return f"{place}, {load}" if len(grid.loads) > 1 else place, dict(summary or {})


def _cards(found: cost.Cost, price: Price, same: list[Price], use: Use) -> list[Card]:
    of = "tokens" if found.counts_tokens else "requests"
    notes = list(found.notes.values())
    why = notes[0] if notes else None
    paid = cost.paid_hours_a_day(price, use)
    return [
        Card(f"A million good {of}", format_usd(found.per_million_good), "within the objective only", why),
        Card(f"A million {of}", format_usd(found.per_million), "in time or not", why),
        Card("An hour of use", format_usd(found.usd_per_useful_hour), f"{paid:.1f} h a day are paid"),
        Card("A day", format_usd(price.usd_per_hour * paid), commitment_label(price)),
    ]


def _evens(price: Price, same: list[Price], use: Use) -> list[str]:
    """Every break-even between ways to pay for this machine, one of which is the chosen one."""
    told = []
    for other in same:
        always, flexible = (price, other) if price.billing == "committed" else (other, price)
        if always.billing == "committed" and flexible.billing in ("hour", "second"):
            told.append(even_sentence(always, flexible, cost.break_even(always, flexible, use)))
    return told
