"""Run folders for charts and pages: built once by simulation, copied into a LAB_HOME of each test's own."""

import runpy
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.scriptrunner import script_runner

from lab.run import launch, results
from tests.once import once
from tests.show import synthetic, synthetic_llm
from tests.show.pages import load_run

DONE, STOPPED, FAILED = (
    "20261130-010101-batching-done",
    "20261130-010201-batching-stop",
    "20261130-010301-batching-fail",
)
QUANTIZATION = "20261130-010701-quantization-done"
KV_CACHE, LLM_BATCHING, LLM_LOAD = (
    "20261130-010401-kv-cache-done",
    "20261130-010501-llm-batching-done",
    "20261130-010601-load-llm",
)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory, lab_home: Path) -> Path:
    """A LAB_HOME that holds one finished, one stopped and one failed batching run, and a finished run of each kind on
    a language model. Not to be written to."""

    def fill(home: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LAB_HOME", str(home))
            synthetic.batching_run(DONE, duration_s=2.0, repeats=2)
            synthetic.batching_run(STOPPED, duration_s=2.0, state="cancelled")
            synthetic.batching_run(FAILED, duration_s=2.0, state="failed")
            synthetic_llm.run("kv_cache", KV_CACHE)
            synthetic_llm.run("llm_batching", LLM_BATCHING)
            synthetic_llm.run("quantization", QUANTIZATION)
            synthetic_llm.load_run(LLM_LOAD, 20.0)

    return once(tmp_path_factory, "shelf", fill)


@pytest.fixture(scope="session", autouse=True)
def known_components() -> Iterator[None]:
    """Every app that starts reads the metadata of all installed packages for components of theirs, 0.2 s each time;
    nothing is installed while the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield


@pytest.fixture(autouse=True)
def app_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every run, AppTest 1.67 forgets that the app calls st.navigation and takes `pages/` for the old kind of
    app, whose clicks it then loses; this runs app.py as a server does once it knows (lab.show.ui.frame.with_app)."""
    monkeypatch.setattr(script_runner, "_mpa_v1", lambda path: runpy.run_path(path, run_name="__main__"))


@pytest.fixture(autouse=True)
def nothing_hidden(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """`told` makes one line of an exception; a test that does not expect one (and clears the log) fails for it."""
    yield
    assert [r.exc_text or str(r.exc_info) for r in caplog.records if r.name == "lab.show.ui.words"] == []


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A LAB_HOME in which nothing has run."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    st.cache_data.clear()
    return tmp_path / "home"


@pytest.fixture
def full_home(empty_home: Path, shelf: Path) -> Path:
    """A LAB_HOME with the runs of `shelf`."""
    shutil.copytree(shelf / "runs", empty_home / "runs")
    return empty_home


@pytest.fixture(scope="session")
def document(shelf: Path, lab_home: Path) -> dict[str, Any]:
    """The finished run's document."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(shelf))
        return results.document(results.RunFolder.open(DONE))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been started; each start leaves a folder of a run that goes on."""
    calls: list[tuple[Any, ...]] = []

    def start(experiment_id: str, settings: list[str], quick: bool, run_id: str, bet: str | None = None) -> str:
        calls.append((experiment_id, settings, quick, run_id))
        if len({call[3] for call in calls}) == len(calls):
            load_run(run_id)
        return run_id

    monkeypatch.setattr(launch, "start", start)
    return calls
