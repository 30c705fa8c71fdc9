"""An experiment's page in five blocks: question, bet, run of A against B, what happened, and why with what to try next.

Every page is the same but for what its Topic says and draws (lab/show/ui/topic.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from lab.measure import cost
from lab.measure.answers import all_equal
from lab.measure.words import NOT_MEASURED, format_metric, metric_label
from lab.run.folder import RunFolder
from lab.run.text import as_drawn, doubt
from lab.show.bets import Bet
from lab.show.charts import levels
from lab.show.charts.figure import Chart
from lab.show.grid import Grid, brief, forbidding, why_missing
from lab.show.ui import asking, betting, chart, guide, pricing, reads, recording, runs
from lab.show.ui.cards import Card, cards
from lab.show.ui.topic import Seen, Topic
from lab.show.ui.words import told, when, why_ended
from lab.spec import Slo, parse

HOLDS = {
    True: ":green-badge[:material/check: The hypothesis holds{where}]",
    False: ":orange-badge[:material/close: The hypothesis does not hold]",
    None: ":gray-badge[:material/help: Not decided]",
}
COUNTED_APART = (
    "Served in time counts whole answers: those that ended in the window within every limit. Tokens a second counts "
    "each token written in it, also of answers that came late or are not complete yet: one can rise as the other falls."
)
CHOICES = {
    "saturation_fraction": ("load", "Load, as a share of saturation"),
    "rate_rps": ("load", "Load"),
    "concurrency": ("users", "Users at a time"),
    "output_tokens": ("output", "Answer length"),
    "prompt_tokens": ("prompt", "Prompt length"),
}
"""(key in the link, label) of the choice of a factor's level, by the last part of its path."""


def page(topic: Topic, head: DeltaGenerator | None = None) -> None:
    """The whole page of `topic`, about the run in the link; its title in `head`, where the page has parts to choose
    from below it."""
    experiment = reads.declared(topic.experiment)
    (head or st).title(topic.title)
    st.markdown(f"{experiment.question} *The hypothesis:* {experiment.hypothesis}")
    folder = runs.chosen(lambda line: line.experiment == topic.experiment)
    bet, action = st.columns(2, gap="large")
    with action.container(border=True):
        st.subheader("Run A against B")
        asked = asking.run_form(topic, experiment)
    with bet.container(border=True):
        st.subheader("Predict")
        # The objective of the run that scores the bet: the one shown, else the one that the button starts.
        slo = asked.slo if folder is None else parse(Slo, folder.document["experiment"]["slo"])
        betting.predict(topic, slo)
    if topic.foresight is not None:
        topic.foresight(asked)
    if folder is None and runs.named():
        return
    st.subheader("What happened")
    if folder is None:
        st.info(
            "Place your bet and run A against B. What happened will stand here, beside your bet.",
            icon=":material/info:",
        )
        if own := next((line for line in reads.run_lines() if line.experiment == topic.experiment), None):
            runs.link(own.run_id, topic.experiment, f"What the newest run found: {own.what}, {when(own.created_utc)}")
        return
    if folder.document["experiment"]["id"] != topic.experiment:
        st.info("This run answers no such question; its own page shows it.", icon=":material/info:")
        runs.link(folder.run_id, folder.document["experiment"]["id"], "To its page")
        return
    status = folder.status()
    if status.active:
        _waiting(topic, folder)
        return
    document = reads.document(folder)
    if status.state != "done":
        st.warning(why_ended(status, document), icon=":material/incomplete_circle:")
    seen = _happened(topic, folder, document)
    if seen is not None:
        st.subheader("Why")
        _why(topic, seen)
        st.markdown("**Try next**")
        for link in topic.next(seen.model):
            st.page_link(link.page, label=link.label, icon=link.icon, query_params=dict(link.params) or None)


def _waiting(topic: Topic, folder: RunFolder) -> None:
    """While the run goes on: how far it is, where to watch it, and what can be seen here already."""

    @st.fragment(key="ab_waiting")
    def look() -> None:
        with told():
            if not folder.status().active:
                reads.run_lines.clear()
                st.rerun()
            drawn = topic.meanwhile(folder)
            with st.container(border=True):
                recording.progress(folder, reads.run_lines.clear, each_block=bool(drawn), key="ab_progress")
                if bet := Bet.of(folder.document):
                    st.caption(f"Your bet on it: {bet.words}.")
                st.page_link(
                    "pages/live.py", label="Watch it", icon=":material/monitoring:", query_params={"run": folder.run_id}
                )
            _two_by_two(drawn, f"{topic.prefix}_meanwhile")

    look()


def _happened(topic: Topic, folder: RunFolder, document: dict[str, Any]) -> Seen | None:
    """Headline, score, figures and charts; what they show, None when nothing was measured."""
    judge = folder.document["experiment"]["judge"]
    grid = Grid.of(document, judge["factor"], judge["baseline"])
    if guide.hides("verdicts"):
        st.caption(guide.UNTOLD)
    else:
        _headline(document)
    if not grid.levels:
        _two_by_two(topic.unmeasured(document), f"{topic.prefix}_known")
        return None
    level, load = _choose(topic, grid, *grid.headline(document, judge))
    seen = Seen(folder, document, grid, level, load)
    if not guide.hides("verdicts"):
        betting.told(topic, folder, document)
    for name in dict.fromkeys((level, grid.baseline)):
        for text in forbidding(grid.at(name, load)):
            st.markdown(f":orange-badge[:material/report: No verdict on these figures] {name}: {text}")
    cards([_card(seen, field, label) for field, label in topic.figures.items()])
    if {"goodput_rps", "output_tokens_per_s"} <= set(topic.figures):
        st.caption(COUNTED_APART)
    if offered := as_drawn(document):
        st.caption(offered)
    _two_by_two(topic.happened(seen), f"{topic.prefix}_chart")
    if topic.beside is not None:
        topic.beside(seen)
    (topic.cost or _cost)(seen)
    return seen


def _cost(seen: Seen) -> None:
    """What the level and load that are looked at cost, at a price that can be changed without running anything."""
    summary = cost.typical(seen.grid.at(seen.level, seen.load))
    if summary is None:
        return
    st.subheader("What it costs")
    environment, device = seen.document["environment"], seen.spec.device
    price = pricing.choose(environment, device)
    st.markdown(f"With {seen.level} at {seen.load}:")
    pricing.told(summary, price, cost.Use(), seen.slo, environment, device)
    st.page_link(
        "pages/cost.py",
        label="Every load, idle hours and commitments",
        icon=":material/payments:",
        query_params={"run": seen.folder.run_id, pricing.KEY: price.id},
    )


def _headline(document: dict[str, Any]) -> None:
    verdict = document["verdict"]
    scope = _scope(verdict.get("where") or ()) or _by_repeats(document)
    st.markdown(HOLDS[verdict["holds"]].format(where=scope))
    guide.headline(_without_badge(verdict["text"]))
    answers = document["answers"]
    if answers and (same := all_equal(answers)):
        st.caption(same)
    elif answers:
        st.error("The answers differ, and a faster wrong answer is no gain.", icon=":material/error:")


def _scope(where: Sequence[dict[str, Any]]) -> str:
    """ " at 1 of 2 loads", " at every load"; "" of a single one."""
    holding = sum(load["answer"] == "yes" for load in where)
    if len(where) < 2 or not holding:
        return ""
    return " at every load" if holding == len(where) else f" at {holding} of {len(where)} loads"


def _by_repeats(document: dict[str, Any]) -> str:
    """ ", by one repeat" where there was no other."""
    repeats = {cell["repeat"] for cell in document["cells"] if cell["role"] == "cell"}
    return ", by one repeat" if len(repeats) == 1 else ""


def _without_badge(text: str) -> str:
    """The verdict's text less the words that stand on the badge above it: the headline is what comes after them."""
    said = re.sub(r"^Not decided( yet)?[.:] ", "", text)
    return f"{said[0].upper()}{said[1:]}" if said else ""


def _choose(topic: Topic, grid: Grid, told: str, decides: str) -> tuple[str, str]:
    """The level that is compared with the baseline, and the load: one choice a factor that has one, at first those that
    the headline is about."""
    others = grid.others() or grid.levels
    choices = {path: options for path, options in grid.factors.items() if len(options) > 1}
    columns = iter(st.columns([3, *(2 for _ in choices)], vertical_alignment="bottom"))
    level = next(columns).segmented_control(
        f"Compare {grid.baseline} with",
        others,
        default=told,
        required=True,
        key=f"{topic.prefix}_level",
        bind="query-params",
    )
    words = grid.words_of(decides)
    for path, options in choices.items():
        name = path.rsplit(".", 1)[-1]
        key, label = CHOICES.get(name, (name, metric_label(name).capitalize()))
        words[path] = next(columns).segmented_control(
            label,
            list(options),
            default=words[path],
            required=True,
            key=f"{topic.prefix}_{key}",
            bind="query-params",
            format_func=brief,
        )
    load = grid.load_of(words)
    return level, load if load in grid.loads else decides


def _why(topic: Topic, seen: Seen) -> None:
    """The cause, every comparison with its interval, and what makes the figures doubtful."""
    if cause := topic.cause(seen):
        st.markdown(cause)
    _two_by_two(topic.why(seen), f"{topic.prefix}_why")
    with st.expander("Every comparison, with its 95 % interval", key="ab_all", on_change="rerun") as every:
        if every.open:
            for metric in topic.compared:
                title = f"{metric_label(metric).capitalize()} against {seen.grid.baseline}"
                chart.show(levels.effects(seen.document, seen.grid, metric, title), key=f"ab_effects_{metric}")
    doubts = seen.document["problems"]
    if doubts:
        with st.expander(f"What makes these figures doubtful ({len(doubts)})", icon=":material/report:"):
            for problem in doubts:
                st.markdown(f"- {doubt(problem)}{f' *{remedy}*' if (remedy := problem['remedy']) else ''}")


def _two_by_two(charts: Sequence[Chart], key: str) -> None:
    """Charts in reading order, two a row; a last one without a neighbour has the row to itself."""
    for i in range(0, len(charts), 2):
        row = charts[i : i + 2]
        for n, (column, drawn) in enumerate(zip(st.columns(len(row), gap="large"), row, strict=True), start=i):
            with column:
                chart.show(drawn, key=f"{key}_{n}")


def _card(seen: Seen, field: str, label: str) -> Card:
    summaries, baseline = seen.grid.at(seen.level, seen.load), seen.grid.baseline
    beside = f"{_figure(field, seen.grid.figure(baseline, seen.load, field, seen.level))} with {baseline}"
    effect = seen.grid.effect(seen.document, seen.level, seen.load, field)
    if effect is not None and effect["verdict"] == "no detectable difference":
        beside += ", within noise"
    return Card(
        label, _figure(field, seen.grid.figure(seen.level, seen.load, field)), beside, why_missing(summaries, field)
    )


def _figure(field: str, value: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    return f"{value:.1f}" if field.endswith("_mean") else format_metric(field, value)
