"""Compare: a baseline and up to five other measurements; what differs, by how much, and whether it can be told."""

import streamlit as st

from lab.show.ui import comparing, frame, picking

frame.with_app()
st.title("Is it really better?")
names = picking.names()
if not names:
    st.info("Nothing was measured yet, so there is nothing to compare.", icon=":material/info:")
    st.page_link("pages/start.py", label="Go to Start", icon=":material/home:")
else:
    comparing.page(names)
