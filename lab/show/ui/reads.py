"""What pages read from disk, kept for a moment and shared by all sessions, so that many open tabs cost one read.

Everything here is read-only; the truth stays in the run folders. Cached values are plain, never live objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from lab.errors import InputError, LabError
from lab.measure.quality import Quality, Sensitivity
from lab.measure.words import format_rate, plural
from lab.run import cassette, catalogue, gauge, quality, rescore, results
from lab.run.folder import RunFolder, RunInfo, runs
from lab.run.live import LiveView
from lab.run.status import ACTIVE
from lab.serve import doctor, installation, record, weights
from lab.show import pooled
from lab.show.feed import FEED
from lab.show.ui.words import title_of
from lab.spec import Experiment, ModelSpec, Slo
from lab.watch.gpu import read_gpus
from lab.watch.reading import Reading


@dataclass(frozen=True)
class RunLine:
    """One run in a list."""

    run_id: str
    state: str
    created_utc: str
    experiment: str
    title: str
    model: str
    cells: int
    quick: bool
    message: str
    recorded: bool = False
    bet: bool = False

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def what(self) -> str:
        """ "KV cache on llm, quick", or why nothing more is known."""
        if not self.experiment:
            return self.message or "unreadable"
        return f"{self.title} on {self.model}{', quick' if self.quick else ''}{', recorded' if self.recorded else ''}"


@st.cache_data(ttl=2.0, show_spinner=False)
def run_lines() -> list[RunLine]:
    """Every run, newest first."""
    lines = []
    for info in runs():
        try:
            lines.append(_line(info))
        except (AttributeError, TypeError):  # JSON, but no run: one such folder must not hide the others
            message = "run.json: damaged: holds no experiment"
            lines.append(RunLine(info.run_id, "damaged", info.created_utc, "", "", "", 0, False, message))
    return lines


def _line(info: RunInfo) -> RunLine:
    experiment = info.document.get("experiment") or {}
    return RunLine(
        info.run_id,
        info.state,
        info.created_utc,
        str(experiment.get("id", "")),
        title_of(experiment) if "id" in experiment else "",
        str(experiment.get("model", {}).get("name", "")),
        len(info.document.get("cells", ())),
        bool(info.document.get("quick")),
        info.message,
        bool(info.document.get("recorded")),
        "bet" in info.document,
    )


FIRST = ("batching", "llm_batching", "kv_cache", "quantization", "multi_model", "sweep")
"""Recordings of these experiments come first where a page takes any run: they compare settings under load."""


@st.cache_data(show_spinner=False)
def recorded_lines() -> list[RunLine]:
    """The recordings that come with the lab, as runs that are done."""
    lines = [
        RunLine(m.run, "done", m.created_utc, m.experiment, m.title, m.model, 1, False, "", recorded=True)
        for m in cassette.shipped().values()
    ]
    return sorted(lines, key=lambda line: FIRST.index(line.experiment) if line.experiment in FIRST else len(FIRST))


@st.cache_data(show_spinner=False)
def comparable_recordings() -> list[RunLine]:
    """Those of them of which every request was kept."""
    whole = {m.run for m in cassette.shipped().values() if m.requests_one_in == 1}
    return [line for line in recorded_lines() if line.run_id in whole]


def active_runs() -> list[RunLine]:
    """Runs that go on, the one that measures first and those that wait behind it after it."""
    going = [line for line in run_lines() if line.active]
    return sorted(going, key=lambda line: (line.state == "queued", line.created_utc))


def document(folder: RunFolder) -> dict[str, Any]:
    """The run's document (lab.run.results); computed once for an ended run, anew for one that goes on."""
    status = folder.status()
    if status.active:
        return results.document(folder)
    return _ended(folder.run_id, status.state, status.heartbeat_ns)


@st.cache_data(max_entries=4, show_spinner="Reading the run")
def _ended(run_id: str, state: str, heartbeat_ns: int) -> dict[str, Any]:
    # state and heartbeat are part of the key: a run that was seen as interrupted may have been continued since.
    return results.document(RunFolder.open(run_id))


def rescored(folder: RunFolder, slo: Slo) -> dict[str, Any]:
    """The document of a run with its figures taken against `slo`; its own where the run goes on."""
    status = folder.status()
    if status.active:
        return document(folder)
    return _rescored(folder.run_id, status.state, status.heartbeat_ns, slo.model_dump_json())


@st.cache_data(max_entries=8, show_spinner="Scoring the records")
def _rescored(run_id: str, state: str, heartbeat_ns: int, slo: str) -> dict[str, Any]:
    return rescore.against(RunFolder.open(run_id), _ended(run_id, state, heartbeat_ns), Slo.model_validate_json(slo))


def newest_measured(lines: Sequence[RunLine]) -> RunLine | None:
    """The first of ended runs in which something was measured; else the first; None when there are none."""
    return next((line for line in lines if _was_measured(line.run_id, line.state)), next(iter(lines), None))


@st.cache_data(max_entries=1000, show_spinner=False)
def _was_measured(run_id: str, state: str) -> bool:
    # The state is part of the key for the same reason.
    try:
        cells = results.document(RunFolder.open(run_id))["cells"]
    except LabError:
        return False
    return any(cell["role"] == "cell" and cell["summary"].get("throughput_rps") is not None for cell in cells)


@st.cache_data(max_entries=16, show_spinner="Reading the records")
def from_records(what: str, run_id: str, factor: str | None, load: str, levels: tuple[str, ...]) -> dict[str, Any]:
    """{level: …} of an ended run at one load, as the function `what` of lab.show.pooled finds it."""
    found: dict[str, Any] = getattr(pooled, what)(RunFolder.open(run_id), factor, load, levels)
    return found


@st.cache_data(ttl=60.0, show_spinner=False)
def model_config(spec: ModelSpec) -> dict[str, Any] | None:
    """The config.json beside the weights of a language model; None when they are not on this machine."""
    try:
        return weights.model_config(spec) or None
    except InputError:
        return None


@st.cache_data(ttl=15.0, show_spinner=False)
def is_here(spec: ModelSpec) -> bool:
    """Whether the weights of `spec` are on this machine."""
    return weights.is_ready(spec)


@st.cache_data(ttl=15.0, show_spinner=False)
def known_quality(spec: ModelSpec) -> Quality | None:
    """What was evaluated of this format; None where nothing was."""
    return quality.known(spec)


@st.cache_data(ttl=15.0, show_spinner=False)
def known_blocks(spec: ModelSpec) -> tuple[Sensitivity, ...] | None:
    """What each block alone costs in this format; None where that was not evaluated."""
    return quality.known_blocks(spec)


def look(folder: RunFolder) -> LiveView:
    """The run as it stands now, followed once for all pages."""
    return FEED.look(folder)


@st.cache_data(ttl=2.0, show_spinner=False)
def server() -> bool:
    """Whether the managed Triton lives."""
    return record.read() is not None


@st.cache_resource(show_spinner=False)
def declared(experiment_id: str) -> Experiment:
    return catalogue.experiment(experiment_id)


@st.cache_data(ttl=600.0, show_spinner=False)
def gpu() -> str:
    """ "no GPU" or how many there are."""
    return plural(installation.gpus(), "GPU") if installation.gpus() else "no GPU"


@st.cache_data(ttl=2.0, show_spinner=False)
def gpus() -> list[Reading]:
    """What NVML says of the GPUs: each field a value or a reason."""
    return read_gpus()


@st.cache_data(ttl=15.0, show_spinner=False)
def ceiling() -> str:
    """The most that the load generator can send here: "client ≤ 9,200 req/s"; "client not gauged" until it was."""
    found = gauge.read()
    return "client not gauged" if found is None else f"client ≤ {format_rate(found.rate_rps)}"


@st.cache_data(ttl=15.0, show_spinner=False)
def readiness() -> list[doctor.Check]:
    """What `python -m lab doctor` finds."""
    checks: list[doctor.Check] = doctor.checks()
    return checks
