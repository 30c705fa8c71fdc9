"""Compare: a baseline and up to five other measurements; what differs, by how much, and whether it can be told."""

import streamlit as st

from lab.show.ui import comparing, frame, picking

frame.with_app()
st.title("Is it really better?")
if names := picking.names():
    comparing.page(names)
