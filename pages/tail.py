"""Slow requests: where each one's time went, beside its batch-mates, and what another batching would have done."""

import streamlit as st

from lab.show.ui import frame, tail
from lab.show.ui.words import told

frame.with_app()
st.title("What did the slow requests wait for?")
with told():
    tail.show()
