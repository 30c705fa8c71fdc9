"""System: the server, its models, the configuration they run with, logs, and what this machine lacks."""

import streamlit as st

from lab.show.ui import frame, listing, machine
from lab.show.ui.words import told

frame.with_app()
st.title("System")
left, right = st.columns(2, gap="large")
with left:
    st.subheader("Server and models")
    with told():
        machine.server()
with right:
    st.subheader("This machine")
    listing.readiness()
    machine.gpus()

st.subheader("config.pbtxt")
st.caption("What the lab would write for Triton; it goes through Triton's own protobuf, and nothing is changed here.")
machine.config_viewer()

st.subheader("Logs")
machine.logs()
