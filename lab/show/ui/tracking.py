"""Runs into MLflow from the page Runs: a button, how it stands, and the command that opens MLflow's own page."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from lab.errors import LabError
from lab.run import chores
from lab.show.ui import chore, reads
from lab.show.ui.words import told, when
from lab.track import mlflow_export

TICK_S = 2.0
PORT = 5000
"""Where `lab mlflow` serves it."""


def to_mlflow(lines: Sequence[reads.RunLine]) -> None:
    """A choice of one of these runs and its export; reads nothing of MLflow, which may be slow, locked or missing."""
    ended = {line.run_id: f"{line.what} · {when(line.created_utc)}" for line in lines if not line.active}
    with st.expander("Take a run to MLflow", icon=":material/upload:", key="r_mlflow", on_change="rerun") as place:
        if not place.open or not ended:
            return
        if mlflow_export.interpreter() is None:
            st.info("MLflow is not installed, and nothing else of the lab needs it.", icon=":material/info:")
            st.code("pip install -r requirements.txt", language=None)
            return
        left, right = st.columns([4, 1], vertical_alignment="bottom")
        run_id = left.selectbox("Run", list(ended), key="r_export", format_func=ended.__getitem__)
        if right.button("Export", key="r_export_go", icon=":material/upload:", width="stretch"):
            try:
                mlflow_export.start(run_id)
            except LabError as error:
                st.error(str(error), icon=":material/error:")
        _stands(run_id)
        _own_page(run_id)


def _own_page(run_id: str) -> None:
    """MLflow's own page on what was exported, and the way to this run on it once it is up."""
    chore.offer("mlflow", "Start MLflow's own page", ["mlflow"], icon=":material/open_in_new:", with_owner=True)
    found = chores.state("mlflow")
    if found is not None and found.going:
        exported = mlflow_export.state(run_id)
        address = f"http://127.0.0.1:{PORT}" if exported is None else mlflow_export.page(exported, PORT)
        st.link_button("Open it", address, icon=":material/open_in_new:")


def _stands(run_id: str) -> None:
    found = mlflow_export.state(run_id)

    @st.fragment(run_every=TICK_S if found is not None and found.state == "going" else None, key="r_export_state")
    def tick() -> None:
        with told():
            now = mlflow_export.state(run_id)
            if now is None:
                return
            if now.state == "failed":
                st.warning(now.text, icon=":material/sync_problem:")
            elif now.state == "done":
                st.success(f"{now.text[0].upper()}{now.text[1:]}", icon=":material/check_circle:")
            else:
                st.info("It is being written, beside everything else.", icon=":material/hourglass_top:")
            if found is not None and found.state == "going" and now.state != "going":
                st.rerun()

    tick()
