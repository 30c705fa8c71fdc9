"""The page Rollout from files alone: nothing routed, one version, a canary under way, a click that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from lab.spec import parse
from lab.track import rollout
from lab.track.canary import Ended, Watch
from lab.track.routes import Routes
from lab.track.routing import Version, to_one

pytestmark = pytest.mark.pages

APP = str(Path(__file__).parents[2] / "app.py")


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


def shown(**params: str) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=60).run()
    app.switch_page("pages/rollout.py")
    for name, value in params.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


def words(app: AppTest) -> str:
    return " ".join(element.value for element in [*app.markdown, *app.caption, *app.info])


def test_page_shows_a_rollout_and_moves_it(own_home: Path) -> None:
    assert "Nothing is routed yet" in words(shown(o_part="Your traffic"))
    routes = Routes()
    routes.change("digits", lambda _: to_one("digits", "lab"))
    assert "Version 1 has all of the traffic" in words(shown())
    two = parse(Version, {"version": "2", "weight": 0, "replicas": [{"url": "lab", "model": "digits_v2"}]})
    rollout.add_version(routes, "digits", two)
    shown().button(key="o_begin").click().run()
    routes.refresh()
    assert routes.by_name["digits"].canary is not None
    Watch(routes).tick({"digits": [Ended(v, 0.01, 0, 0.02) for v in "1" * 300 + "2" * 9]})
    app = shown()
    assert "The rollout of version 2 is under way" in words(app) and "has had 9 requests" in words(app)
    assert len(app.metric) == 4
    app.button(key="o_roll_back").click().run()
    routes.refresh()
    assert [version.weight for version in routes.by_name["digits"].versions] == [1.0, 0.0]
    assert "was rolled back" in words(shown())
