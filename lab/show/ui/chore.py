"""A button where a page would otherwise ask its reader to type a command: it starts the command and says how it goes.

The command is a process of its own (lab/run/chores.py): the page may be closed, and another one finds it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

import streamlit as st

from lab.errors import LabError
from lab.run import chores
from lab.run.chores import Chore

TICK_S = 1.0
STOPPED = (-signal.SIGTERM, -signal.SIGKILL, 130)
"""Exit statuses of a chore that somebody stopped."""


def offer(
    name: str,
    label: str,
    arguments: Sequence[str],
    *,
    icon: str = ":material/play_arrow:",
    primary: bool = False,
    with_owner: bool = False,
    disabled: str = "",
    done: Callable[[], None] = lambda: None,
) -> None:
    """The button, while it goes on its last words and a way to stop it, and after a failure why. `disabled`: why it
    cannot be pressed now. Once it has ended well `done` is called and the page drawn anew. `with_owner`: it serves
    something, and ends with the dashboard."""
    found = _state(name)
    going = found is not None and found.going

    @st.fragment(run_every=TICK_S if going else None, key=f"chore_{name}")
    def look() -> None:
        now = _state(name)
        if now is not None and now.going:
            if not going:
                st.rerun()  # a click in here began it, and only a whole rerun lets this tick
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(f":blue-badge[:material/hourglass_top: under way] {label}", width="content")
                st.button("Stop", key=f"chore_stop_{name}", icon=":material/stop:", on_click=_stop, args=(name,))
            st.caption(now.said or "It has begun; its first words come in a moment.")
            return
        if going:  # it ended just now
            if now is not None and now.status == 0:
                done()
            st.rerun()
        failed = now is not None and now.status not in (0, *STOPPED)
        if now is not None and failed:
            st.warning(now.said or f"It ended with status {now.status}.", icon=":material/sync_problem:")
        again = "Try it again: " if failed else ""
        st.button(
            f"{again}{label}",
            key=f"chore_go_{name}",
            icon=icon,
            type="primary" if primary else "secondary",
            disabled=bool(disabled),
            help=disabled or f"python -m lab {' '.join(arguments)}",
            on_click=_start,
            args=(name, tuple(arguments), with_owner),
        )
        if refused := st.session_state.pop(f"chore_refused_{name}", None):
            st.error(refused, icon=":material/error:")

    look()


def _state(name: str) -> Chore | None:
    try:
        return chores.state(name)
    except LabError:
        return None


def _start(name: str, arguments: Sequence[str], with_owner: bool) -> None:
    try:
        chores.start(name, arguments, with_owner=with_owner)
    except LabError as error:
        st.session_state[f"chore_refused_{name}"] = str(error)


def _stop(name: str) -> None:
    chores.stop(name)
