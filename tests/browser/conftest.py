"""The real dashboard in Debian's chromium, driven by Playwright.

Without chromium the tier skips and says why; with CI=true that is a failure. scripts/test installs it where it can.
"""

import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect, sync_playwright

from lab.run.folder import RunFolder, new_run_id
from tests.waiting import LIMIT_S, until

PROJECT = Path(__file__).parents[2]
LIMIT_MS = 1000 * LIMIT_S
"""How long a page may take on a machine that does other things too; nothing here measures speed."""
expect.set_options(timeout=LIMIT_MS)


@dataclass
class Dashboard:
    url: str
    log: Path

    def page(self, path: str = "", **params: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in params.items())
        return f"{self.url}/{path}{'?' if query else ''}{query}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium for a file of tests; not for the session, because Playwright's event loop stays open with it and other
    tests run loops of their own."""
    chromium = shutil.which("chromium")
    if chromium is None:
        _unavailable("there is no chromium; as root, `apt-get install chromium`")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except Error as error:
            _unavailable(f"chromium does not start: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


def _unavailable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"the tests marked browser cannot run: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def dashboard(lab_home: Path, browser: Browser) -> Iterator[Dashboard]:
    with serving(lab_home) as found:
        yield found


@pytest.fixture
def cold_dashboard(lab_home: Path, browser: Browser) -> Iterator[Dashboard]:
    """A server that nobody has opened yet."""
    with serving(lab_home) as found:
        yield found


class serving:  # used like a function
    """`with serving(home) as dashboard`: Streamlit in a process of its own, ended at the end of the block. `module` is
    what runs instead of Streamlit, with the same arguments."""

    def __init__(self, home: Path, module: str = "streamlit") -> None:
        self.home = home
        self.module = module

    def __enter__(self) -> Dashboard:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = self.home / f"streamlit-{port}.log"
        command = [sys.executable, "-m", self.module, "run", "asgi.py", f"--server.port={port}"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**os.environ, "LAB_HOME": str(self.home)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        url = f"http://127.0.0.1:{port}"
        until(lambda: _answers(f"{url}/_stcore/health"), "Streamlit to answer")
        return Dashboard(url, log)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(LIMIT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@dataclass
class Feeder:
    """A load run that is being written by a process of its own (tests/show/feed.py)."""

    run_id: str
    process: subprocess.Popen[bytes]

    @property
    def folder(self) -> RunFolder:
        return RunFolder.open(self.run_id)


@pytest.fixture
def feeder(lab_home: Path) -> Iterator[Feeder]:
    run_id = new_run_id("load")
    process = subprocess.Popen([sys.executable, "-m", "tests.show.feed", run_id, "120"], cwd=PROJECT)
    path = lab_home / "runs" / run_id
    until(lambda: (path / "events.jsonl").exists(), "the feeder to write")
    yield Feeder(run_id, process)
    process.kill()
    process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
