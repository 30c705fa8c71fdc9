"""The page Cold start & serverless: its two sections, what each runs, and what a finished run shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import streamlit as st

from lab.measure import break_even, start_words
from lab.measure import cold as figures
from lab.measure import serverless as scaling
from lab.measure.start_words import start_label
from lab.measure.words import NOT_MEASURED, format_bytes, format_fraction, format_ratio, format_seconds
from lab.run.folder import RunFolder
from lab.run.text import doubt
from lab.show.charts import cold, serverless
from lab.show.charts.figure import Chart
from lab.show.ui import betting, billing, chart, guide, parts, reads, recording, runs
from lab.show.ui.betting import Wager
from lab.show.ui.cards import Card, cards
from lab.show.ui.comparison import HOLDS
from lab.show.ui.words import told, why_ended
from lab.spec import Experiment

PAGE = "pages/cold_start.py"
PARTS = {"cold_start": "Cold start", "serverless": "Scale to zero"}
DEPTHS = {
    "cold_start": "quick: about two minutes, the language model plain and with remedies. whole: about 25 minutes, "
    "every model in every format; a minute or two for one of them.",
    "serverless": "quick: about two minutes, three rates, rough. whole: about 15 minutes, six rates twice.",
}
MIB = 2**20
REMEDIES = Wager(
    "n",
    "With kept code, mapped weights and a parent that forks: how many seconds will a language model take from no "
    "process to its first answer, compared to a plain start?",
    "Seconds to the first answer",
)
WHY = {
    "cold_start": (
        "A process that starts pays for everything that a running one has already: libraries are imported, weights are "
        "read and laid out as the kernels want them, and code is compiled at its first use. Each remedy keeps the "
        "result of one of these, on disk or in a parent's memory, so what is left is what nobody can keep: a process, "
        "and the first answer itself. What is kept has to be paid for while nobody asks."
    ),
    "serverless": (
        "Whoever comes when no worker is there waits for one to start, and so does everybody who comes meanwhile. How "
        "many those are depends on the gaps between requests and on how long an idle worker stays, not on the mean "
        "rate alone. Paying by the second is cheap while most seconds are empty; once workers hardly ever leave, an "
        "hour of them costs more than a machine that is always on."
    ),
}
NEXT: dict[str, tuple[tuple[str, str, str, dict[str, str]], ...]] = {
    "cold_start": (
        ("pages/cost.py", "What starts and idle seconds cost at a price by the second", ":material/payments:", {}),
        ("pages/memory.py", "Many models behind one budget: swapping in place of starting", ":material/view_cozy:", {}),
    ),
    "serverless": (
        ("pages/patterns.py", "Instances that come and go, but never to zero", ":material/route:",
         {"p_part": "Autoscaling"}),
        ("pages/plan.py", "How many replicas an always-on fleet needs", ":material/query_stats:", {}),
    ),
}  # fmt: skip
DRILLS = (
    "pages/drills.py",
    "Drills on serving: cold starts, scale to zero",
    ":material/school:",
    {"d_deck": "Serving"},
)


def page() -> None:
    """The whole page, about the run in the link."""
    st.title("What does a start from nothing cost, and when is it worth it?")
    part = parts.chosen(PARTS, "n_part")
    experiment = reads.declared(part)
    st.markdown(f"{experiment.question} *The hypothesis:* {experiment.hypothesis}")
    folder = runs.chosen(lambda line: line.experiment == part)
    if part == "cold_start":
        bet, action = st.columns(2, gap="large")
        with bet.container(border=True):
            st.subheader("Predict")
            betting.predict(REMEDIES, experiment.slo)
    else:
        action = st.container()
    with action.container(border=True):
        st.subheader("Run it")
        _form(part, experiment)
    if folder is None and runs.named():
        return
    st.subheader("What happened")
    if folder is None or folder.document["experiment"]["id"] != part:
        st.info("Run it, and what happened will stand here.", icon=":material/info:")
        return
    status = folder.status()
    if status.active:
        _waiting(folder)
        return
    document = reads.document(folder)
    if status.state != "done":
        st.warning(why_ended(status, document), icon=":material/incomplete_circle:")
    _headline(document)
    if document.get("cold"):
        if not guide.hides("verdicts"):
            betting.told(REMEDIES, folder, document)
        _cold(document["cold"])
    if document.get("serverless"):
        _serverless(document["serverless"])
    _doubts(document["problems"])
    st.subheader("Why")
    st.markdown(WHY[part])
    st.markdown("**Try next**")
    for file, label, icon, params in (*NEXT[part], DRILLS):
        st.page_link(file, label=label, icon=icon, query_params=params or None)


def _form(part: str, experiment: Experiment) -> None:
    settings: list[str] = []
    if not guide.hides("settings"):
        settings = _cold_form(experiment) if part == "cold_start" else _serverless_form(experiment)
    depth = st.segmented_control(
        "Depth", ["quick", "whole"], default="quick", required=True, key="n_depth", bind="query-params",
        help=DEPTHS[part],
    )  # fmt: skip
    going = reads.active_runs()
    if going:
        st.caption(f"{going[0].what} is measuring; a second run would disturb it.")
    if st.button(
        "Run it", type="primary", icon=":material/play_arrow:", key="run_starts", disabled=bool(going), width="stretch"
    ):
        bet = betting.placed(REMEDIES) if part == "cold_start" else None
        runs.start(part, settings, quick=depth != "whole", page=PAGE, bet=bet)


def _cold_form(experiment: Experiment) -> list[str]:
    """Which models, and which remedies beside the plain start, each of them a toggle; none chosen: as declared."""
    models = {figures.model_label(level): level for level in experiment.factors["model"]}
    levels = {start_label(level): level for level in experiment.factors["start"] if level}
    toggles = {said: name for name, said in start_words.REMEDIES.items()}
    own = st.pills(
        "With these remedies together", list(toggles), selection_mode="multi", key="n_own", bind="query-params"
    )
    asked = any(name in st.query_params for name in ("n_models", "n_ways"))
    with st.expander("Other models, and every way that is declared", type="compact", expanded=asked):
        names = st.pills("Models", list(models), selection_mode="multi", key="n_models", bind="query-params")
        ways = st.pills(
            "Beside the plain start", list(levels), selection_mode="multi", key="n_ways", bind="query-params"
        )
    st.caption(f"None chosen: quick takes {next(iter(models))}, kept code and all remedies; whole takes all of them.")
    starts = [{}, *(levels[way] for way in ways)]
    if (together := {toggles[said]: True for said in own}) not in starts:
        starts.append(together)
    settings = [f"model={json.dumps([models[name] for name in names])}"] if names else []
    return settings + ([f"start={json.dumps(starts)}"] if len(starts) > 1 else [])


def _serverless_form(experiment: Experiment) -> list[str]:
    """The model, how long a worker stays, how many requests it takes, and what it may hold."""
    assert experiment.serverless is not None  # noqa: S101  only asked for experiments that have it
    columns = st.columns(4, vertical_alignment="bottom")
    name = columns[0].selectbox("Model", ["llm", "embedder", "digits"], key="n_model", bind="query-params")
    own, short = experiment.serverless, experiment.when_quick().serverless
    assert short is not None  # noqa: S101  as above
    idle = columns[1].number_input(
        "Idle timeout, s", 0.1, 600.0, None, 1.0, "%g", key="n_idle", bind="query-params",
        placeholder=f"{short.idle_s:g} quick, {own.idle_s:g} whole",
    )  # fmt: skip
    users = columns[2].number_input(
        "Requests a worker", 1, 64, own.concurrency, key="n_concurrency", bind="query-params"
    )
    limit = columns[3].number_input(
        "Memory limit, MiB", 1, 1_000_000, None, 50, key="n_memory", bind="query-params", placeholder="none"
    )
    settings = [f"serverless.idle_s={idle:g}"] if idle else []
    settings += [f"serverless.concurrency={users}"] if users != own.concurrency else []
    settings += [f"serverless.memory_limit_bytes={limit * MIB}"] if limit else []
    settings += [f"model.name={name}"] if name != "llm" else []
    return settings


def _waiting(folder: RunFolder) -> None:
    @st.fragment(key="starts_waiting")
    def look() -> None:
        with told():
            if not folder.status().active:
                reads.run_lines.clear()
                st.rerun()
            with st.container(border=True):
                recording.progress(folder, reads.run_lines.clear, each_block=False, key="starts_progress")

    look()


def _headline(document: dict[str, Any]) -> None:
    if guide.hides("verdicts"):
        st.caption(guide.UNTOLD)
        return
    verdict = document["verdict"]
    if document.get("cold"):
        st.markdown(HOLDS[verdict["holds"]].format(where=""))
    guide.headline(verdict["text"])


# --- cold start ---------------------------------------------------------------------------------------------------


def _cold(found: figures.Cold) -> None:
    models = cold.models(found)
    if not models:
        return
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    model = str(
        left.segmented_control("Model", models, default=models[0], required=True, key="n_seen", bind="query-params")
    )
    _, likely = cold.pair(found, model)
    labels = [one["label"] for one in found["cells"] if one["model"] == model and one["starts"]][1:]
    label = None
    if labels:
        label = right.segmented_control(
            "Beside the plain start", labels, default=likely["label"] if likely else labels[0], required=True,
            key="n_beside", bind="query-params",
        )  # fmt: skip
    plain, other = cold.pair(found, model, label)
    cards(_cold_cards(plain, other))
    if said := figures.steady(found):
        st.caption(said)
    for number, drawn in enumerate((cold.waterfall(plain, other), cold.ways(found, model))):
        chart.show(drawn, key=f"n_cold_{number}")


def _cold_cards(plain: figures.Cold | None, other: figures.Cold | None) -> list[Card]:
    drawn = []
    if plain is not None:
        drawn.append(Card("Plain", format_seconds(plain["total_s"]["mean"]), f"{plain['starts']} starts"))
    if other is not None:
        of = None if plain is None else other["total_s"]["mean"] / plain["total_s"]["mean"]
        drawn.append(
            Card(
                other["label"].capitalize(),
                format_seconds(other["total_s"]["mean"]),
                _beside_plain(of),
            )
        )
        held, *disk = cold.price_label(other).split(", ")
        drawn.append(Card("Held while nothing runs", held.removesuffix(" of memory"), ", ".join(disk) or "its price"))
        drawn.append(Card("A worker holds", format_bytes(other["memory_bytes"]), "once it has answered"))
    return drawn


def _beside_plain(share: float | None) -> str:
    """ "103× as fast as plain", "1.02× of plain"; "" where there is no plain start."""
    if share is None:
        return ""
    return f"{format_ratio(1 / share)} as fast as plain" if share < 1 else f"{format_ratio(share)} of plain"


# --- scale to zero ------------------------------------------------------------------------------------------------


def _serverless(found: scaling.Found) -> None:
    if found["failed"]:
        st.warning(f"A worker did not come up: {found['failed'][0]}", icon=":material/memory_alert:")
    if not any(block["answered"] for block in found["blocks"]):
        return
    bill = billing.choose()
    for miss in scaling.misses(found):
        st.warning(miss, icon=":material/report:")
    even = break_even.break_even_range(found, bill.by_second.usd_per_hour, bill.rule, bill.always.usd_per_hour)
    checked = "as far as it was off here" if len(even) > 1 else "not checked here"
    first = found["curve"][0] if found["curve"] else None
    cards(
        [
            Card("Cold start", format_seconds(found["cold_s"]["mean"]), f"{found['cold_s']['n']} measured"),
            Card("Warm answer, p50", format_seconds(found["service_s"]), "from arrival"),
            Card(
                "Cold at one a minute",
                NOT_MEASURED if first is None else format_fraction(first["cold_fraction"]),
                "modelled",
            ),
            Card("Break-even", break_even.even_label(even), f"modelled, {checked}"),
        ]
    )
    _side_by_side([serverless.cold_share(found), serverless.tail(found)], "n_scale")
    drawn = serverless.cost(found, bill.by_second.usd_per_hour, bill.rule, bill.always.usd_per_hour)
    left, right = st.columns(2, gap="large")
    with left:
        chart.show(drawn, key="n_cost")
    with right:
        billing.told(bill)


def _side_by_side(charts: Sequence[Chart], key: str) -> None:
    for n, (column, drawn) in enumerate(zip(st.columns(len(charts), gap="large"), charts, strict=True)):
        with column:
            chart.show(drawn, key=f"{key}_{n}")


def _doubts(problems: Sequence[dict[str, Any]]) -> None:
    if not problems:
        return
    with st.expander(f"What makes these figures doubtful ({len(problems)})", icon=":material/report:"):
        for problem in problems:
            remedy = problem["remedy"]
            st.markdown(f"- {doubt(problem)}{f' *{remedy}*' if remedy else ''}")
