"""Try it: one prompt, its answer as it comes, and when each of its tokens came."""

import streamlit as st

from lab.show.ui import frame

frame.with_app()
st.title("Try it")
st.info("Coming with the language model's server.", icon=":material/info:")
