"""The live page's parts: starting a load, and the panel that ticks while it runs.

The panel is one fragment. It ticks while the run goes on, reads what was added, and redraws; when it
sees the run end it asks for one whole rerun, which leaves the ticking behind.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from lab.errors import LabError
from lab.measure.cost import Use
from lab.measure.formats import format_label
from lab.measure.summary import Summary
from lab.measure.words import format_fraction, format_metric, format_rate, format_seconds, level_label
from lab.run import launch
from lab.run.folder import RunFolder
from lab.run.live import RECENT_S, LiveView
from lab.run.status import Status
from lab.show.charts.live import recorder
from lab.show.ui import chart, controls, pricing, reads, runs
from lab.show.ui.cards import Card, cards
from lab.show.ui.words import badge, title_of, told, why_ended
from lab.spec import FAMILIES, Batching, ModelSpec, Slo, parse

TICK_S = 2.0
"""A tick costs the browser 0.1 to 0.2 s of a core, and a core that draws serves nobody: ticking twice as often shows no
more of the points, one a second, and shows in the tail that is measured."""
WINDOWS: dict[str, int | None] = {"30 s": 30, "60 s": 60, "5 min": 300, "all": None}


def start_form() -> None:
    """What to load and how hard; starts only on the button."""
    st.info("No run is active. Start a load here, and change it while it runs.", icon=":material/info:")
    with st.container(border=True):
        model, rate, setting, go = st.columns([2, 2, 2, 2], vertical_alignment="bottom")
        name = model.selectbox("Model", [f for f in FAMILIES if f != "null"], key="l_model", bind="query-params")
        writes = name == "llm"  # an answer takes seconds, and a rate for one model is no rate for the other
        rate_rps = rate.number_input(
            "Rate, requests a second",
            0.1 if writes else 1.0,
            100_000.0,
            1.0 if writes else 200.0,
            0.5 if writes else 50.0,
            "%g",
            key="l_llm_rate" if writes else "l_rate",
            bind="query-params",
        )
        if writes:
            spec = ModelSpec(name=name, kv_cache=setting.toggle("KV cache", True, key="l_cache", bind="query-params"))
        else:
            on = setting.toggle("Dynamic batching", key="l_on", bind="query-params")
            batching = Batching(max_batch_size=controls.MAX_BATCH_SIZE) if on else None
            spec = ModelSpec(name=name, batching=batching)
        if go.button("Start the load", type="primary", icon=":material/play_arrow:", key="start_live", width="stretch"):
            runs.start_live(spec, rate_rps)


def header(folder: RunFolder, status: Status) -> None:
    """What runs, in which state, and the button that ends it."""
    title, button = st.columns([6, 1], vertical_alignment="bottom")
    line = _what(folder)
    title.title(line)
    if status.active:
        if button.button("Stop", icon=":material/stop:", key="stop", width="stretch"):
            _stop(folder.run_id)
    elif status.state == "done":
        st.info("The run is over. This is what it recorded.", icon=":material/check_circle:")
    else:
        tell = st.error if status.state == "failed" else st.warning
        with told():
            tell(why_ended(status, reads.document(folder)), icon=":material/incomplete_circle:")


def view_settings(*, active: bool) -> tuple[int | None, bool, bool]:
    """(seconds shown, latency on a log axis, paused): widgets, so that a reload and a copied link keep them. A run that
    is over is shown whole unless its viewer chose otherwise: what it ended with may be as good as nothing."""
    window, scale, pause = st.columns([3, 3, 2], vertical_alignment="bottom")
    shown = window.segmented_control(
        "Window",
        list(WINDOWS),
        default="60 s" if active else "all",
        required=True,
        key="w" if active else "w_over",
        bind="query-params",
    )
    log = scale.segmented_control(
        "Latency axis", ["log", "linear"], default="log", required=True, key="scale", bind="query-params"
    )
    paused = active and pause.toggle("Pause view", key="pause", help="Freezes the drawing, not the run")
    return WINDOWS[shown or "all"], log != "linear", paused


def panel(folder: RunFolder, window_s: int | None, log: bool, paused: bool) -> None:
    """The figures of the moment and the recorder below them."""
    active = folder.status().active
    declared = folder.document["experiment"]
    environment, device = folder.document["environment"], declared["model"].get("device", "cpu")
    with st.expander("The price that its cost is counted with", icon=":material/payments:", type="compact"):
        price = pricing.choose(environment, device)

    @st.fragment(run_every=TICK_S if active and not paused else None, key="live_panel")
    def tick() -> None:
        with told():
            draw()

    def draw() -> None:
        view = _held(folder, paused)
        if active and not view.status.active:
            reads.run_lines.clear()
            st.rerun()
        if active and not paused and controls.changed_elsewhere(folder, view):
            st.rerun()  # the controls above show what is in force, whoever changed it
        # Two slots that are always there: a chart that moves down a place would be built anew and lose its zoom.
        progress, figures = st.container(), st.container()
        if view.status.active:
            with progress:
                _progress(view, one_cell=len(folder.document["cells"]) == 1)
        summary = view.summary or _ended(folder, view)
        if summary is not None:
            with figures:
                st.caption(_covers(summary, live=view.status.active))
                cards(_moment(summary))
                pricing.told(summary.to_dict(), price, Use(), parse(Slo, declared["slo"]), environment, device)
        elif view.status.state == "warm-up":
            figures.caption("Warming up: figures begin when it is over; the chart shows it already.")
        drawn = recorder(
            view.series,
            view.memory_mib,
            view.events,
            limits=declared["slo"],
            window_s=window_s,
            log=log,
            view=f"{folder.run_id} {window_s} {log}",
            over=not view.status.active,
            # Each load worker writes once a second, and they take turns.
            unfinished_s=2 if view.status.active and declared["workload"]["workers"] > 1 else 1,
        )
        chart.show(drawn, key="recorder", heading=False)

    tick()


def _held(folder: RunFolder, paused: bool) -> LiveView:
    """A fresh look, or while the view is paused the one it was paused at."""
    held = st.session_state.get("held")
    if paused and held is not None and held[0] == folder.run_id:
        view: LiveView = held[1]
        return view
    view = reads.look(folder)
    st.session_state["held"] = (folder.run_id, view)
    return view


def _ended(folder: RunFolder, view: LiveView) -> Summary | None:
    """The whole block's figures, once a run of one cell is over."""
    if view.status.active or len(folder.document["cells"]) != 1:
        return None
    cells = reads.document(folder)["cells"]
    return Summary.from_dict(cells[0]["summary"]) if cells else None


def _progress(view: LiveView, *, one_cell: bool) -> None:
    """State and what is in force; how far it is only where there is an end to come to."""
    status = view.status
    words = [badge(status.state)]
    if not one_cell and status.phase != status.state:
        words.append(status.phase)
    if view.model is not None and view.workload is not None:
        fields = ("kv_cache", "scheduler") if view.model["family"] == "llm" else ("batching",)
        settings = [level_label(f"model.{field}", view.model[field]) for field in fields]
        if view.model["family"] == "llm":
            settings.insert(0, format_label(parse(ModelSpec, view.model)))
        words.append(", ".join([view.model["name"], *settings, _load_words(view.workload["arrival"])]))
    if status.message:
        words.append(status.message)
    if one_cell:
        st.markdown(" · ".join(words))
    else:
        st.progress(min(1.0, max(0.0, status.progress or 0.0)), text=" · ".join(words))


def _load_words(arrival: dict[str, Any]) -> str:
    field = "concurrency" if arrival["kind"] == "closed" else "rate_rps"
    return level_label(field, arrival[field]) if arrival.get(field) is not None else arrival["kind"]


def _covers(summary: Summary, *, live: bool) -> str:
    """Which time the figures below it are of."""
    if not live:
        return "The whole run, without its warm-up"
    if summary.window_s is None or summary.window_s >= RECENT_S - 1:
        return "Last minute"
    return f"Last {summary.window_s:.0f} s"


def _moment(summary: Summary) -> list[Card]:
    """Four figures: of the newest minute of the block in progress, or of the whole block once it is over."""
    served, offered = format_rate(summary.throughput_rps), format_rate(summary.offered_rps)
    if summary.ttft_mean_s is not None or summary.engine_running_mean is not None:
        return _tokens(summary, f"{served} of {offered} offered")
    batch = "n/a" if summary.batch_mean is None else f"{summary.batch_mean:.1f}"
    failed = format_fraction(summary.error_fraction)
    return [
        _card(summary, "Served", "throughput_rps", f"of {offered} offered"),
        _card(summary, "p99 latency", "latency_p99_s", f"p50 {format_seconds(summary.latency_p50_s)}"),
        _card(summary, "Mean batch", "batch_mean", f"{format_seconds(summary.queue_mean_s)} in queue", batch),
        _card(summary, "Failed", "error_fraction", "of what finished", failed),
    ]


def _tokens(summary: Summary, served: str) -> list[Card]:
    running = "n/a" if summary.engine_running_mean is None else f"{summary.engine_running_mean:.1f}"
    waiting = "n/a" if summary.engine_waiting_mean is None else f"{summary.engine_waiting_mean:.1f}"
    ttft, itl = format_seconds(summary.ttft_mean_s), format_seconds(summary.itl_mean_s)
    return [
        _card(summary, "Tokens a second", "output_tokens_per_s", served),
        _card(summary, "To the first token, p50", "ttft_p50_s", f"mean {ttft}"),
        _card(summary, "Between tokens, p50", "itl_p50_s", f"mean {itl}"),
        _card(summary, "Answered at once", "engine_running_mean", f"{waiting} waiting", running),
    ]


def _card(summary: Summary, label: str, field: str, beside: str, value: str | None = None) -> Card:
    value = format_metric(field, getattr(summary, field)) if value is None else value
    return Card(label, value, beside, summary.notes.get(field))


def _what(folder: RunFolder) -> str:
    document = folder.document
    experiment = document["experiment"]
    name = experiment["model"]["name"]
    return f"{name} under load" if experiment["id"] == "load" else f"{title_of(experiment)} on {name}"


def _stop(run_id: str) -> None:
    with st.spinner("Stopping: what was measured is kept"):
        try:
            launch.stop(run_id)
        except LabError as error:
            st.error(str(error), icon=":material/error:")
            return
    reads.run_lines.clear()
    st.rerun()
