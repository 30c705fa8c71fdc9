"""The page Design review: a run and setting under review, requirements, evidence, questions, decision, export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.measure import cost, redteam, review
from lab.measure.cost import Use
from lab.measure.prices import Price
from lab.measure.redteam import Question
from lab.measure.review import Decision, Requirements, Row
from lab.run import waivers
from lab.run.folder import RunFolder
from lab.run.sides import Name
from lab.show.charts.review import used
from lab.show.grid import Grid
from lab.show.report_html import to_html
from lab.show.report_json import to_json
from lab.show.report_markdown import to_markdown
from lab.show.review import record
from lab.show.ui import chart, picking, presenting, pricing, reads, waiving
from lab.show.ui.cards import Card, cards
from lab.show.ui.words import plain, when
from lab.spec import Slo, parse

MIB = 2.0**20
BADGES = {
    "met": ":green-badge[:material/check: met]",
    "not met": ":red-badge[:material/close: not met]",
    "cannot be told": ":orange-badge[:material/help: cannot be told]",
    "not measured": ":gray-badge[:material/remove: not measured]",
}
FIELDS: tuple[tuple[str, str, str, float], ...] = (
    # key in the link, field of Requirements, label, field's own unit in one of the label's
    ("v_rate", "rate_rps", "Requests a second", 1.0),
    ("v_latency", "latency_s", "p99 latency, ms", 1e-3),
    ("v_ttft", "ttft_s", "TTFT p95, ms", 1e-3),
    ("v_itl", "itl_s", "ITL p95, ms", 1e-3),
    ("v_errors", "error_fraction", "Errors at most, %", 1e-2),
    ("v_memory", "memory_bytes", "Memory at most, MiB", MIB),
    ("v_loss", "loss_fraction", "Perplexity worse by at most, %", 1e-2),
    ("v_budget", "budget_usd", "Budget, $ a month", 1.0),
)


@dataclass(frozen=True)
class Reviewed:
    """What is under review and what is found of it; `questions` as the run raises them, `after` with its waivers."""

    folder: RunFolder
    document: Mapping[str, Any]
    setting: str
    rows: Sequence[Row]
    questions: Sequence[Question]
    waived: Mapping[str, str]
    price: Price | None

    @property
    def after(self) -> list[Question]:
        return redteam.waive(self.questions, self.waived)

    @property
    def decision(self) -> Decision:
        return review.decide(self.rows, self.after)


def page() -> None:
    st.title("Is it ready?")
    present = presenting.asked()
    stage = st.container()
    with st.expander("What is under review, and what is asked of it") if present else st.container():
        found = _reviewed()
    if found is None:
        return
    if present:
        with stage:
            presenting.show(_slides(found))
        return
    st.markdown(f"#### {plain(found.decision.text)}")
    cards(_cards(found.rows, found.after))
    if found.rows:
        _evidence(found.rows)
    st.subheader("What a sceptic would ask")
    waiving.questions(found.folder, found.questions)
    st.subheader("Decision record")
    model = found.folder.document["experiment"]["model"]["name"]
    title = st.text_input("Title", placeholder=f"{model}, {found.setting}", key="v_title")
    _export(
        partial(
            record,
            title or f"Review of {model}, {found.setting}",
            found.setting,
            found.decision,
            found.rows,
            [Name(found.folder.run_id)],
            price=found.price,
            waivers=found.waived,
        ),
        found.folder,
    )


def _reviewed() -> Reviewed | None:
    """The choices of run, setting and requirements, and what follows from them; None, and why, without a figure."""
    folder = picking.run("Run under review", "v_run")
    if folder is None:
        st.info("Nothing was measured yet, so there is nothing to review.", icon=":material/info:")
        st.page_link("pages/start.py", label="Go to Start", icon=":material/home:")
        return None
    document = reads.document(folder)
    experiment = folder.document["experiment"]
    judge = experiment["judge"]
    grid = Grid.of(document, judge and judge["factor"], judge and judge["baseline"])
    if not grid.levels:
        st.info("No cell of this run was measured, so it is no evidence for anything.", icon=":material/info:")
        return None
    level, load = _setting(grid, *(grid.headline(document, judge) if judge and grid.others() else (None, None)))
    summary = cost.typical(grid.at(level, load))
    if summary is None:
        st.info(f"{level} was not measured at {load}; choose another load.", icon=":material/info:")
        return None
    asked = _requirements(parse(Slo, experiment["slo"]), generates=summary.get("output_tokens_per_s") is not None)
    device = str(experiment["model"].get("device", "cpu"))
    price = pricing.choose(document["environment"], device) if asked.budget_usd is not None else None
    caveats = pricing.caveats(price, Use(), document["environment"], device) if price is not None else ()
    questions = redteam.questions(document, experiment, caveats)
    setting = ", ".join(words for words in (level, load) if words not in ("as it is", "this load")) or "as it is"
    rows = review.rows(asked, summary, quality=_quality(document, grid, level, load), price=price)
    return Reviewed(folder, document, setting, rows, questions, waivers.told(folder, questions), price)


def _slides(found: Reviewed) -> list[presenting.Slide]:
    """The page in five slides."""

    def decision() -> None:
        st.markdown(f"#### {plain(found.decision.text)}")
        cards(_cards(found.rows, found.after))

    def evidence() -> None:
        if not found.rows:
            st.markdown("Nothing is asked of it yet.")
            return
        _evidence(found.rows)

    def listed(*states: str, none: str) -> None:
        some = [f"- **{q.question}** {plain(q.answer)}" for q in found.after if q.status in states]
        st.markdown("\n".join(some) or none)

    def origin() -> None:
        environment = found.document["environment"]
        machine = cost.machine(environment, found.folder.document["experiment"]["model"].get("device", "cpu"))
        st.markdown(f"Measured on {machine}, {when(found.folder.document['created_utc'])}: {plain(found.setting)}.")
        st.code(f"python -m lab report {found.folder.run_id} -o report.html", language=None, wrap_lines=True)

    return [
        ("The decision", decision),
        ("What is required, and the evidence", evidence),
        ("What is still open", partial(listed, "open", "waived", none="Nothing.")),
        ("What the run answers", partial(listed, "answered", none="Nothing that a sceptic would ask.")),
        ("Where this is from", origin),
    ]


def _setting(grid: Grid, told: str | None, decides: str | None) -> tuple[str, str]:
    """The level and the load that the evidence is from; at first those of the verdict's headline, `told` and `decides`,
    where there is one."""
    left, right = st.columns(2)
    first = told or (grid.others() or grid.levels)[-1]
    level = left.selectbox("Setting", grid.levels, index=grid.levels.index(first), key="v_level", bind="query-params")
    loads = [load for load in grid.loads if grid.at(level, load)] or grid.loads
    place = loads.index(decides) if decides is not None and decides in loads else 0
    load = right.selectbox("Measured at", loads, index=place, key="v_load", bind="query-params")
    return level, load


def _requirements(slo: Slo, *, generates: bool) -> Requirements:
    """What the team asks for; an empty field asks nothing. Tokens are asked only of what writes them."""
    st.subheader("What is required")
    shown = [field for field in FIELDS if generates or field[1] not in ("ttft_s", "itl_s", "loss_fraction")]
    given: dict[str, float] = {}
    columns = st.columns(4)
    for n, (key, field, label, unit) in enumerate(shown):
        value = columns[n % 4].number_input(
            label, min_value=0.0, value=None, key=key, bind="query-params", placeholder="not asked", format="%g"
        )
        if value is not None and (value > 0 or field in ("error_fraction", "loss_fraction")):
            given[field] = value * unit
    return Requirements(**given)


def _quality(document: Mapping[str, Any], grid: Grid, level: str, load: str) -> Mapping[str, Any] | None:
    label = next((cell.get("format") for cell in grid.cells_at(level, load)), None)
    told = (document.get("formats") or {}).get(label) or {}
    found: Mapping[str, Any] | None = told.get("quality")
    return found


def _cards(rows: Sequence[Row], questions: Sequence[Question]) -> list[Card]:
    count = {status: sum(row.status == status for row in rows) for status in BADGES}
    states = {status: sum(q.status == status for q in questions) for status in ("open", "waived", "answered")}
    return [
        Card("Requirements met", f"{count['met']} of {len(rows)}", "by measurement"),
        Card("Not met", str(count["not met"]), f"{count['cannot be told'] + count['not measured']} not told"),
        Card("Open questions", str(states["open"]), f"{states['answered']} answered by the run"),
        Card("Waived", str(states["waived"]), "by name and reason"),
    ]


def _evidence(rows: Sequence[Row]) -> None:
    left, right = st.columns([3, 2], gap="large")
    with left:
        for row in rows:
            st.markdown(f"{BADGES[row.status]} **{row.name}**: {plain(row.asked)}. Measured: {plain(row.evidence)}.")
    with right:
        chart.show(used(rows), key="v_used")


def _export(made: partial[Any], folder: RunFolder) -> None:
    def written(form: Any) -> str:
        try:
            return str(form(made()))
        except LabError as error:
            return f"No record: {error}\n"

    forms = (
        ("One HTML file", to_html, "html", "text/html"),
        ("Markdown", to_markdown, "md", "text/markdown"),
        ("JSON", to_json, "json", "application/json"),
    )
    with st.container(horizontal=True):
        for label, form, ending, mime in forms:
            st.download_button(
                label,
                data=partial(written, form),
                file_name=f"review-{folder.run_id}.{ending}",
                mime=mime,
                key=f"v_{ending}",
                icon=":material/download:",
                on_click="ignore",
                help="Decision, evidence, waivers by name, then the whole report with hashes and the command",
            )
