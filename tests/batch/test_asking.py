"""Against a stand-in for Triton's connection that answers as it is told."""

import asyncio
import struct
from types import SimpleNamespace

import pytest

from lab.batch import asking
from lab.batch.asking import Asker
from lab.batch.table import Row
from lab.errors import RunError
from lab.gateway.refusals import Refusal
from lab.spec import ModelSpec


class Upstream:
    """A `trees` model whose probability is a row's first number; negative ones it refuses, by `refusal`."""

    def __init__(self, refusal=None, times=10**9):
        self.refusal, self.times, self.sizes = refusal, times, []

    async def infer(self, model, tensors, request_id):
        features = tensors["FEATURES"]
        self.sizes.append(len(features))
        await asyncio.sleep(0)
        if self.refusal is not None and (features[:, 0] < 0).any() and self.times > 0:
            self.times -= 1
            raise self.refusal
        return SimpleNamespace(raw_output_contents=[b"".join(struct.pack("<f", row[0]) for row in features)])


def ask(upstream, rows, most=4, alive=lambda: True):
    asker = Asker(upstream, ModelSpec(name="trees"), {}, places=2, most=most, budget=100, alive=alive)
    return asyncio.run(asker.ask(rows, [1] * len(rows)))


def features(first):
    return Row([first] + [0.0] * 29)


def test_answers_come_in_the_order_of_the_rows():
    upstream = Upstream()
    rows = [features(0.25), Row(None, "x", "line 2: not JSON"), features(0.5), features(0.75), features(1.0)]
    assert ask(upstream, rows, most=2) == [
        {"answer": 0.25},
        {"error": "line 2: not JSON"},
        {"answer": 0.5},
        {"answer": 0.75},
        {"answer": 1.0},
    ]
    assert upstream.sizes == [2, 2]


def test_one_rows_error_stays_its_own():
    upstream = Upstream(Refusal(400, "a negative number"))
    found = ask(upstream, [features(0.25), features(-1.0), features(0.5), features(0.75)])
    assert found == [{"answer": 0.25}, {"error": "a negative number"}, {"answer": 0.5}, {"answer": 0.75}]
    assert upstream.sizes == [4, 2, 1, 1, 2]


def test_a_server_that_is_busy_is_asked_again(monkeypatch):
    monkeypatch.setattr(asking, "AGAIN_S", 0.001)
    assert ask(Upstream(Refusal(503, "being loaded"), times=3), [features(-1.0)]) == [{"answer": -1.0}]


def test_a_server_that_stays_away_ends_the_job(monkeypatch):
    monkeypatch.setattr(asking, "AGAIN_S", 0.001)
    monkeypatch.setattr(asking, "PATIENCE_S", 0.005)
    with pytest.raises(ExceptionGroup) as failed:
        ask(Upstream(Refusal(503, "gone")), [features(-1.0)])
    assert "has not answered for 0.005 s (gone)" in str(failed.value.exceptions[0])


def test_a_server_that_has_ended_is_not_waited_for():
    with pytest.raises(ExceptionGroup) as failed:
        ask(Upstream(Refusal(502, "connection lost")), [features(-1.0)], alive=lambda: False)
    (error,) = failed.value.exceptions
    assert isinstance(error, RunError)
    assert str(error).startswith("Triton has ended")
