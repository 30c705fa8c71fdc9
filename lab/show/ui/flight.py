"""The live page's parts: starting a load, and the panel that follows it.

The panel is drawn by the browser itself (recorder.js), which asks for new figures and has the page rerun only once
there is something new to build: the run ended, or its settings were changed elsewhere.
"""

from __future__ import annotations

import streamlit as st

from lab.errors import LabError
from lab.measure.summary import Summary
from lab.run import launch
from lab.run.folder import RunFolder
from lab.run.live import LiveView
from lab.run.status import Status
from lab.show.moment import draw, moment
from lab.show.ui import chart, controls, guide, pricing, reads, recording, runs
from lab.show.ui.words import title_of, told, why_ended
from lab.spec import FAMILIES, Batching, ModelSpec

SKELETON = 640
"""Height of what stands in for the recorder while the records are read, pixels."""
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


def lead_on(folder: RunFolder, status: Status) -> None:
    """Go where the link wants to be once the run is done."""
    then = st.query_params.get(runs.THEN, "")
    if status.state == "done" and then in guide.PAGES and then != "live":
        st.switch_page(f"pages/{then}.py", query_params={"run": folder.run_id})


def header(folder: RunFolder, status: Status) -> None:
    """What runs, in which state, and the button that ends it; of one that is over, what it found."""
    title, button = st.columns([6, 1], vertical_alignment="bottom")
    line = _what(folder)
    title.title(line)
    if status.active:
        if button.button("Stop", icon=":material/stop:", key="stop", width="stretch"):
            _stop(folder.run_id)
        if st.query_params.get(runs.THEN):
            st.caption(":material/arrow_forward: Once it is done, this page goes on to what it found by itself.")
    elif status.state == "done":
        _found(folder)
    else:
        tell = st.error if status.state == "failed" else st.warning
        with told():
            tell(why_ended(status, reads.document(folder)), icon=":material/incomplete_circle:")


def _found(folder: RunFolder) -> None:
    """What a run that is done has found, and the way to where that is told."""
    experiment_id = folder.document["experiment"]["id"]
    page = runs.page_of(experiment_id)
    with st.container(border=True):
        st.markdown(":green-badge[:material/check_circle: done] The run is over.")
        if page is None:
            return
        with told():
            headline, _, _ = reads.document(folder)["verdict"]["text"].partition(". ")
            if headline and not guide.hides("verdicts"):
                st.markdown(f"#### {headline.rstrip('.')}.")
        if st.button("See the verdict, and why", type="primary", icon=":material/gavel:", key="to_verdict"):
            st.switch_page(page, query_params={"run": folder.run_id})


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
    environment, device = folder.document["environment"], folder.document["experiment"]["model"].get("device", "cpu")
    place = st.empty()
    with st.expander("The price that its cost is counted with", icon=":material/payments:", type="compact"):
        price = pricing.choose(environment, device)
    if st.session_state.get("looked_at") == folder.run_id:
        view = reads.look(folder)
    else:  # the first look reads all that was recorded; later ones put nothing in the recorder's place meanwhile
        with place.skeleton(height=SKELETON):
            view = reads.look(folder)
        st.session_state["looked_at"] = folder.run_id
    drawn = draw(folder, view, window_s=window_s, log=log)
    asks = {"price": price.id, "log": str(int(log)), **({} if window_s is None else {"w": str(window_s)})}
    now = moment(folder, view, drawn, price=price, whole=_whole(folder, view))
    with place.container():
        recording.recorder(now, folder.run_id, asks=asks, paused=paused, changed=reads.run_lines.clear)
        if not view.status.active:
            chart.show_data(drawn, "recorder")


def _whole(folder: RunFolder, view: LiveView) -> Summary | None:
    """The whole block's figures, once a run of one cell is over."""
    if view.status.active or len(folder.document["cells"]) != 1:
        return None
    cells = reads.document(folder)["cells"]
    return Summary.from_dict(cells[0]["summary"]) if cells else None


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
