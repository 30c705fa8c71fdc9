"""Rehearsals on a real Triton behind a real gateway: a version that errs is rolled back, a switch loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.load import schedule
from lab.measure import rehearsal
from lab.serve.triton import Server
from lab.spec import Constant, ModelSpec, Rollout, Tolerance
from lab.track.deploy import warm
from lab.track.rehearsal import blue_green, canary, ceiling, planted, rehearse
from lab.track.rehearsal.stage import Stage, stage
from lab.track.routes import Routes
from tests.waiting import until

pytestmark = pytest.mark.triton
ONE = ModelSpec(name="re_digits", family="digits")
S = 1_000_000_000


@pytest.fixture
def place(triton_server: Server, tmp_path: Path) -> Iterator[Stage]:
    triton_server.load(ONE)
    warm(triton_server, ONE)
    routes = Routes(tmp_path / "gateway")
    rehearse._lay(routes, "shown", {"1": (triton_server, ONE)})
    with stage(routes, tmp_path / "gateway.log") as found:
        yield found


def in_force(place: Stage) -> list[str]:
    return [version["version"] for version in place.told()["routes"]["shown"]["versions"]]


def test_guard_rolls_back_what_errs_and_a_switch_loses_nothing(place: Stage, triton_server: Server) -> None:
    crowd: dict[str, Any] = {
        "concurrency": 2,
        "streams": 0,
        "timeout_s": 10,
        "recorder": None,
        "stopped": lambda: False,
    }
    assert ceiling.play(place, "shown", "shown", time.perf_counter_ns() + S // 2, **crowd).asked > 0
    assert place.told()["in_flight"] == 0
    bad = planted.serve(triton_server, ONE, "errs")
    rehearse._lay(place.routes, "shown", {"1": (triton_server, ONE), "2": (triton_server, bad)})
    until(lambda: in_force(place) == ["1", "2"])
    start_ns = time.perf_counter_ns()
    due_ns = schedule.arrivals(Constant(rate_rps=150), 40, 0) + start_ns
    plan = Rollout(way="canary", challenger="errs", steps=(0.5, 1.0), tolerance=Tolerance(latency=0.9, quality=0.9))
    played = canary.play(place, "shown", plan, due_ns, start_ns + S, timeout_s=10, recorder=None, stopped=lambda: False)
    told = played.told
    assert told["decision"] == "rolled_back" and "errors are" in told["text"]
    assert 0 < told["failed"] < told["touched"] < told["requests"] and told["champion_failed"] == 0
    assert [move["by"] for move in told["moves"]] == ["rehearsal", "guard"]
    assert told["traffic"]["2"][-1] == 0  # and version 1 has it all again

    good = planted.serve(triton_server, ONE, "good")
    served = [(triton_server, ONE.name), (triton_server, good.name)]
    versions = {"blue": (triton_server, ONE), "green": (triton_server, good)}
    rehearse._lay(place.routes, "shown", versions)
    until(lambda: in_force(place) == ["blue", "green"])
    start_ns = time.perf_counter_ns()
    due_ns = schedule.arrivals(Constant(rate_rps=40), 6, 0) + start_ns  # so few that a busy machine answers in between
    played = blue_green.play(
        place, ["shown"], served, due_ns, (start_ns + 2 * S, start_ns + 4 * S),
        streams=0, timeout_s=10, recorder=None, stopped=lambda: False,
    )  # fmt: skip
    block = {"way": "blue_green", "challenger": "good", "repeat": 0, **played.told}
    assert rehearsal.lost_nothing(block) is True
    assert block["by_version"]["green"] > 20 and block["green_other"] > 0  # in bf16 they are other ones
