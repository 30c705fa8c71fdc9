"""Sweep and tune: the highest rate that meets an objective, and which settings are worth having."""

import streamlit as st

from lab.show.ui import cassettes, frame, runs, tuning
from lab.show.ui.words import told

frame.with_app()
st.title("What is the best setting, and how far does it go?")
with told():
    folder = runs.chosen(lambda line: line.experiment in tuning.KINDS)
    if folder is not None and folder.document["experiment"]["id"] in tuning.KINDS:
        tuning.result(folder)
        cassettes.others(tuning.KINDS, folder)
    tuning.start()
