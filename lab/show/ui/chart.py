"""A chart on a page: its title, the figure, what is not drawn and why, and its numbers under "Show data".

All figures go through one small component of our own (chart.js) that calls Plotly.react on a node it keeps: with
Streamlit 1.67, st.plotly_chart is rebuilt on every change of data and loses the viewer's zoom. plotly.min.js ships in
the plotly wheel; `serve_plotly` copies it where Streamlit serves static files, so nothing is fetched from outside.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import plotly
import streamlit as st

from lab.show.charts.figure import Chart
from lab.show.theme import ROLES

STATIC = Path(__file__).parents[3] / "static"
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def script(*names: str) -> str:
    """One module of these files beside this one, in their order; the last one exports what Streamlit calls."""
    return "\n".join((Path(__file__).parent / f"{name}.js").read_text() for name in names)


_COMPONENT = st.components.v2.component(
    "lab_chart",
    html=(
        "<div class='lab-chart'>\n"
        "<button type='button' class='lab-reset' hidden>Reset zoom</button>\n"
        "<div class='lab-plot'></div>\n</div>"
    ),
    css=(
        ".lab-chart { position: relative; }\n"
        ".lab-reset { position: absolute; right: 8px; top: -4px; z-index: 2; padding: 2px 10px; cursor: pointer;\n"
        "  font: 0.8rem var(--st-font); color: var(--st-text-color); background: var(--st-background-color);\n"
        "  border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); }\n"
        ".lab-reset[hidden] { display: none; }\n"
        ".lab-reset:focus-visible { outline: 2px solid var(--st-primary-color); }\n"
    ),
    js=script("ink", "chart"),
    isolate_styles=False,  # plotly puts its own style sheet into the document, not into a shadow root
)


def serve_plotly() -> None:
    """Put plotly.min.js where Streamlit's static serving finds it, unless that very file is there."""
    target = STATIC / "plotly.min.js"
    if target.exists() and target.stat().st_size == PLOTLY_JS.stat().st_size:
        return
    STATIC.mkdir(exist_ok=True)
    shutil.copyfile(PLOTLY_JS, target)


def show(chart: Chart, key: str, *, heading: bool = True) -> None:
    """Draw `chart`; `key` is its identity on the page, by which the browser keeps its zoom. Without a heading it is
    part of a form, so of no run."""
    recorded = heading and st.session_state.get("recorded")  # set by lab.show.ui.cassettes
    if heading:
        st.markdown(f"##### {chart.title}{' :gray-badge[:material/album: recorded]' if recorded else ''}")
    data = {
        "figure": chart.figure,
        "alt": f"Recorded on another machine. {chart.alt}" if recorded else chart.alt,
        "palettes": ROLES,
        "plotly": f"app/static/plotly.min.js?v={version('plotly')}",
    }
    _COMPONENT(data=data, key=key, height=chart.figure["layout"]["height"])
    notes = chart.notes if chart.figure["data"] else chart.notes[1:]  # the first stands in the empty chart's place
    for note in notes[:3]:
        st.caption(note)
    if len(notes) > 3:
        st.caption(f"… and {len(notes) - 3} more of this kind")
    show_data(chart, key)


def show_data(chart: Chart, key: str) -> None:
    """The numbers of a chart, folded up."""
    if not chart.table:
        return
    # Filled only once it is open: closed, it is not sent.
    data_table = st.expander("Show data", key=f"{key}_data", on_change="rerun", type="compact", icon=":material/table:")
    if data_table.open:
        data_table.dataframe(pd.DataFrame(chart.table), hide_index=True, alt=f"The numbers of {chart.title}")
