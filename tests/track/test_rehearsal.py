"""A rehearsal's own books: what was lost, answered twice, late or unlike before is counted, whoever made it so."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from lab.errors import RunError
from lab.measure.records import ERROR, OK, REFUSED, TRUNCATED
from lab.run import catalogue
from lab.serve.process import Process
from lab.spec import ModelSpec
from lab.track.rehearsal import planted, rehearse
from lab.track.rehearsal.blue_green import Switch, accounts
from lab.track.rehearsal.canary import traffic
from lab.track.rehearsal.stage import Stage, end
from lab.track.rehearsal.users import Answer, Users
from lab.track.routes import Routes
from tests.waiting import LIMIT_S

S = 1_000_000_000
THERE, BACK = Switch("green", 4 * S, 4 * S + 1000), Switch("blue", 8 * S, 8 * S + 1000)


def answer(n: int, sent_s: float, version: str | None, *, took_s: float = 0.01, said: str = "x", **more: Any) -> Answer:
    sent_ns = round(sent_s * S)
    fields = {"kind": "prediction", "number": n % 5, "id": f"p{n}", "outcome": OK, **more}
    return Answer(sent_ns=sent_ns, done_ns=sent_ns + round(took_s * S), version=version, said=said, **fields)


def whole_run() -> list[Answer]:
    """Two a second for twelve seconds; green's differ."""
    sides = ["blue"] * 8 + ["green"] * 8 + ["blue"] * 8
    return [
        answer(n, n / 2 + 0.1, side, said=f"{side if side == 'green' else ''}{n % 5}") for n, side in enumerate(sides)
    ]


def test_books_of_a_switch_that_lost_nothing() -> None:
    told = accounts(whole_run(), 24, [THERE, BACK])
    assert (told["lost"], told["twice"], told["differing"]) == (0, 0, 0)
    assert told["compared"] == 8 and told["by_version"] == {"blue": 16, "green": 8}
    assert (told["green_compared"], told["green_other"]) == (8, 8)


def test_books_see_what_is_lost_twice_and_unlike() -> None:
    answers = whole_run()
    answers[9] = replace(answers[9], outcome=ERROR, version=None)
    answers[10] = replace(answers[10], id="p11")  # one id for two answers
    answers[20] = replace(answers[20], said="other")
    told = accounts(answers, 25, [THERE, BACK])  # and one of which nothing came at all
    assert (told["lost"], told["twice"], told["differing"]) == (2, 1, 1)
    assert accounts(answers, 25, [THERE])["compared"] == 0  # it was never switched back


def test_books_tell_what_was_refused_from_what_was_lost() -> None:
    answers = whole_run()
    for n, outcome in ((9, REFUSED), (10, REFUSED), (11, ERROR)):
        answers[n] = replace(answers[n], outcome=outcome, version=None)
    told = accounts(answers, 24, [THERE, BACK])
    assert (told["refused"], told["lost"]) == (2, 1)


def test_switch_tells_of_answers_under_way_and_of_late_ones() -> None:
    answers = [
        answer(0, 3.5, "blue", took_s=0.2),
        answer(1, 3.9, "blue", took_s=0.7),  # under way for 0.6 s more
        answer(2, 4.03, "blue", took_s=0.01),  # sent after the switch, and not switched yet
        answer(3, 4.2, "green", took_s=0.05),
        answer(4, 9.0, "blue", took_s=0.01),  # after the way back
    ]
    told = THERE.told(answers, 4 * S)
    assert (told["t_s"], told["under_way"], told["late"]) == (0.0, 1, 1)
    assert told["drain_s"] == pytest.approx(0.6) and told["late_s"] == pytest.approx(0.03, abs=1e-4)
    assert told["slowest_before_s"] == pytest.approx(0.7) and told["slowest_after_s"] == pytest.approx(0.05)


def test_traffic_is_counted_by_when_it_was_sent() -> None:
    found = traffic(whole_run(), 4 * S, ("blue", "green"))
    assert found["t_s"][0] == pytest.approx(-3.75) and len(found["t_s"]) == 24
    assert sum(found["blue"]) == 2 * 16 and sum(found["green"]) == 2 * 8  # each in half a second
    assert found["green"][found["t_s"].index(0.25)] == 2
    assert traffic([], 0, ("1",)) == {"t_s": [], "1": []}


def test_good_version_is_another_format_and_a_bad_one_the_same_with_a_fault() -> None:
    digits = ModelSpec(name="digits")
    good, bad = planted.named(digits, "good"), planted.named(digits, "errs")
    assert (good.name, good.family, good.precision) == ("digits_good", "digits", "bf16")
    assert (bad.name, bad.family, bad.precision) == ("digits_errs", "digits", "fp32")
    for fault in planted.FAULTS.values():
        compile(planted.AROUND.format(fault=fault, seed=3), "model.py", "exec")


@asynccontextmanager
async def gateway(predict: Callable[[web.Request], Any], book: list[Any]) -> AsyncIterator[str]:
    async def feedback(request: web.Request) -> web.Response:
        book.append(await request.json())
        return web.json_response({})

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"X-Model-Version": "blue"})
        await response.prepare(request)
        whole = request.headers["X-Request-Id"] == "s0-0"
        for data in ('{"choices": [{"text": "Once"}]}', *(["[DONE]"] if whole else [])):
            await response.write(f"data: {data}\n\n".encode())
        return response

    app = web.Application()
    app.add_routes([
        web.post("/predict/digits", predict), web.post("/v1/feedback", feedback), web.post("/v1/completions", stream)
    ])  # fmt: skip
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


def test_users_score_what_they_get_and_note_what_they_do_not() -> None:
    asked = 0

    async def predict(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        headers = {"X-Model-Version": "2"}
        if asked == 2:
            return web.json_response({"error": {"message": "queue is full"}}, status=429, headers=headers)
        if asked == 3:
            return web.Response(text="not JSON", headers=headers)
        logits = np.eye(10)[0].tolist()  # always 0
        told = {"id": request.headers["X-Request-Id"], "version": "2", "outputs": {"LOGITS": [logits]}}
        return web.json_response(told, headers=headers)

    async def all_of_it(book: list[Any]) -> list[Answer]:
        async with gateway(predict, book) as url, Users(url, LIMIT_S, scores=True) as users:
            assert await users.predict("digits", np.zeros(40, np.int64), lambda: False) == 40
            assert users.sent == 40
            return users.answers

    book: list[Any] = []
    answers = asyncio.run(all_of_it(book))
    assert sorted({a.outcome for a in answers}) == [OK, REFUSED, ERROR]
    assert {a.version for a in answers} == {"2"} and len(answers) == 40
    right = sum(a.right is True for a in answers)
    assert 0 < right < 38  # of the first forty digits some are 0
    assert len(book) == 38 and sum(told["score"] for told in book) == right
    assert json.loads(next(a.said for a in answers if a.outcome == REFUSED)) == "queue is full"


async def nothing(request: web.Request) -> web.Response:
    return web.Response()


def test_stream_without_its_end_broke_off() -> None:
    async def all_of_it() -> list[Answer]:
        async with gateway(nothing, []) as url, Users(url, LIMIT_S) as users:
            await users._stream(0, "s0-0", b"{}")
            await users._stream(0, "s0-1", b"{}")
            return users.answers

    first, second = asyncio.run(all_of_it())
    assert (first.outcome, first.said, first.version) == (OK, "Once", "blue")
    assert (second.outcome, second.said) == (TRUNCATED, "Once")


def test_users_stop_when_told() -> None:
    asked = 0

    async def predict(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"id": "x", "outputs": {"LOGITS": [[1.0] * 10]}})

    async def all_of_it() -> int:
        async with gateway(predict, []) as url, Users(url, LIMIT_S) as users:
            due_ns = np.concatenate([np.zeros(3, np.int64), np.full(5, 2**62)])  # nobody waits for the last ones
            return await asyncio.wait_for(users.predict("digits", due_ns, lambda: asked >= 3), 60)

    assert asyncio.run(all_of_it()) == 3


def test_crowd_asks_again_as_soon_as_it_is_answered() -> None:
    under_way, most, asked = 0, 0, 0
    together = asyncio.Event()

    async def predict(request: web.Request) -> web.Response:
        nonlocal under_way, most, asked
        asked, under_way = asked + 1, under_way + 1
        most = max(most, under_way)
        if most == 3:
            together.set()
        await together.wait()  # nobody is answered before all three have asked
        under_way -= 1
        return web.json_response({"id": "x", "outputs": {"LOGITS": [[1.0] * 10]}})

    async def all_of_it() -> int:
        async with gateway(predict, []) as url, Users(url, 60.0) as users:
            return await asyncio.wait_for(users.crowd("digits", 3, 2**62, lambda: asked >= 40, images=4), 60)

    assert asyncio.run(all_of_it()) == asked >= 40
    assert most == 3


def test_users_stop_at_once_when_the_gateway_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    process = Process(["/bin/sh", "-c", "echo out of luck; exit 3"], {}, log)
    place = Stage("http://127.0.0.1:9", process, Routes(tmp_path / "routes"), log)
    try:

        def watch() -> bool:
            place.check()
            return False

        async def all_of_it() -> None:
            async with Users(place.url, LIMIT_S) as users:
                await users.predict("digits", np.full(5, 2**62), watch)  # nobody waits for these

        assert process.wait(60)
        with pytest.raises(RunError, match="the gateway ended during the rehearsal: out of luck"):
            asyncio.run(asyncio.wait_for(all_of_it(), 60))
    finally:
        end(process)
    killed = Process(["/bin/sleep", "600"], {}, log)
    place = Stage(place.url, killed, place.routes, log)
    place.check()
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(60)
    with pytest.raises(RunError, match="killed by signal 9"):
        place.told()


def test_what_version_2_is_in_words() -> None:
    cells = catalogue.experiment("canary").cells()
    server: Any = None
    told = {rehearse._Canaries(catalogue.experiment("canary"), server).told(cell) for cell in cells}
    assert "a v2 that errs" in told and not any("version 2 is" in text for text in told)
