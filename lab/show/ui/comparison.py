"""The batching page's parts: the bet, the run, what happened, and why."""

from __future__ import annotations

from typing import Any

import streamlit as st

from lab.measure.judgement import CellResult
from lab.measure.sharing import sharing
from lab.measure.summary import Summary
from lab.measure.words import NOT_MEASURED, format_metric, metric_label, plural
from lab.run.folder import RunFolder
from lab.run.status import Status
from lab.show import bets
from lab.show.charts import batching as draw
from lab.show.charts.latency import percentiles
from lab.show.grid import Grid, forbidding, middle, why_missing
from lab.show.ui import chart, reads, runs
from lab.show.ui.cards import Card, cards
from lab.show.ui.words import badge, objective, told, why_ended
from lab.spec import Experiment

FIGURES = {
    "goodput_rps": "Served in time",
    "latency_p50_s": "p50 latency",
    "latency_p99_s": "p99 latency",
    "batch_mean": "Mean batch",
}
HOLDS = {
    True: ":green-badge[:material/check: The hypothesis holds]",
    False: ":orange-badge[:material/close: The hypothesis does not hold]",
    None: ":gray-badge[:material/help: Not decided]",
}


def predict(experiment: Experiment) -> tuple[str | None, str]:
    """The bet: which way and how much. It lives in the URL, so it stays with the run that it was placed on."""
    st.markdown(
        "At more load than the unbatched model can take, how many requests will batching serve "
        f"within {objective(experiment.slo)}, compared to batching off?"
    )
    direction = st.segmented_control(
        "Requests served in time", bets.DIRECTIONS, key="b_bet", bind="query-params", label_visibility="collapsed"
    )
    if direction in (None, bets.DIRECTIONS[1]):
        return direction, bets.SIZES[0]
    size = st.select_slider(
        "How many times as many, or as few", bets.SIZES, value="2×", key="b_size", bind="query-params"
    )
    return direction, size


def run_form(experiment: Experiment) -> None:
    """Model, objective and depth; starts only on the button."""
    model = st.selectbox(
        "Model",
        ["digits", "embedder"],
        key="b_model",
        bind="query-params",
        help="digits: a small network, where a call costs more than its arithmetic. embedder: a sentence encoder.",
    )
    left, right = st.columns(2, vertical_alignment="bottom")
    limit_s = experiment.slo.latency_s
    slo_ms = left.number_input(
        "Objective, ms", 1.0, 10_000.0, limit_s and limit_s * 1e3, 5.0, "%g", key="b_slo", bind="query-params"
    )
    depth = right.segmented_control(
        "Depth",
        ["quick", "whole"],
        default="quick",
        required=True,
        key="b_depth",
        bind="query-params",
        help="quick: about a minute and a half, rough. whole: about 12 minutes, three repeats.",
    )
    going = reads.active_runs()
    if going:
        st.caption(f"{going[0].what} is measuring; a second run would disturb it.")
    if st.button(
        "Run A against B",
        type="primary",
        icon=":material/play_arrow:",
        key="run_ab",
        disabled=bool(going),
        width="stretch",
    ):
        settings = [f"model.name={model}"] if model != experiment.model.name else []
        if slo_ms and (limit_s is None or slo_ms != limit_s * 1e3):
            settings.append(f"slo.latency_s={slo_ms / 1e3:g}")
        runs.start("batching", settings, quick=depth != "whole", page="pages/batching.py")


def waiting(folder: RunFolder) -> None:
    """While the run goes on: how far it is, and where to watch it."""

    @st.fragment(run_every=2.0, key="ab_waiting")
    def tick() -> None:
        with told():
            look()

    def look() -> None:
        status = folder.status()
        if not status.active:
            reads.run_lines.clear()
            st.rerun()
        with st.container(border=True):
            st.progress(min(1.0, status.progress or 0.0), text=f"{badge(status.state)} {status.phase}")
            st.page_link(
                "pages/live.py", label="Watch it", icon=":material/monitoring:", query_params={"run": folder.run_id}
            )

    tick()


def partial(status: Status) -> None:
    """Say so when the figures below are not those of a whole run."""
    if status.state == "done":
        return
    st.warning(
        f"Partial: {why_ended(status)}. Below is what it had measured.",
        icon=":material/incomplete_circle:",
    )


def happened(folder: RunFolder, document: dict[str, Any], bet: tuple[str | None, str]) -> tuple[Grid, str]:
    """Headline, score, figures and charts. Returns the grid and the level that is compared."""
    experiment = folder.document["experiment"]
    factor, baseline = experiment["judge"]["factor"], experiment["judge"]["baseline"]
    grid = Grid.of(document, factor, baseline)
    verdict = document["verdict"]
    st.markdown(HOLDS[verdict["holds"]])
    headline, _, more = verdict["text"].partition(". ")
    st.markdown(f"#### {headline.rstrip('.')}.")
    if more:
        st.markdown(more)
    if document["answers"]:
        _answers(document["answers"])
    if not grid.levels:
        st.info("No cell was measured before the run ended.", icon=":material/info:")
        return grid, ""
    others = grid.others() or grid.levels
    primary = experiment["judge"]["primary"]
    comparable = grid.comparable(document, primary)
    decides = grid.highest(comparable or grid.loads)  # where a comparison may say something; the bet is scored there
    fit = comparable.get(decides, others)
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    level = left.segmented_control(
        f"Compare {grid.baseline} with",
        others,
        default=others[len(others) // 2] if others[len(others) // 2] in fit else fit[0],
        required=True,
        key="b_level",
        bind="query-params",
    )
    load = right.segmented_control(
        "Load, as a share of saturation",
        grid.loads,
        default=decides,
        required=True,
        key="b_load",
        bind="query-params",
        format_func=lambda load: load.removesuffix(" of saturation"),
    )
    if bet[0]:
        effect = grid.effect(document, level, decides, primary)
        right_way, sentence = bets.score(bet[0], bet[1], effect)
        icon = {True: ":material/check:", False: ":material/close:", None: ":material/help:"}[right_way]
        st.markdown(f"{icon} {sentence}")
    for name in dict.fromkeys((level, grid.baseline)):
        for text in forbidding(grid.at(name, load)):
            st.markdown(f":orange-badge[:material/report: No verdict on these figures] {name}: {text}")
    cards([_card(grid, document, level, load, field) for field in FIGURES])
    slo_s = experiment["slo"]["latency_s"]
    pair = (grid.baseline, level)
    top = st.columns(2, gap="large")
    with top[0]:
        chart.show(draw.throughput_latency(grid, pair, slo_s), key="ab_throughput")
    with top[1]:
        pooled = reads.latencies(folder.run_id, factor, load, pair)
        chart.show(percentiles(pooled, grid.baseline, slo_s, load), key="ab_percentiles")
    below = st.columns(2, gap="large")
    with below[0]:
        chart.show(draw.where_time_goes(grid, load), key="ab_time")
    with below[1]:
        chart.show(draw.batch_sizes(grid, pair, load), key="ab_sizes")
    return grid, level


def why(grid: Grid, document: dict[str, Any], level: str, model: str) -> None:
    """The cause in one chart, every comparison with its interval, and what makes the figures doubtful."""
    compared = [load for load in grid.loads if grid.at(grid.baseline, load) and len(list(grid.levels_at(load))) > 1]
    load = grid.highest(compared or grid.loads)  # the verdict's own choice: where requests come closest together
    cause = draw.cost_of_one([*grid.at(level, load), *grid.at(grid.baseline, load)], model)
    if sentence := _cost_sentence(grid, load, gained=bool(document["verdict"]["holds"])):
        st.markdown(f"At {load}, all settings of batching together: {sentence[0].lower()}{sentence[1:]}")
    st.caption(f"The chart: {grid.baseline} and {level} at {load}.")
    chart.show(cause, key="ab_cost")
    with st.expander("Every comparison, with its 95 % interval", key="ab_all", on_change="rerun") as every:
        if every.open:
            for metric in ("goodput_rps", "latency_p99_s"):
                title = f"{metric_label(metric).capitalize()} against {grid.baseline}"
                chart.show(draw.effects(document, grid, metric, title), key=f"ab_effects_{metric}")
    doubts = document["problems"]
    if doubts:
        with st.expander(f"What makes these figures doubtful ({len(doubts)})", icon=":material/report:"):
            for problem in doubts:
                where = f" (blocks: {problem['blocks']})" if problem["blocks"] else ""
                st.markdown(f"- {problem['text'].rstrip('.')}{where}. *{problem['remedy']}*")


def _cost_sentence(grid: Grid, load: str, *, gained: bool) -> str:
    """Why it paid or not, from the very cells of the verdict's sentence: the page must not give two costs for one."""
    cells = {
        level: CellResult({}, [], [Summary.from_dict(s) for s in summaries])
        for level, summaries in grid.levels_at(load)
    }
    if grid.baseline not in cells:
        return ""
    return sharing(cells.pop(grid.baseline), list(cells.values())).sentence(gained=gained)


def try_next(model: str) -> None:
    other = "embedder" if model == "digits" else "digits"
    st.markdown("**Try next**")
    st.page_link(
        "pages/batching.py",
        label=f"Bet on {other}: does batching pay there?",
        icon=":material/stacks:",
        query_params={"b_model": other},
    )
    st.page_link("pages/live.py", label="Toggle batching under a load that goes on", icon=":material/monitoring:")
    st.page_link("pages/system.py", label="Read the config.pbtxt that did it", icon=":material/dns:")


def _answers(answers: dict[str, Any]) -> None:
    """A speed-up counts only when the answers stayed the same."""
    levels, largest = answers["levels"], max(level["max_abs_difference"] for level in answers["levels"])
    if all(level["equal"] for level in levels):
        st.caption(
            f"Same answers, batched or alone: {plural(answers['requests'], 'request')} on "
            f"{plural(len(levels), 'level')}, largest difference {largest:.1e}."
        )
    else:
        text = f"The answers differ: by up to {largest:.1e} where {answers['tolerance']:g} is allowed."
        st.error(f"{text} A faster wrong answer is no gain.", icon=":material/error:")


def _card(grid: Grid, document: dict[str, Any], level: str, load: str, field: str) -> Card:
    summaries = grid.at(level, load)
    value = middle(summaries, field)
    before = middle(grid.at(grid.baseline, load), field)
    effect = grid.effect(document, level, load, field)
    beside = f"{_figure(field, before)} with {grid.baseline}"
    if effect is not None and effect["verdict"] == "no detectable difference":
        beside += ", within noise"
    return Card(FIGURES[field], _figure(field, value), beside, why_missing(summaries, field))


def _figure(field: str, value: float | None) -> str:
    return (NOT_MEASURED if value is None else f"{value:.1f}") if field == "batch_mean" else format_metric(field, value)
