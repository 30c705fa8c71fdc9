"""Live run: what happens each second, and changing the load while it runs."""

import streamlit as st

from lab.show.ui import cassettes, controls, flight, frame, runs

frame.with_app()
head = st.container()
folder = runs.chosen(lambda line: line.active)
if folder is None:
    head.title("Live run")
    flight.start_form()
    cassettes.player()
    st.stop()

status = folder.status()
flight.lead_on(folder, status)
flight.header(folder, status)
if status.active and not cassettes.is_recorded(folder):
    controls.show(folder)
if cassettes.watchable(folder):
    window_s, log, paused = flight.view_settings(active=status.active)
    flight.panel(folder, window_s, log, paused)
if not status.active:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.page_link("pages/runs.py", label="All runs", icon=":material/list:")
        if st.button("Start another load", key="another", type="tertiary", icon=":material/play_arrow:"):
            del st.query_params["run"]
            st.rerun()
