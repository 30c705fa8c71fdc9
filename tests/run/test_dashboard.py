"""When `lab up` says that it is ready."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.errors import RunError
from lab.run import dashboard
from lab.run.lock import MeasureLock
from lab.serve import ports
from lab.serve.process import Process


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[HTTPServer]:
    """Bound, so that no neighbour takes its port, and not listening until it is activated."""
    with HTTPServer(("127.0.0.1", 0), Page, bind_and_activate=False) as server:
        server.server_bind()
        yield server


def test_a_page_that_is_late_is_told_about_once_and_waited_for(
    page: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "PATIENCE_S", 0.0)
    said: list[str] = []
    thread = threading.Thread(target=page.serve_forever)

    def report(line: str) -> None:
        said.append(line)
        page.server_activate()  # only now does it begin to answer
        thread.start()

    streamlit: Any = SimpleNamespace(exit_status=None)
    assert dashboard._page_answers(streamlit, page.server_port, lambda: False, report)
    page.shutdown()
    thread.join()
    assert len(said) == 1
    assert "still waiting" in said[0]


@pytest.mark.parametrize(("exit_status", "stopped"), [(1, False), (None, True)])
def test_a_page_that_will_not_come_is_not_ready(exit_status: int | None, stopped: bool) -> None:
    (port,), _ = ports.pick(count=1)
    streamlit: Any = SimpleNamespace(exit_status=exit_status)
    assert not dashboard._page_answers(streamlit, port, lambda: stopped, pytest.fail)


def test_the_dashboard_steps_back_while_a_run_measures_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    changed: list[tuple[int, int]] = []
    allowed = [False, True, True, True]  # the first time it is refused: tried again
    monkeypatch.setattr(dashboard.priority, "change", lambda pid, nice: changed.append((pid, nice)) or allowed.pop(0))
    steps_back = dashboard.StepsBack(7)
    assert [steps_back() for _ in range(3)] == [None] * 3 and changed == [(7, 0)] * 2
    with MeasureLock("20261130-010203-load-aaaa") as lock:
        lock.acquire(lambda place, holder: None)
        assert [steps_back() for _ in range(3)] == ["20261130-010203-load-aaaa"] * 3
        assert changed[2:] == [(7, 19)]
    assert steps_back() is None and changed[3:] == [(7, 0)]


@pytest.mark.parametrize(
    ("run", "load", "said"),
    [
        ("20261130-010203-load-aaaa", 0.1, "20261130-010203-load-aaaa measures"),
        (None, 1e4, "this machine is busy (load 10000 on "),
        (None, 0.1, "streamlit.log"),
    ],
)
def test_a_late_page_says_what_it_waits_for(
    run: str | None, load: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard.os, "getloadavg", lambda: (load, load, load))
    assert said in dashboard._why_late(run)


@pytest.mark.processes
def test_a_dashboard_that_was_killed_is_named_with_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_port: int) -> Process:
        child = Process(["/bin/sleep", "600"], {}, tmp_path / "streamlit.log")
        child.send_signal(signal.SIGKILL)
        assert child.wait(60)
        return child

    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setattr(dashboard, "_start_streamlit", killed)
    monkeypatch.setattr(dashboard, "_start_server", lambda report: None)
    monkeypatch.setattr(dashboard.signal, "signal", lambda *_: None)
    with pytest.raises(RunError, match=r"^the dashboard died \(signal 9\)"):
        dashboard.run_dashboard(0, lambda line: None)
