"""The page Design review: a run and setting under review, requirements, evidence, questions, decision, export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.measure import cost, redteam, review
from lab.measure.cost import Use
from lab.measure.redteam import Question
from lab.measure.review import Requirements, Row
from lab.measure.words import plural
from lab.run import waivers
from lab.run.folder import RunFolder
from lab.run.sides import Name
from lab.show.charts.review import used
from lab.show.grid import Grid
from lab.show.report_html import to_html
from lab.show.report_markdown import to_markdown
from lab.show.review import record
from lab.show.ui import chart, picking, pricing, reads
from lab.show.ui.cards import Card, cards
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


def page() -> None:
    st.title("Is it ready?")
    folder = picking.run("Run under review", "v_run")
    if folder is None:
        st.info("Nothing was measured yet, so there is nothing to review.", icon=":material/info:")
        st.page_link("pages/start.py", label="Go to Start", icon=":material/home:")
        return
    document = reads.document(folder)
    experiment = folder.document["experiment"]
    judge = experiment["judge"]
    grid = Grid.of(document, judge and judge["factor"], judge and judge["baseline"])
    if not grid.levels:
        st.info("No cell of this run was measured, so it is no evidence for anything.", icon=":material/info:")
        return
    level, load = _setting(grid)
    summary = cost.typical(grid.at(level, load))
    if summary is None:
        st.info(f"{level} was not measured at {load}; choose another load.", icon=":material/info:")
        return
    asked = _requirements(parse(Slo, experiment["slo"]), generates=summary.get("output_tokens_per_s") is not None)
    device = str(experiment["model"].get("device", "cpu"))
    price = pricing.choose(document["environment"], device) if asked.budget_usd is not None else None
    rows = review.rows(asked, summary, quality=_quality(document, grid, level, load), price=price)
    caveats = pricing.caveats(price, Use(), document["environment"], device) if price is not None else ()
    questions = redteam.questions(document, experiment, caveats)
    place = st.container()
    waived = waivers.told(folder, questions)
    after = redteam.waive(questions, waived)
    _questions(folder, questions)
    decision = review.decide(rows, after)
    setting = ", ".join(words for words in (level, load) if words not in ("as it is", "this load")) or "as it is"
    with place:
        st.markdown(f"#### {_plain(decision.text)}")
        cards(_cards(rows, after))
        if rows:
            _evidence(rows)
        st.subheader("What a sceptic would ask")
    st.subheader("Decision record")
    title = st.text_input("Title", placeholder=f"{experiment['model']['name']}, {setting}", key="v_title")
    _export(
        partial(
            record,
            title or f"Review of {experiment['model']['name']}, {setting}",
            setting,
            decision,
            rows,
            [Name(folder.run_id)],
            price=price,
            waivers=waived,
        ),
        folder,
    )


def _setting(grid: Grid) -> tuple[str, str]:
    """The level and the load that the evidence is from."""
    left, right = st.columns(2)
    others = grid.others() or grid.levels
    level = left.selectbox(
        "Setting", grid.levels, index=grid.levels.index(others[-1]), key="v_level", bind="query-params"
    )
    loads = [load for load in grid.loads if grid.at(level, load)]
    load = right.selectbox("Measured at", loads or grid.loads, key="v_load", bind="query-params")
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
            st.markdown(f"{BADGES[row.status]} **{row.name}**: {_plain(row.asked)}. Measured: {_plain(row.evidence)}.")
    with right:
        chart.show(used(rows), key="v_used")


def _questions(folder: RunFolder, questions: Sequence[Question]) -> None:
    """The open questions, each with a place to waive it or what it was waived for, then those that are answered."""
    kept = waivers.kept(folder)
    if refused := st.session_state.pop("v_refused", None):
        st.error(refused, icon=":material/error:")
    for question in questions:
        if question.status != "open":
            continue
        waiver = kept.get(question.code)
        icon = ":material/help:" if waiver is None else ":material/gavel:"
        label = question.question if waiver is None else f"{question.question} (waived by {_plain(waiver.who)})"
        with st.expander(label, icon=icon, key=f"v_q_{question.code}"):
            st.markdown(_plain(question.answer))
            if waiver is None:
                _waive(folder, questions, question)
                continue
            st.markdown(f":gray-badge[:material/gavel: waived] {_plain(str(waiver))}")
            st.button(
                "Take it back",
                key=f"v_back_{question.code}",
                icon=":material/undo:",
                on_click=_written,
                args=(waivers.take_back, folder.run_id, question.code, waiver.who),
            )
    answered = [question for question in questions if question.status == "answered"]
    if answered:
        with st.expander(f"{plural(len(answered), 'question')} that the run answers", icon=":material/check:"):
            for question in answered:
                st.markdown(f"- **{question.question}** {_plain(question.answer)}")


def _waive(folder: RunFolder, questions: Sequence[Question], question: Question) -> None:
    """A name and a reason, kept with the run once both are there."""
    names = (f"v_who_{question.code}", f"v_why_{question.code}")

    def keep() -> None:
        who, why = (st.session_state.get(name) or "" for name in names)
        _written(waivers.waive, folder.run_id, questions, question.code, who, why)

    with st.form(f"v_form_{question.code}", border=False):
        left, middle, right = st.columns([2, 5, 2], vertical_alignment="bottom")
        left.text_input("Waived by", key=names[0], placeholder="your name")
        middle.text_input("Because", key=names[1], placeholder="what makes it acceptable")
        right.form_submit_button("Waive it", icon=":material/gavel:", on_click=keep, width="stretch")
    st.caption("Kept with the run: every report, this page in any browser and `lab review` show it by name.")


def _written(write: Callable[..., object], *arguments: Any) -> None:
    try:
        write(*arguments)
    except LabError as error:
        st.session_state["v_refused"] = str(error)


def _export(made: partial[Any], folder: RunFolder) -> None:
    def written(form: Any) -> str:
        try:
            return str(form(made()))
        except LabError as error:
            return f"No record: {error}\n"

    forms = (("One HTML file", to_html, "html", "text/html"), ("Markdown", to_markdown, "md", "text/markdown"))
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


def _plain(text: str) -> str:
    return text.replace("$", "\\$").replace("~", "\\~")
