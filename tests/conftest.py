"""A LAB_HOME of the test session's own, and one real Triton for the tests marked `triton`.

Downloads, the unpacked server and trained weights are shared with the project's LAB_HOME (they cost a minute and are
never changed by a test); runs, queue, repository and server.json are not. A machine that cannot run Triton skips that
tier and says why; with CI=true that is a failure.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import home
from lab.errors import LabError
from lab.serve import installation
from lab.serve.triton import Server

SHARED = ("downloads", "triton", "models")
TIERS = ("gpu", "triton", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tiers first: what needs no server, then Triton, then the browser."""

    def tier(item: pytest.Item) -> int:
        return max((n for n, name in enumerate(TIERS, start=1) if item.get_closest_marker(name)), default=0)

    items.sort(key=tier)  # stable: within a tier the order of the files stands


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
def _triton_session(lab_home: Path, triton_installed: None) -> Iterator[list[Server]]:
    running: list[Server] = []
    yield running
    for server in running:
        server.stop()


@pytest.fixture
def triton_server(lab_home: Path, _triton_session: list[Server]) -> Server:
    """The session's server, recorded in server.json. Started at first use, and anew after a test that killed it."""
    if not _triton_session or not _triton_session[-1].alive():
        for dead in _triton_session:
            dead.stop()
        _triton_session[:] = [Server.start(repository=lab_home / "repository", log=lab_home / "triton.log")]
    return _triton_session[0]
