"""Which run a page is about, and starting one so that a double click is one run.

The URL holds the run: a reload, a copied link and a second browser all show the same one. Opening a link starts
nothing. The session remembers the run only so that the menu leads to the page of the run just seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from lab.errors import FolderError, LabError
from lab.run import launch
from lab.run.folder import RunFolder, new_run_id
from lab.show.bets import Bet
from lab.show.ui import cassettes, reads
from lab.spec import ModelSpec

PAGES = {
    "batching": ("pages/batching.py", ":material/stacks:"),
    "kv_cache": ("pages/kv_cache.py", ":material/memory:"),
    "multi_model": ("pages/memory.py", ":material/view_cozy:"),
    "lora": ("pages/memory.py", ":material/view_cozy:"),
    "patterns": ("pages/patterns.py", ":material/route:"),
    "autoscaling": ("pages/patterns.py", ":material/route:"),
    "llm_batching": ("pages/scheduling.py", ":material/view_timeline:"),
    "quantization": ("pages/quantization.py", ":material/compress:"),
    "cold_start": ("pages/cold_start.py", ":material/ac_unit:"),
    "serverless": ("pages/cold_start.py", ":material/ac_unit:"),
    "canary": ("pages/rollout.py", ":material/alt_route:"),
    "blue_green": ("pages/rollout.py", ":material/alt_route:"),
    "search": ("pages/sweep.py", ":material/tune:"),
    "sweep": ("pages/sweep.py", ":material/tune:"),
    "factorial": ("pages/sweep.py", ":material/tune:"),
    "factorial_llm": ("pages/sweep.py", ":material/tune:"),
    "engines": ("pages/your_server.py", ":material/lan:"),
}
"""The page of each experiment that has one, and its icon."""
LIVE = ("pages/live.py", ":material/monitoring:")


def link(run_id: str, experiment_id: str, label: str, *, active: bool = False, disabled: bool = False) -> None:
    """A link to the page that shows this run best: that of its experiment, or while it goes on the live page."""
    page, icon = LIVE if active else PAGES.get(experiment_id, LIVE)
    st.page_link(page, label=label, icon=icon, query_params={"run": run_id}, disabled=disabled)


def chosen(fits: Callable[[reads.RunLine], bool] = lambda line: True) -> RunFolder | None:
    """The run in the URL; else the one this session saw last, else one that goes on, if it `fits` the page; else, where
    no run of this machine does, a recorded one.

    An id that leads nowhere is told on the page, with a way on, and gives None."""
    asked = st.query_params.get("run")
    run_id = asked or _likely(fits)
    if run_id is None:
        return cassettes.instead(fits)
    try:
        folder = RunFolder.open(run_id)
    except FolderError as error:
        if asked:
            st.warning(str(error), icon=":material/search_off:")
            st.page_link("pages/runs.py", label="See the runs there are", icon=":material/list:")
        return None
    remember(run_id)
    cassettes.told(folder)
    return folder


def named() -> bool:
    """Whether the page's link names a run. Where there is no such run, `chosen` has said so, and nothing happened."""
    return bool(st.query_params.get("run"))


def remember(run_id: str) -> None:
    """Make this the page's run, in the URL and for the menu."""
    st.session_state["seen_run"] = run_id
    if st.query_params.get("run") != run_id:
        st.query_params["run"] = run_id


THEN = "then"
"""In the link of the live page: where it goes by itself once the run is done."""


def start(
    experiment_id: str, settings: Sequence[str], quick: bool, page: str, bet: Bet | None = None, then: str = ""
) -> None:
    """Start a run, its user's bet in it, and go to `page`, from the live page on to the page `then` (the name of its
    file) once it is done; one line on the page when it is refused."""

    def begin(run_id: str) -> None:
        launch.start(experiment_id, list(settings), quick, run_id, None if bet is None else str(bet))
        if bet is not None:
            st.session_state.setdefault("bets_of_session", []).append(run_id)

    _begin(experiment_id, page, begin, then)


def start_command(command: str, arguments: Sequence[str], page: str, then: str = "") -> None:
    """Start `lab load`, `lab search` or `lab sweep` with these arguments, and go on as `start` does."""
    _begin(command, page, lambda run_id: launch.start_command(command, arguments, run_id), then)


def replay(name: str) -> None:
    """Play the lab's own recording of that name and watch it."""
    _begin(f"replay-{name}", "pages/live.py", lambda run_id: launch.replay(name, run_id))


def start_live(model: ModelSpec, rate_rps: float) -> None:
    """Start an open-ended load on `model` and watch it."""
    _begin(f"live-{model.name}", "pages/live.py", lambda run_id: launch.start_live(model, run_id, rate_rps=rate_rps))


def page_of(experiment_id: str) -> str | None:
    """The page that tells what runs of this experiment found; None where that is the live page."""
    return PAGES[experiment_id][0] if experiment_id in PAGES else None


def _begin(name: str, page: str, begin: Callable[[str], object], then: str = "") -> None:
    run_id = _id_for(name)
    try:
        with st.spinner("Starting a process of its own for the run"):
            begin(run_id)
    except LabError as error:
        st.error(str(error), icon=":material/error:")
        return
    reads.run_lines.clear()
    st.session_state["seen_run"] = run_id
    st.switch_page(page, query_params={"run": run_id, **({THEN: then} if then else {})})


def _id_for(name: str) -> str:
    """The id for the next start: the last one again for as long as its run goes on (a second click finds the run
    there) or was never made (the start was refused)."""
    key = f"next_run_{name}"
    run_id = st.session_state.get(key)
    if run_id is not None:
        try:
            over = not RunFolder.open(run_id).status().active
        except FolderError:
            over = False
        if not over:
            return str(run_id)
    run_id = st.session_state[key] = new_run_id(name)
    return run_id


def _likely(fits: Callable[[reads.RunLine], bool]) -> str | None:
    seen = st.session_state.get("seen_run")
    lines = reads.run_lines()
    fitting = [line for line in lines if fits(line)]
    if any(line.run_id == seen for line in fitting):
        return str(seen)
    going = [line for line in fitting if line.active]
    return going[-1].run_id if going else None
