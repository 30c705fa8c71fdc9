"""The engine in its own thread: many callers, cancels, receivers that fail, steps that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lab.serve.models.engine import Engine, Options
from lab.serve.models.engine_thread import EngineThread
from lab.serve.models.request import Output

WISH = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
LIMIT_S = 30


@pytest.fixture
def engine(tiny: Any, tiny_tokenizer: Any) -> Engine:
    return Engine(tiny, tiny_tokenizer, Options(max_batch_size=4, max_request_tokens=64))


@pytest.fixture
def thread(engine: Engine) -> Iterator[EngineThread]:
    thread = EngineThread(engine)
    yield thread
    thread.close()


class Collected(list[Output]):
    """A receiver that knows when the last output has come."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def __call__(self, output: Output) -> None:
        self.append(output)
        if output.finish_reason:
            self.ended.set()

    @property
    def reason(self) -> str | None:
        assert self.ended.wait(LIMIT_S)
        return self[-1].finish_reason


def test_callers_in_many_threads_get_what_one_gets_alone(thread: EngineThread) -> None:
    expected = [output.token for output in thread.generate("how are you", WISH)]
    got: dict[int, list[Any]] = {}

    def ask(i: int) -> None:
        got[i] = [output.token for output in thread.generate("how are you", WISH)]

    callers = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LIMIT_S)
    assert len(expected) == 12
    assert got == dict.fromkeys(range(12), expected)
    assert thread.counters().finished == 13


def test_cancelling_stops_within_two_tokens(thread: EngineThread) -> None:
    """P10: the request is cancelled when its fifth token is told."""
    collected = Collected()
    ids: list[str] = []
    asked = threading.Event()

    def receive(output: Output) -> None:
        collected(output)
        if output.output_tokens == 5:
            asked.wait(LIMIT_S)
            thread.cancel(ids[0])

    ids.append(thread.submit("x", {**WISH, "max_tokens": 60}, receive))
    asked.set()
    assert collected.reason == "cancelled"
    assert collected[-1].output_tokens <= 7


def test_leaving_the_loop_cancels(thread: EngineThread, engine: Engine) -> None:
    for output in thread.generate("x", {**WISH, "max_tokens": 60}):
        if output.output_tokens == 2:
            break
    assert [output.finish_reason for output in thread.generate("y", WISH)][-1] == "length"
    assert thread.counters().cancelled == 1
    assert not engine.has_work


def test_a_receiver_that_fails_loses_its_own_request_only(thread: EngineThread) -> None:
    def broken(output: Output) -> None:
        raise OSError("connection lost")

    good = Collected()
    thread.submit("x", {**WISH, "max_tokens": 50}, broken)
    thread.submit("x", WISH, good)
    assert good.reason == "length"
    assert [output.finish_reason for output in thread.generate("y", WISH)][-1] == "length"
    assert thread.counters().cancelled == 1


def test_a_step_that_fails_ends_its_requests_with_the_error_and_serving_goes_on(
    thread: EngineThread, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_read_prompts", lambda self: [][1])
        first = Collected()
        thread.submit("x", WISH, first)
        assert first.reason == "error"
    assert first[-1].error == "IndexError: list index out of range"
    assert [output.finish_reason for output in thread.generate("y", WISH)][-1] == "length"


def test_a_wrong_request_is_refused_in_the_callers_thread(thread: EngineThread) -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        thread.submit("", WISH, Collected())
    assert [output.finish_reason for output in thread.generate("y", WISH)][-1] == "length"


def test_close_tells_those_who_wait(engine: Engine) -> None:
    thread = EngineThread(engine)
    collected = [Collected() for _ in range(6)]  # 4 run, 2 wait
    for receive in collected:
        thread.submit("x", {**WISH, "max_tokens": 60}, receive)
    thread.close()
    assert {receive.reason for receive in collected} <= {"cancelled", "length"}
    assert not engine.has_work
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit("x", WISH, Collected())
