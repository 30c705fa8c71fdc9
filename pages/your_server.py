"""Your server: any Triton, its models, one call with its answer, then a measurement; or several engines asked alike."""

import streamlit as st

from lab.show.ui import engines, frame, your_server
from lab.show.ui.words import told

TRITON, ENGINES = "A Triton's model", "Language model engines beside each other"

frame.with_app()
st.title("Measure a server that runs already")
with told():
    part = st.segmented_control(
        "What", [TRITON, ENGINES], default=ENGINES if engines.in_link() else TRITON, required=True, key="g_part"
    )
    if part == ENGINES:
        engines.show()
    else:
        url = your_server.address()
        described = your_server.model(url) if url else None
        if url and described:
            wishes = your_server.inputs(described)
            your_server.preview(url, described, wishes)
            your_server.measure(url, described, wishes)
