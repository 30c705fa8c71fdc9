"""Interview drills: estimate, choose or explain, about this machine's own runs; then see the answer with its chart."""

import streamlit as st

from lab.show.ui import drilling, frame

frame.with_app()
st.title("Could you answer this?")
drilling.page()
