"""When `lab up` says that it is ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from lab.run import dashboard
from lab.serve import ports


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
