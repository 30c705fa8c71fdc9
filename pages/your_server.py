"""Your server: any Triton's model, or one behind the OpenAI protocol: one call with its answer, then a measurement; or
several engines asked alike."""

import streamlit as st

from lab.show.ui import engines, frame, your_server
from lab.show.ui.words import told

ONE, ENGINES = "One server", "Language model engines beside each other"

frame.with_app()
st.title("Measure a server that runs already")
with told():
    part = st.segmented_control(
        "What", [ONE, ENGINES], default=ENGINES if engines.in_link() else ONE, required=True, key="g_part"
    )
    if part == ENGINES:
        engines.show()
    else:
        url = your_server.address()
        if url and your_server.speaks_openai(url):
            your_server.language_model(url)
        elif url and (described := your_server.model(url)) is not None:
            wishes = your_server.inputs(described)
            your_server.preview(url, described, wishes)
            your_server.measure(url, described, wishes)
