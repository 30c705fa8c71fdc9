"""Routes: which version a request goes to, and that a change is one step, refused whole or made whole."""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.commands import rollout as command
from lab.errors import FolderError, InputError
from lab.gateway.serve import Wishes, serve
from lab.spec import parse
from lab.track import rollout
from lab.track.rollout import decide
from lab.track.routes import Routes
from lab.track.routing import (
    LEFT_OUT_AFTER,
    LEFT_OUT_S,
    Balancer,
    Replica,
    Route,
    Version,
    choose,
    to_one,
)
from tests.gateway.conftest import running, two_versions
from tests.load.fakes.streams import Story, openai_server


def dice() -> random.Random:
    return random.Random(0)


def route(*weights: float, **more: Any) -> Route:
    versions = [
        {"version": str(n), "weight": weight, "replicas": [{"url": "lab", "model": f"m_{n}"}]}
        for n, weight in enumerate(weights, start=1)
    ]
    return parse(Route, {"model": "m", "versions": versions, **more})


def shares(of: Route, keys: list[str | None]) -> Counter[str]:
    thrown = dice()
    return Counter(choose(of, key, None, thrown)[0].version for key in keys)


@pytest.mark.parametrize("weights", [(0.5, 0.4), (1.0, 0.1), (0.0, 0.0), (-0.5, 1.5), (float("nan"), 1.0)])
def test_weights_that_make_no_whole_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="weight"):
        route(*weights)


@pytest.mark.parametrize("keyed", [True, False])
def test_traffic_is_split_as_the_weights_say(keyed: bool) -> None:
    keys = [f"user {n}" if keyed else None for n in range(20_000)]
    found = shares(route(0.75, 0.2, 0.05), keys)
    # Five standard deviations of a binomial count.
    assert abs(found["1"] - 15_000) < 310 and abs(found["2"] - 4_000) < 285 and abs(found["3"] - 1_000) < 155


def test_a_version_without_weight_is_only_for_who_asks_for_it() -> None:
    assert shares(route(1.0, 0.0), [None, "a", "b"] * 1000) == {"1": 3000}
    assert choose(route(1.0, 0.0), "a", "2", dice())[0].version == "2"
    with pytest.raises(InputError, match="version '3'"):
        choose(route(1.0, 0.0), None, "3", dice())


def test_keys_move_only_to_the_version_that_grew() -> None:
    keys = [f"user {n}" for n in range(2000)]
    before = {key: choose(route(0.95, 0.05), key, None, dice())[0].version for key in keys}
    after = {key: choose(route(0.75, 0.25), key, None, dice())[0].version for key in keys}
    moved = {(before[key], after[key]) for key in keys if before[key] != after[key]}
    assert moved == {("1", "2")}


def test_replicas_share_as_the_route_says() -> None:
    replicas = [{"url": f"grpc://h:{port}", "model": "m"} for port in (1, 2, 3)]
    for balance in ("round_robin", "least_outstanding", "power_of_two"):
        versions = [{"version": "1", "weight": 1, "replicas": replicas}]
        of = parse(Route, {"model": "m", "versions": versions, "balance": balance})
        balancer = Balancer(dice())
        version = of.versions[0]
        assert len({balancer.pick(of, version) for _ in range(20)}) == 3  # idle: all alike
        busy = version.replicas[0]
        balancer.outstanding[busy] = 5
        found = Counter(balancer.pick(of, version) for _ in range(300))
        assert found[busy] == (100 if balance == "round_robin" else 0)


def test_replica_that_keeps_failing_is_left_out_for_a_while() -> None:
    now = 0.0
    replicas = [{"url": f"grpc://h:{port}", "model": "m"} for port in (1, 2, 3)]
    of = parse(Route, {"model": "m", "versions": [{"version": "1", "weight": 1, "replicas": replicas}]})
    version, balancer = of.versions[0], Balancer(dice(), lambda: now)
    bad, *good = version.replicas

    def picked() -> set[Replica]:
        return {balancer.pick(of, version) for _ in range(20)}

    for _ in range(LEFT_OUT_AFTER - 1):
        balancer.ended(bad, well=False)
    assert picked() == {bad, *good}
    balancer.ended(bad, well=True)  # not in a row
    for _ in range(LEFT_OUT_AFTER):
        balancer.ended(bad, well=False)
    assert picked() == set(good)
    now = LEFT_OUT_S + 1
    assert picked() == {bad, *good}
    balancer.ended(bad, well=False)  # the first one after it
    assert picked() == set(good)
    for replica in good:
        for _ in range(LEFT_OUT_AFTER):
            balancer.ended(replica, well=False)
    assert picked() == {bad, *good}  # better one that fails than none


def test_another_gateways_note_is_left_alone(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.served_at("http://127.0.0.1:1")
    assert routes.gateway() == "http://127.0.0.1:1"
    with pytest.raises(InputError, match="follows these routes"):
        serve(Wishes(folder=tmp_path, port=0))
    note = tmp_path / "gateway.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "pid": os.getppid()}))
    routes.served_at(None)
    assert note.exists()


def test_change_is_seen_by_another_reader_and_written_down(tmp_path: Path) -> None:
    writer, reader = Routes(tmp_path), Routes(tmp_path)
    writer.change("m", lambda _: route(0.9, 0.1), action="serve", by="test")
    assert reader.refresh() and reader.by_name["m"].versions[1].weight == 0.1
    assert not reader.refresh()
    assert Routes(tmp_path).by_name == writer.by_name  # a new process
    (line,) = writer.audit("m")
    assert (line["action"], line["before"], line["after"]) == ("serve", None, {"1": 0.9, "2": 0.1})


def test_refused_change_leaves_everything_as_it_was(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(0.9, 0.1))
    before = routes.path.read_bytes()
    for wrong in ({"1": 0.9, "2": 0.2}, {"1": 0.5, "9": 0.5}):
        with pytest.raises(InputError):
            routes.change("m", lambda now, wrong=wrong: now and now.weighing(wrong))
    assert routes.path.read_bytes() == before and len(routes.audit()) == 1


def test_changes_from_many_sides_are_all_made(tmp_path: Path) -> None:
    def add(n: int) -> None:
        Routes(tmp_path).change(f"m{n}", lambda _: to_one(f"m{n}", "lab"))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Routes(tmp_path).by_name) == 12 and len(Routes(tmp_path).audit()) == 12


def test_damaged_file_is_named_and_not_read_half(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(1.0))
    routes.path.write_text(routes.path.read_text()[:-20])
    with pytest.raises(FolderError, match=r"routes\.json"):
        routes.refresh()
    assert list(routes.by_name) == ["m"]
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"model": "m", "cut')
    assert len(routes.audit()) == 1


def test_canary_goes_by_steps_and_ends_once(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(1.0))
    new = parse(Version, {"version": "2", "weight": 0, "replicas": [{"url": "lab", "model": "m_2"}]})
    rollout.add_version(routes, "m", new)
    weights = [rollout.begin(routes, "m", "2").versions[1].weight]
    with pytest.raises(InputError, match="under way"):
        rollout.begin(routes, "m", "2")
    for _ in range(3):
        after = routes.change("m", lambda now: now and decide(now, "advance"))
        assert after is not None and after.canary is not None
        weights.append(after.version("2").weight)
    assert weights == [0.01, 0.05, 0.25, 1.0] and after.canary.state == "promoted"
    with pytest.raises(InputError, match="no rollout"):
        routes.change("m", lambda now: now and decide(now, "roll_back"))


def test_of_two_who_promote_at_once_one_moves_the_traffic(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(1.0, 0.0))
    rollout.begin(routes, "m", "2", steps=(0.5, 1.0))
    told: list[str] = []

    def end(action: rollout.Move) -> None:
        try:
            rollout.move(Routes(tmp_path), "m", action)
            told.append(action)
        except InputError as error:
            told.append(str(error))

    threads = [threading.Thread(target=end, args=(action,)) for action in ("promote", "roll_back", "promote")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends = [line["action"] for line in routes.audit("m")[2:]]
    assert len(ends) == 1 and sum("no rollout is under way" in said for said in told) == 2
    routes.refresh()
    whole = [version.version for version in routes.by_name["m"].versions if version.weight == 1]
    assert whole == ["2" if ends == ["promote"] else "1"]


def test_rollback_gives_everything_back(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(1.0))
    new = parse(Version, {"version": "2", "weight": 0, "replicas": [{"url": "lab", "model": "m_2"}]})
    rollout.add_version(routes, "m", new)
    rollout.begin(routes, "m", "2", steps=(0.5, 1.0))
    routes.change("m", lambda now: now and decide(now, "hold"))
    after = routes.change("m", lambda now: now and decide(now, "roll_back"))
    assert after is not None and [v.weight for v in after.versions] == [1.0, 0.0]
    assert json.loads(routes.path.read_text())["m"]["canary"]["state"] == "rolled_back"
    rollout.begin(routes, "m", "2")  # and it may be tried again


def test_switch_is_one_step_there_and_back(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(1.0, 0.0))
    assert [v.weight for v in rollout.switch(routes, "m", "2").versions] == [0.0, 1.0]
    assert [v.weight for v in rollout.switch(routes, "m", "1").versions] == [1.0, 0.0]
    assert [line.get("action") for line in routes.audit("m")][-2:] == ["switch", "switch"]
    with pytest.raises(InputError, match="version '3'"):
        rollout.switch(routes, "m", "3")
    rollout.begin(routes, "m", "2")
    for other in (lambda: rollout.switch(routes, "m", "2"), lambda: rollout.weigh(routes, "m", {"1": 1.0})):
        with pytest.raises(InputError, match="under way"):
            other()
    with pytest.raises(InputError, match="no route"):
        rollout.switch(routes, "n", "1")


def test_version_that_is_deployed_anew_keeps_its_share(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(0.9, 0.1))
    new = parse(Version, {"version": "2", "weight": 0, "replicas": [{"url": "lab", "model": "elsewhere"}]})
    after = rollout.add_version(routes, "m", new)
    assert (
        after is not None and after.version("2").weight == 0.1 and after.version("2").replicas[0].model == "elsewhere"
    )
    first = rollout.add_version(routes, "fresh", new)
    assert first is not None and first.versions[0].weight == 1.0


def test_version_is_retired_when_nothing_leads_to_it_any_more(tmp_path: Path) -> None:
    routes = Routes(tmp_path)
    routes.change("m", lambda _: route(0.0, 1.0, 0.0))
    rollout.shadow(routes, "m", "3")
    for version, why in (("2", "100 % of the traffic"), ("3", "shadows"), ("9", "there is none")):
        with pytest.raises(InputError, match=why):
            rollout.retire(routes, "m", version)
    rollout.begin(routes, "m", "1")
    rollout.move(routes, "m", "roll_back")
    assert rollout.retire(routes, "m", "1").replicas[0].model == "m_1"
    left = routes.by_name["m"]
    assert [version.version for version in left.versions] == ["2", "3"] and left.canary is None
    rollout.begin(routes, "m", "3")
    with pytest.raises(InputError, match="traffic"):
        rollout.retire(routes, "m", "3")
    with pytest.raises(InputError, match="no route"):
        rollout.retire(routes, "n", "1")


def commanded(*words: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    command.run(parser.parse_args(words))


def test_command_places_a_version_at_several_servers_and_tells_what_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    placed = ("replicas", "m", "1", "grpc://a:1", "grpc://b:2=m_b", "--balance", "power_of_two")
    with pytest.raises(InputError, match="'m' has no route"):
        commanded(*placed)
    commanded(*placed, "--new")
    commanded("replicas", "m", "2", "openai+http://c:3/v1")
    of = Routes().by_name["m"]
    assert of.balance == "power_of_two" and [version.weight for version in of.versions] == [1.0, 0.0]
    assert [(r.url, r.model) for r in of.versions[0].replicas] == [("grpc://a:1", "m"), ("grpc://b:2", "m_b")]
    commanded("begin", "m", "2", "--steps", "0.5,1", "--by", "ann")
    with pytest.raises(InputError, match="url"):
        commanded("replicas", "m", "3", "ftp://a")
    capsys.readouterr()
    commanded("status")
    said = capsys.readouterr().out
    assert "m: 1 50 %, 2 50 %" in said and "begin by ann" in said


def test_version_that_is_not_ready_gets_no_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    with openai_server(Story()) as fake:
        both = two_versions(f"openai+http://{fake.url}", "small", share=0.0, other="openai+http://127.0.0.1:1")
        with running(tmp_path / "gateway", both) as run:
            run.routes.served_at(run.url)
            for action in ("begin", "switch"):
                with pytest.raises(InputError, match="version 2 of small is not ready"):
                    commanded(action, "small", "2")
            assert Routes().by_name["small"].version("2").weight == 0
            commanded("switch", "small", "2", "--anyway")
            assert Routes().by_name["small"].version("2").weight == 1
            assert run.ask("/routes")[1]["routes"]["small"]["versions"][1]["weight"] == 1  # in force when it is told
            commanded("switch", "small", "1")
            run.routes.served_at(None)
            commanded("switch", "small", "2")  # nobody can say
    assert Routes().by_name["small"].version("2").weight == 1
