"""A LAB_HOME of the test session's own, and one real Triton for the tests marked `triton`.

Downloads, the unpacked server, trained weights and what numba compiled are shared with the project's LAB_HOME (they
cost a minute and are never changed by a test); runs, queue, repository and server.json are not. A machine that cannot
run Triton skips that tier and says why; with CI=true that is a failure.

What tests share is not handed on by one that failed: see tests/lasting.py, and `_no_run_goes_on` below.
"""

import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lab import home
from lab.errors import LabError
from lab.run import control
from lab.run.folder import RunFolder, runs
from lab.run.status import ACTIVE
from lab.serve import installation
from lab.serve.triton import Server
from tests.lasting import FAILED, Lasting, failed

SHARED = ("downloads", "triton", "models")
TIERS = ("gpu", "triton", "browser")
LONG = ("processes", "pages", "llm")
"""Tests beside the unit tier that need no server."""


# Here, not beside the tests that use it: a test has what is in force where its file is read.
settings.register_profile("whatever else runs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever else runs")


def pytest_configure() -> None:
    """Ctrl-C reaches the processes that tests start, also where the tests themselves run in the background of a shell:
    there it is ignored, and children inherit that. What they compile is kept: it goes by its content."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(home.home() / "numba"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no server, then Triton, then the browser. Within the first the long files first, so that processes
    which share them out end together; before all others one file that compiles, so that the rest of them find it done
    and wait for nothing."""
    compiling = next((item.path for item in items if "kernels" in getattr(item, "fixturenames", ())), None)

    def place(item: pytest.Item) -> tuple[int, bool, int]:
        has = item.get_closest_marker
        tier = max((n for n, name in enumerate(TIERS, start=1) if has(name)), default=0)
        long = min((n for n, name in enumerate(LONG) if has(name)), default=len(LONG))
        return tier, item.path != compiling, long

    items.sort(key=place)  # stable: else the order of the files stands


@pytest.fixture(scope="session", autouse=True)
def lab_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """LAB_HOME of the session, in the environment, so that processes the tests start see it too."""
    real, before = home.home(), os.environ.get("LAB_HOME")
    own = tmp_path_factory.mktemp("lab")
    for name in SHARED:
        (real / name).mkdir(exist_ok=True)
        (own / name).symlink_to(real / name)
    os.environ["LAB_HOME"] = str(own)
    yield own
    if before is None:
        del os.environ["LAB_HOME"]
    else:
        os.environ["LAB_HOME"] = before


@pytest.fixture(scope="session")
def triton_installed(lab_home: Path) -> None:
    try:
        installation.fetch()
    except LabError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the tests marked triton cannot run: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def _triton(lab_home: Path, triton_installed: None) -> Iterator[Lasting[Server]]:
    def start() -> Server:
        return Server.start(repository=lab_home / "repository", log=lab_home / "triton.log")

    with Lasting(start, Server.alive) as lasting:
        yield lasting


@pytest.fixture
def triton_server(_triton: Lasting[Server], request: pytest.FixtureRequest) -> Iterator[Server]:
    """The session's server, recorded in server.json. Started at first use, and anew after a test that killed it."""
    yield from _triton.lend(request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(autouse=True)
def _no_run_goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed may leave a run, in a thread or a process, behind which the next one would wait."""
    yield
    if failed(request.node):
        for info in runs():
            if info.state in ACTIVE:
                _end(RunFolder.open(info.run_id))


def _end(run: RunFolder, limit_s: float = 10.0) -> None:
    control.send(run.run_id, {"stop": True})
    deadline = time.monotonic() + limit_s
    while run.status().active and time.monotonic() < deadline:
        time.sleep(0.05)
    status = run.status()
    if status.active and status.pid and status.pid != os.getpid():
        with suppress(ProcessLookupError):
            os.kill(status.pid, signal.SIGKILL)
