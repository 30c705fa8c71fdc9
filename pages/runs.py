"""Runs: every run on this machine, to open, take away or delete."""

import streamlit as st

from lab.show.states import state_word
from lab.show.ui import cassettes, frame, listing, reads, tracking

frame.with_app()
st.title("Runs")
lines = reads.run_lines()
if said := st.session_state.pop("runs_said", None):
    st.error(said, icon=":material/error:")
if not lines:
    st.info("Nothing has run yet. Start a run, and it is kept here until you delete it.", icon=":material/info:")
    st.page_link("pages/start.py", label="Go to Start", icon=":material/home:")
    cassettes.listed(opened=True)
    st.stop()

words, states = st.columns([3, 5], vertical_alignment="bottom")
query = words.text_input(
    "Search", key="r_q", bind="query-params", placeholder="model, experiment or id", icon=":material/search:"
)
state = states.pills(
    "State", sorted({line.state for line in lines}), key="r_state", bind="query-params", format_func=state_word
)
found = listing.matching(lines, query, state)
shown = listing.one_page(found, "r_page")
if not found:
    st.info("No run matches. Clear the search to see all of them.", icon=":material/info:")
else:
    listing.table(shown)
tracking.to_mlflow(found)
cassettes.listed()
