"""Your server: any Triton, its models, one call with its answer, then a measurement."""

import streamlit as st

from lab.show.ui import frame, your_server
from lab.show.ui.words import told

frame.with_app()
st.title("Measure a server that runs already")
with told():
    url = your_server.address()
    described = your_server.model(url) if url else None
    if url and described:
        wishes = your_server.inputs(described)
        your_server.preview(url, described, wishes)
        your_server.measure(url, described, wishes)
