"""Start beyond its button: what the newest verdict found, and the other questions.

The verdict stands with its headline and its curve, so that the first page shows a measurement: of this machine's own
runs where there is one, else of the recording that comes with the lab, which says that it is one.
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from lab.run.folder import RunFolder
from lab.show.charts import batching
from lab.show.grid import Grid
from lab.show.ui import cassettes, chart, guide, reads, runs
from lab.show.ui.words import told, when
from lab.spec import Slo, parse

QUESTIONS = (
    ("pages/quantization.py", "What do 4 and 8 bits buy, and cost?", ":material/compress:"),
    ("pages/kv_cache.py", "What does the KV cache buy a language model?", ":material/memory:"),
    ("pages/scheduling.py", "One, static or continuous batching?", ":material/view_timeline:"),
    ("pages/memory.py", "How many models fit, and who waits for the next?", ":material/view_cozy:"),
    ("pages/patterns.py", "Online, streaming or a batch job overnight?", ":material/route:"),
    ("pages/cold_start.py", "What does a start from nothing cost?", ":material/ac_unit:"),
    ("pages/rollout.py", "Is the new version good enough to take over?", ":material/alt_route:"),
    ("pages/try_it.py", "Watch a language model write, token by token", ":material/chat:"),
)
SHOWN = "batching"
"""The experiment that Start's button runs."""


def other_questions() -> None:
    """What else can be asked, each a link to its page."""
    halves = st.columns(2)
    for n, (page, question, icon) in enumerate(QUESTIONS):
        halves[n % 2].page_link(page, label=question, icon=icon)


def newest_verdict() -> None:
    """Nothing where there is none, or the link hides verdicts."""
    if guide.hides("verdicts"):
        return
    line = next((line for line in reads.run_lines() if line.experiment == SHOWN and line.state == "done"), None)
    line = line or next((line for line in reads.recorded_lines() if line.experiment == SHOWN), None)
    if line is None:
        return
    with told(), st.container(border=True):
        _told(RunFolder.open(line.run_id), line)


def _told(folder: RunFolder, line: reads.RunLine) -> None:
    document = reads.document(folder)
    judge, slo = folder.document["experiment"]["judge"], parse(Slo, folder.document["experiment"]["slo"])
    grid = Grid.of(document, judge["factor"], judge["baseline"])
    if not grid.others():
        return
    recorded = folder.document.get(cassettes.KEY)
    place = f"on {recorded['machine']}" if recorded else "measured here"
    said, drawn = st.columns([2, 3], gap="large", vertical_alignment="center")
    with said:
        st.caption(f"{line.what} {place}, {when(line.created_utc)}")
        headline, _, _ = document["verdict"]["text"].partition(". ")
        st.markdown(f"#### {headline.rstrip('.')}.")
        told, _ = grid.headline(document, judge)
        level = st.pills(
            f"Queue delay, beside {grid.baseline}",
            grid.others(),
            format_func=lambda name: str(name).removesuffix(" delay"),
            default=told,
            required=True,
            key="start_level",
            bind="query-params",
        )
        runs.link(folder.run_id, line.experiment, "Look inside: what happened, and why")
    with drawn:
        before, st.session_state[cassettes.KEY] = st.session_state.get(cassettes.KEY), "recorded" if recorded else None
        curve = batching.throughput_latency(grid, (grid.baseline, str(level)), slo.latency_s)
        chart.show(replace(curve, notes=()), key="s_teaser")  # its page says what is not drawn
        st.session_state[cassettes.KEY] = before
