"""Tracks and hiding: the plan fits its pages, the bar leads on from everywhere, and the link keeps both."""

from pathlib import Path
from typing import Any

import pytest

from lab.show import tracks
from lab.show.tracks import TRACKS
from tests.show.conftest import DONE
from tests.show.pages import PROJECT, open_page, words


def test_each_track_takes_as_long_as_it_says_and_visits_pages_that_exist() -> None:
    minutes = {track.key: track.minutes for track in TRACKS}
    assert minutes == {"workshop": 90, "interview": 30, "serving": 45, "review": 60, "tuning": 60}
    for track in TRACKS:
        for halt in track.halts:
            assert (PROJECT / halt.file).is_file(), halt
            assert halt.minutes > 0 and halt.does.endswith((".", "?"))


def test_a_page_that_is_visited_twice_is_told_apart_by_how_far_one_is() -> None:
    interview = tracks.BY_KEY["interview"]
    assert interview.place("drills") == 0
    assert interview.place("drills", before=1) == 2 and interview.place("drills", before=3) == 3
    assert interview.place("cost") is None


def test_a_hidden_page_is_no_stop() -> None:
    workshop = tracks.BY_KEY["workshop"].without({"quantization"})
    assert [halt.page for halt in workshop.halts] == ["start", "batching", "kv_cache", "memory", "compare"]


@pytest.mark.parametrize(
    ("text", "found", "strangers"),
    [
        ("answers,Plan", {"answers", "plan"}, ()),
        (" verdicts , ,x,x", {"verdicts"}, ("x",)),
        ("start", set(), ("start",)),
        ("", set(), ()),
    ],
)
def test_what_a_link_hides(text: str, found: set[str], strangers: tuple[str, ...]) -> None:
    assert tracks.hidden(text, ["plan", "start"]) == (found, strangers)


@pytest.mark.pages
def test_settings_are_hidden_and_what_is_declared_runs(full_home: Path, started: list[tuple[Any, ...]]) -> None:
    app = open_page("quantization", hide="settings")
    assert not app.exception
    with pytest.raises(KeyError):
        app.button_group(key="q_formats")
    app.button(key="run_ab").click().run()
    assert started[0][:3] == ("quantization", [], True)


@pytest.mark.pages
def test_the_bar_says_where_one_is_and_leads_on(full_home: Path) -> None:
    app = open_page("quantization", track="workshop")
    assert not app.exception
    said = words(app)
    assert "stop 3 of 6: **Quantization**, 20 min" in said
    assert app.get("progress")[0].proto.text == "25 of 90 min are behind you by the plan"
    labels = [link.proto.label for link in app.get("page_link")]
    assert "Next: KV cache" in labels and "Back" in labels
    app.switch_page("pages/cost.py").run()  # no stop of this track
    assert "waits while you look around" in words(app)
    assert "Back to Quantization" in [link.proto.label for link in app.get("page_link")]
    app.button(key="track_leave").click().run()
    assert "Workshop" not in words(app) and "track" not in app.query_params


@pytest.mark.pages
def test_the_same_page_twice_goes_by_the_step_in_the_link(full_home: Path) -> None:
    assert "stop 3 of 4: **Follow up**" in words(open_page("drills", track="interview", step="3"))
    for step in ("9", "x"):
        assert "stop 1 of 4: **Warm up**" in words(open_page("drills", track="interview", step=step))


@pytest.mark.pages
def test_a_track_that_is_none_is_told(full_home: Path) -> None:
    app = open_page("batching", track="bogus", run=DONE)
    assert not app.exception and "track=bogus: there is none; allowed: workshop, interview" in words(app)


@pytest.mark.pages
@pytest.mark.parametrize(("page", "untold"), [("tail", "slowest requests spent"), ("sweep", "worth having:")])
def test_what_was_found_is_hidden_on_pages_without_a_badge_too(full_home: Path, page: str, untold: str) -> None:
    told, hidden = words(open_page(page)), words(open_page(page, hide="verdicts"))
    assert untold in told and untold not in hidden
    assert "hidden by this link" in hidden


def test_hiding_stays_from_page_to_page_and_an_empty_one_ends_it(full_home: Path) -> None:
    app = open_page("batching", run=DONE, hide="verdicts")
    app.switch_page("pages/kv_cache.py").run()
    assert app.query_params["hide"] in ("verdicts", ["verdicts"])
    app.switch_page("pages/batching.py")
    app.query_params["hide"] = ""
    app.query_params["run"] = DONE
    app.run()
    assert "hidden by this link" not in words(app)
