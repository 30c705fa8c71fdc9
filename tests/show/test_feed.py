"""What open pages ask for while they stand, as the browser gets it, without a browser and without Streamlit."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from lab.run import prices
from lab.run.folder import RunFolder
from lab.run.live import Live
from lab.show import feed
from lab.show.moment import draw, moment
from tests.show.conftest import DONE, FAILED, LLM_LOAD
from tests.show.pages import GOING, begun, load_run
from tests.waiting import until


def ask(run_id: str, query: str = "") -> tuple[int, dict[str, Any]]:
    scope = {"type": "http", "path_params": {"run_id": run_id}, "query_string": query.encode(), "headers": []}
    answer = feed.live(Request(scope))
    return answer.status_code, json.loads(bytes(answer.body))


def test_what_is_asked_for_is_what_the_page_was_built_with(full_home: Path) -> None:
    price = prices.catalogue()[0]
    status, found = ask(LLM_LOAD, f"w=10&log=0&price={price.id}")
    folder = RunFolder.open(LLM_LOAD)
    view = Live(folder).update()
    drawn = draw(folder, view, window_s=10, log=False)
    assert status == 200
    assert found == json.loads(json.dumps(moment(folder, view, drawn, price=price)))
    assert found["figure"]["layout"]["xaxis"]["range"][0] > 0
    assert not found["active"]


def test_a_price_that_there_is_not_costs_nothing(full_home: Path) -> None:
    assert ask(LLM_LOAD, "price=no-such-price")[1]["cost"] == ""


@pytest.mark.parametrize("run", ["20261130-000000-load-none", "..%2f..%2fetc", ""])
def test_a_run_that_is_not_there_is_one_line(run: str, full_home: Path) -> None:
    status, found = ask(run)
    assert status == 404
    assert list(found) == ["error"] and "\n" not in found["error"]


def test_what_is_in_force_is_another_text_once_it_was_changed(empty_home: Path) -> None:
    folder = load_run()
    begun(folder, 50.0)
    before = ask(GOING)[1]
    assert before["active"] and before["settings"] == "digits, batching off, 50.0 req/s"
    folder.event("change", field="rate_rps", **{"from": 50.0}, to=250.0)
    after = until(lambda: (found := ask(GOING)[1])["settings"] != before["settings"] and found)
    assert after["settings"] == "digits, batching off, 250 req/s"
    assert before["in_force"] != after["in_force"]


def test_two_who_look_at_once_cost_one_read(full_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, update = [], Live.update
    monkeypatch.setattr(Live, "update", lambda live: looks.append(live) or update(live))
    own = feed.Feed()
    first, second = (own.look(RunFolder.open(LLM_LOAD), within_s=60.0) for _ in range(2))
    assert first is second and len(looks) == 1
    own.look(RunFolder.open(LLM_LOAD))
    assert len(looks) == 2


def test_a_run_that_nobody_looks_at_is_no_longer_followed(full_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = feed.Feed()
    own.look(RunFolder.open(LLM_LOAD))
    monkeypatch.setattr(feed, "FORGET_S", -1.0)
    own.look(RunFolder.open(DONE))
    assert list(own._followed) == [str(RunFolder.open(DONE).path)]


def test_the_state_is_another_when_a_run_begins_gets_its_turn_or_ends(full_home: Path) -> None:
    seen = [feed.token()]
    folder = load_run(state="queued")
    seen.append(feed.token())
    for state in ("running", "done"):
        folder.set_status(state)
        seen.append(feed.token())
    assert seen[0] == seen[3] and len(set(seen)) == 3
    folder = load_run("20261130-030303-load-more")
    steady = feed.token()
    folder.set_status("warm-up")
    assert feed.token() == steady


def test_of_runs_that_ended_only_the_status_files_times_are_read(
    full_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.token()
    opened: list[str] = []
    whole = RunFolder.open
    monkeypatch.setattr(RunFolder, "open", lambda run_id: opened.append(run_id) or whole(run_id))
    feed.token()
    assert opened == []
    RunFolder(full_home / "runs" / FAILED, {}).set_status("running")
    feed.token()
    assert opened == [FAILED]


def test_progress_is_another_text_only_once_there_is_something_to_build(empty_home: Path) -> None:
    folder = load_run()
    first, by_block = (feed.progress_of(folder, each_block=each) for each in (False, True))
    assert (first["state"], first["progress"]) == (("running", "blue"), 0.5)
    folder.set_status("running", phase="block 2 of 4", progress=0.75)
    begun(folder, 50.0)
    then = feed.progress_of(folder, each_block=False)
    assert (then["token"], then["phase"], then["progress"]) == (first["token"], "block 2 of 4", 0.75)
    assert feed.progress_of(folder, each_block=True)["token"] != by_block["token"]
    folder.set_status("done")
    assert feed.progress_of(folder, each_block=False)["token"] != first["token"]


def test_a_state_that_is_its_own_phase_is_said_once(empty_home: Path) -> None:
    folder = load_run(phase="starting", state="starting")
    found = feed.progress_of(folder, each_block=False)
    assert (found["state"][0], found["phase"]) == ("starting", "")
