"""The page Slow requests: a traced run's parts of latency, one request's waterfall, and a counterfactual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from lab.measure import trace
from lab.measure.planner.queueing import Rules
from lab.measure.trace import Joined, Slow
from lab.measure.words import format_seconds
from lab.run import traced
from lab.run.folder import RunFolder
from lab.show.charts import tail
from lab.show.ui import cassettes, chart, guide, reads, runs

COUNT, ROWS = 20, 8
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
WHERE = {
    "client": "the client, which sent them late",
    "network": "the network",
    "frontend": "Triton's front end",
    "queue": "the queue",
    "input": "putting their batch together",
    "compute": "computing",
    "output": "writing the answer",
}
"""The parts of trace.PARTS, as a place where time was spent."""
LONGEST_DELAY_MS = 20.0


def show() -> None:
    lines = _traced(reads.run_lines()) or _traced(reads.recorded_lines())
    if not lines:
        _offer()
        return
    run_id = _which(lines)
    cassettes.told(RunFolder.open(run_id))
    found = _joined(run_id)
    if found is None or not len(found):
        st.warning("The traces of this run hold no measured request.", icon=":material/warning:")
        return
    slow = trace.slowest(found, COUNT)
    longest = Counter(max(one.parts_s, key=lambda part: one.parts_s[part]) for one in slow)
    (part, count), *_ = longest.most_common(1)
    guide.finding(f"{count} of the {len(slow)} slowest requests spent most of their time in {WHERE[part]}.")
    left, right = st.columns([2, 3], gap="large")
    with left:
        one = _clicked(slow)
    with right:
        chart.show(tail.waterfall(found, one), key="t_waterfall")
    _instead(RunFolder.open(run_id), found)
    _parts(found)
    if lines[0].recorded:
        _offer()


def _which(lines: Sequence[reads.RunLine]) -> str:
    """A choice where there is one."""
    labels = {line.run_id: f"{line.what}, {line.run_id}" for line in lines}
    if len(labels) == 1:
        return next(iter(labels))
    chosen = st.selectbox("Run", list(labels), format_func=labels.__getitem__, key="t_run", bind="query-params")
    return str(chosen)


def _clicked(slow: Sequence[Slow]) -> Slow:
    """The request that is clicked, the slowest until one is."""
    st.caption(f"The {len(slow)} slowest: click the circle of one to see it beside its batch-mates.")
    table = {
        "request": [f"{one.request:,}" for one in slow],
        "latency": [format_seconds(one.latency_s) for one in slow],
        "waited for": [one.waited_for for one in slow],
    }
    clicked = st.dataframe(
        pd.DataFrame(table),
        hide_index=True,
        height=36 * (min(len(slow), ROWS) + 1),
        on_select="rerun",
        selection_mode="single-row-required",
        key="t_slow",
        alt="The slowest requests, each with what it waited for; the one that is clicked is drawn below",
    )
    (row,) = clicked["selection"]["rows"] or [0]
    return slow[min(row, len(slow) - 1)]  # of another run, which may have fewer


def _traced(lines: Sequence[reads.RunLine]) -> list[reads.RunLine]:
    """Those of them that have traces; of recordings only loads are opened, since no other has any."""
    some = [line for line in lines if not line.active and line.state != "damaged"]
    some = [line for line in some if not line.recorded or line.experiment == "load"]
    return [line for line in some if traced.blocks(RunFolder.open(line.run_id))]


def _offer() -> None:
    """A traced load, one click away."""
    st.subheader("On this machine")
    st.markdown("No run was traced here yet. Triton writes down where each request is when it is asked to.")
    arguments = ["--model", "digits", "--batching", "32:2000", "--rate", "300", "--duration", "15", "--trace"]
    if st.button("Measure it", type="primary", icon=":material/play_arrow:", key="t_go"):
        runs.start_command("load", arguments, page="pages/live.py", then="tail")


@st.cache_data(max_entries=4, show_spinner="Joining the traces")
def _joined(run_id: str) -> Joined | None:
    folder = RunFolder.open(run_id)
    return traced.joined(folder, traced.blocks(folder)[-1])


def _parts(found: Joined) -> None:
    parts = trace.percentiles(found)
    columns = ("mean", "p50", "p90", "p95", "p99")
    table = {"part of latency": list(parts)}
    table |= {c: [format_seconds(part[c]) for part in parts.values()] for c in columns}
    st.subheader("Where all of them spent their time")
    st.caption(
        f"{len(found):,} of {found.of:,} measured answers are traced. Percentiles of each part are its own and do not "
        "add up; means do."
    )
    st.dataframe(pd.DataFrame(table), hide_index=True, alt="Where the time of the requests went, part by part")


def _instead(folder: RunFolder, found: Joined) -> None:
    """The same arrivals under another delay and batch size, through a queue model, as the sliders move."""
    st.subheader("And with another batching?")
    model = folder.document["cells"][0]["model"]
    now = model["batching"] or {"max_batch_size": 1}
    size_now, delay_now_ms = int(now["max_batch_size"]), now.get("max_queue_delay_us", 0) / 1e3
    left, right = st.columns(2, gap="large")
    size = left.select_slider(
        "Largest batch", sorted({*SIZES, size_now}), size_now, key="t_size", bind="query-params", format_func=str
    )
    longest_ms = max(LONGEST_DELAY_MS, 2 * delay_now_ms)
    delay_ms = right.slider(
        "Queue delay, ms", 0.0, longest_ms, delay_now_ms, 0.5, "%g", key="t_delay", bind="query-params"
    )
    rules = Rules(max_batch_size=size, delay_s=delay_ms / 1e3, instances=model["instances"])
    measured, modelled = traced.instead(found, rules)
    drawn = tail.instead(measured, modelled, f"batches of up to {size}, {delay_ms:g} ms delay")
    st.markdown(drawn.alt)
    chart.show(drawn, key="t_instead")
