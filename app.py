"""The dashboard's frame: theme, navigation and one status line. `streamlit run app.py`, or `python -m lab up`.

Owns nothing that must survive: runs are processes of their own, and pages only read what these write.
"""

import streamlit as st

from lab.show.ui import frame
from lab.show.ui.chart import serve_plotly
from lab.show.ui.words import told

st.set_page_config(page_title="Serving lab", page_icon=frame.ICON, layout="wide")
serve_plotly()

page = st.navigation(
    {
        "": [
            st.Page(
                "pages/start.py", title="Start", icon=":material/home:", default=True, help="One click, one answer"
            ),
        ],
        "Learn": [
            st.Page(
                "pages/batching.py",
                title="Dynamic batching",
                icon=":material/stacks:",
                help="Bet, run A against B, see why",
            ),
        ],
        "Run": [
            st.Page(
                "pages/live.py",
                title="Live run",
                icon=":material/monitoring:",
                help="Watch a run and change it while it runs",
            ),
            st.Page("pages/runs.py", title="Runs", icon=":material/list:", help="Every run on this machine"),
        ],
        "Set up": [
            st.Page(
                "pages/system.py", title="System", icon=":material/dns:", help="Server, models and what is missing"
            ),
        ],
    }
)
with told():
    frame.show()
    page.run()
