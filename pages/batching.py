"""Dynamic batching: a question, a bet, a run of A against B, what happened, and why."""

import streamlit as st

from lab.show.ui import comparison, frame, reads, runs

frame.with_app()
experiment = reads.declared("batching")
st.title("Does waiting for company pay?")
st.markdown(f"{experiment.question} *The hypothesis:* {experiment.hypothesis}")

folder = runs.chosen(lambda line: line.experiment == "batching")
bet, action = st.columns(2, gap="large")
with bet.container(border=True):
    st.subheader("Predict")
    prediction = comparison.predict(experiment)
with action.container(border=True):
    st.subheader("Run A against B")
    comparison.run_form(experiment)

st.subheader("What happened")
if folder is None:
    st.info(
        "Place your bet and run A against B. What happened will stand here, beside your bet.", icon=":material/info:"
    )
    st.stop()
if folder.document["experiment"]["id"] != "batching":
    st.info("This run compares nothing; watch it on the live page.", icon=":material/info:")
    st.page_link("pages/live.py", label="To its live page", query_params={"run": folder.run_id})
    st.stop()
status = folder.status()
if status.active:
    comparison.waiting(folder)
    st.stop()

comparison.partial(status)
document = reads.document(folder)
grid, level = comparison.happened(folder, document, prediction)
if level:
    st.subheader("Why")
    model = folder.document["experiment"]["model"]["name"]
    comparison.why(grid, document, level, model)
    comparison.try_next(model)
