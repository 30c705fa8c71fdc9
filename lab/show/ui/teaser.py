"""What the newest verdict found, on Start: its headline and its curve, so that the first page shows a measurement.

Of this machine's own runs where there is one, else of the recording that comes with the lab, which says that it is one.
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

SHOWN = "batching"
"""The experiment that Start's button runs."""


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
        runs.link(folder.run_id, line.experiment, "Look inside: what happened, and why")
    with drawn:
        before, st.session_state[cassettes.KEY] = st.session_state.get(cassettes.KEY), "recorded" if recorded else None
        level, _ = grid.headline(document, judge)
        curve = batching.throughput_latency(grid, (grid.baseline, level), slo.latency_s)
        chart.show(replace(curve, notes=()), key="s_teaser")  # its page says what is not drawn
        st.session_state[cassettes.KEY] = before
