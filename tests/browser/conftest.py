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
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect, sync_playwright

from lab.run import control
from lab.run.folder import RunFolder, new_run_id
from tests.waiting import LIMIT_S, until

PROJECT = Path(__file__).parents[2]
LIMIT_MS = 2 * 1000 * LIMIT_S
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
        # Bound, and not listened on, until Streamlit does: no neighbour takes the port meanwhile.
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
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
            try:
                up = f"{url}/_stcore/health"
                until(lambda: self.process.poll() is not None or _answers(up), "Streamlit", 2 * LIMIT_S)
                assert self.process.poll() is None, log.read_text()[-3000:]
            except BaseException:
                self.__exit__()
                raise
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


# A component's script comes after its markup: until it has, there is a place for a chart and no chart. What is stale or
# new fades, and has another colour and another place than it will have.
SETTLED = """document.querySelector(
    "[data-testid=stApp][data-test-script-state=notRunning][data-test-connection-state=CONNECTED]")
  && !document.querySelector("[data-testid=stSkeleton], [data-stale=true]")
  && [...document.querySelectorAll(".lab-plot")].every((plot) => plot.querySelector(".main-svg"))
  && [...document.querySelectorAll(".lab-recorder")].every((root) => root.recorder?.panels)
  && document.getAnimations().every((one) => one.playState !== "running" || one.effect?.getTiming().iterations > 9)"""


def settled(page: Page, read: str = "true") -> Any:
    """What `read` gives once the page has its title, its charts, and no script runs: asked and read in one step, as a
    page may begin anew between two."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    return page.wait_for_function(f"() => {SETTLED} && {read}").json_value()


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
    process = subprocess.Popen([sys.executable, "-m", "tests.show.feed", run_id, "3600"], cwd=PROJECT)
    feeder = Feeder(run_id, process)
    try:
        until(lambda: (lab_home / "runs" / run_id / "events.jsonl").exists(), "the feeder to write")
        # A page that is built while it is still queued is built anew once it runs.
        until(lambda: feeder.folder.status().state == "running", "the feeder to run")
        yield feeder
        if process.poll() is None:  # in order: for the next test's pages a killed one would go on for seconds
            control.send(run_id, {"stop": True})
            until(lambda: process.poll() is not None, "the feeder to end")
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
