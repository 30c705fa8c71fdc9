"""Trust: what this machine's figures can be trusted for."""

import streamlit as st

from lab.show.ui import frame, trust
from lab.show.ui.words import told

frame.with_app()
st.title("Can these figures be trusted?")
with told():
    st.subheader("Self-test")
    trust.selftest()
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader("Noise passport")
        trust.noise_passport()
    with right:
        st.subheader("Load generator's ceiling")
        trust.ceiling()
        st.subheader("Checks of the last run")
        trust.last_lamps()
