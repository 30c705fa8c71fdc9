"""The guard at work: what ended moves the routes, is written down, and survives a restart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.measure.records import CANCELLED, ERROR, OK, REFUSED
from lab.spec import parse
from lab.track import rollout
from lab.track.canary import Ended, Watch, by_share, seen
from lab.track.routes import Routes, last_look, place
from lab.track.routing import Canary, Route, Version, to_one


@pytest.fixture
def routes(tmp_path: Path) -> Routes:
    found = Routes(tmp_path)
    found.change("m", lambda _: to_one("m", "lab"))
    two = parse(Version, {"version": "2", "weight": 0, "replicas": [{"url": "lab", "model": "m_2"}]})
    rollout.add_version(found, "m", two)
    rollout.begin(found, "m", "2", steps=(0.25, 1.0))
    return found


def traffic(seed: int, *, errors: float = 0.0, count: int = 400) -> dict[str, list[Ended]]:
    random = np.random.default_rng(seed)
    ended = []
    for _ in range(count):
        version = "2" if random.random() < 0.25 else "1"
        failed = version == "2" and random.random() < errors
        ended.append(Ended(version, 0.25, ERROR if failed else OK, float(random.lognormal(-3, 0.5))))
    return {"m": ended}


def canary(routes: Routes) -> Canary:
    routes.refresh()
    found = routes.by_name["m"].canary
    assert found is not None
    return found


def test_bad_version_is_rolled_back_with_its_evidence(routes: Routes) -> None:
    told: list[Route] = []
    watch = Watch(routes, told.append)
    for second in range(20):
        watch.tick(traffic(second, errors=0.1))
    assert canary(routes).state == "rolled_back" and routes.by_name["m"].version("1").weight == 1
    line = routes.audit("m")[-1]
    assert (line["action"], line["by"], line["after"]) == ("roll_back", "guard", {"1": 1.0, "2": 0.0})
    assert line["evidence"]["text"].startswith("Roll back: errors") and line["touched"] > 0
    assert [route.canary and route.canary.state for route in told] == ["rolled_back"]


def test_good_version_is_promoted(routes: Routes) -> None:
    watch = Watch(routes)
    for second in range(120):
        watch.tick(traffic(second))
    assert canary(routes).state == "promoted" and routes.by_name["m"].version("2").weight == 1


def test_held_rollout_is_watched_and_not_moved(routes: Routes) -> None:
    rollout.move(routes, "m", "hold")
    watch = Watch(routes)
    for second in range(20):
        watch.tick(traffic(second, errors=0.1))
    assert canary(routes).state == "held" and routes.by_name["m"].version("2").weight == 0.25
    look = last_look(routes, "m")
    assert look is not None and look["verdict"]["action"] == "roll_back"
    rollout.move(routes, "m", "go_on")
    watch.tick({})
    assert canary(routes).state == "rolled_back"


def test_decision_of_a_person_has_the_guards_last_word_with_it(routes: Routes) -> None:
    rollout.move(routes, "m", "hold", by="ann")
    assert "evidence" not in routes.audit("m")[-1]  # the guard had not looked yet
    Watch(routes).tick(traffic(0))
    rollout.move(routes, "m", "promote", by="ann")
    line = routes.audit("m")[-1]
    assert (line["action"], line["by"]) == ("promote", "ann")
    assert line["touched"] > 0 and line["evidence"]["text"].startswith("Wait") and line["evidence"]["comparisons"]


def test_restart_goes_on_with_the_evidence_and_a_new_rollout_begins_without(routes: Routes) -> None:
    first = Watch(routes)
    for second in range(3):
        first.tick(traffic(second, errors=0.001))
    before = last_look(routes, "m")
    Watch(routes).tick({})  # another process, later
    after = last_look(routes, "m")
    assert before is not None and after is not None and after["touched"] == before["touched"] > 200
    assert after["guard"]["errors"] == before["guard"]["errors"]
    rollout.move(routes, "m", "roll_back")
    rollout.begin(routes, "m", "2", steps=(0.25, 1.0))
    first.tick({})
    anew = last_look(routes, "m")
    assert anew is not None and anew["touched"] == 0


def test_damaged_evidence_is_begun_anew(routes: Routes) -> None:
    place(routes, "m").parent.mkdir()
    place(routes, "m").write_text('{"begun": "' + canary(routes).begun + '", "guard": {"errors": 3}}')
    Watch(routes).tick(traffic(0))
    assert json.loads(place(routes, "m").read_text())["touched"] > 0


def test_somebody_who_was_quicker_stands(routes: Routes) -> None:
    """The guard decides on what it read; when the rollout has moved since, it does nothing."""
    watch = Watch(routes)
    other = Routes(routes.folder)
    rollout.move(other, "m", "promote")
    for second in range(20):
        watch.tick(traffic(second, errors=0.2))  # `routes` itself has not been read again
    other.refresh()
    assert other.by_name["m"].version("2").weight == 1


def test_only_what_was_drawn_is_compared_and_what_was_given_up_is_told_apart(routes: Routes) -> None:
    ended = [
        Ended("1", 0.25, OK, 0.1),
        Ended("2", 0.25, REFUSED, 0.0),
        Ended("2", None, ERROR, 0.1),  # asked for by name
        Ended("1", 0.25, CANCELLED, 0.1, user="ann"),
        Ended("3", 0.25, ERROR, 0.1),  # neither of the two
        Ended("2", 0.25, None, 0.0, score=0.2),
        Ended("2", 0.05, OK, 0.1),  # of the step before
    ]
    found = by_share(ended, canary(routes))
    assert set(found) == {0.25, 0.05}
    champion, challenger = found[0.25]
    assert (champion.requests, champion.failed, champion.given_up_s.tolist()) == (1, 0, [0.1])
    assert (challenger.requests, challenger.failed, challenger.scored, challenger.bad) == (1, 1, 1, 1)
    assert (champion.waits_by, champion.failed_by, challenger.waits_by) == ([None, "ann"], None, None)
    assert seen([]).requests == 0 and len(seen([]).latencies_s) == 0
