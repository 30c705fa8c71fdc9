"""The dashboard as one application: the pages (app.py), and what they ask for while they stand (lab/show/feed.py).

`streamlit run asgi.py`, or `python -m lab up`. app.py alone is the same dashboard, whose live page then stands still.
"""

import streamlit as st

from lab.show import feed

app = st.App("app.py", routes=feed.routes())
