"""Plan: what a run's server is predicted to do elsewhere, never without how far such predictions were off here."""

import streamlit as st

from lab.show.ui import frame, picking, planning

frame.with_app()
st.title("What would it take?")
folder = picking.run("Run to plan from", "p_run", planning.candidates())
if folder is None:
    st.info("Nothing was measured yet, and a plan is calibrated on measured blocks.", icon=":material/info:")
    planning.runs_needed()
else:
    planning.page(folder)
