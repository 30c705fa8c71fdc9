"""A gateway started and stopped from the page Rollout: a process of the dashboard's, which ends with it."""

from __future__ import annotations

import streamlit as st

from lab.errors import LabError
from lab.serve.process import Process
from lab.track.rehearsal.stage import begin, end
from lab.track.routes import Routes

MODELS = ("digits", "embedder", "llm")
PORT, LOAD_LIMIT_S = 8080, 300.0

_own: list[Process] = []
"""Of this dashboard, whoever pressed the button."""


def starter(routes: Routes) -> None:
    """Which models, which port, and the button."""
    if refused := st.session_state.pop("o_gateway_refused", None):
        st.error(refused, icon=":material/error:")
    with st.container(border=True, horizontal=True, vertical_alignment="bottom"):
        models = st.multiselect("Models", MODELS, default=["digits"], key="o_gateway_models")
        port = st.number_input("Port", 1, 65_535, PORT, key="o_gateway_port", width=140)
        pressed = st.button(
            "Start a gateway", key="o_gateway_start", type="primary", icon=":material/play_arrow:",
            disabled=not models and not routes.by_name,
        )  # fmt: skip
    st.caption("It uses the lab's Triton, or starts one, and speaks OpenAI's protocol on this machine alone.")
    if pressed:
        words = ["--port", str(port), *(f"--model={model}" for model in models)]
        with st.spinner("Starting the gateway and loading its models"):
            try:
                _own.append(begin(routes, routes.folder / "gateway.log", words, LOAD_LIMIT_S)[0])
            except LabError as error:
                st.session_state["o_gateway_refused"] = str(error)
        st.rerun()


def standing(url: str) -> None:
    """Where it listens; stopped here if it was started here."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f":green-badge[:material/router: gateway at {url}]", width="content")
        running = [process for process in _own if process.exit_status is None]
        if running and st.button("Stop the gateway", key="o_gateway_stop", icon=":material/stop:"):
            with st.spinner("Answers under way are finished"):
                for process in running:
                    end(process)
            _own.clear()
            st.rerun()
