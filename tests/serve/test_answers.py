"""The thread that sends answers, against a stand-in for Triton that keeps what it is sent."""

import importlib
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from lab.serve.models.engine import Engine, Options
from lab.serve.models.engine_thread import EngineThread
from lab.serve.models.question import Question

FINAL = 1


class Refused(Exception):
    """What Triton's sender raises."""


class Told:
    """An error as Triton's backend module has them."""

    INTERNAL, INVALID_ARG, CANCELLED = 1, 2, 3

    def __init__(self, message, code):
        self.said = message, code


@pytest.fixture(scope="module")
def answers_module():
    """lab.serve.models.answers with a stand-in for the module that only Triton's stub has."""
    stand_in = SimpleNamespace(
        Tensor=lambda name, array: (name, array),
        InferenceResponse=lambda tensors=(), error=None: SimpleNamespace(tensors=dict(tensors), error=error),
        TritonError=Told,
        TritonModelException=Refused,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Logger=SimpleNamespace(log_warn=lambda text: None),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", stand_in)
        yield importlib.import_module("lab.serve.models.answers")


class Sender:
    """One request's sender. `cancelled_at`: its client gives up once it has so many tokens; `broken_at`: the way to
    it breaks with that response."""

    def __init__(self, cancelled_at=10**9, broken_at=10**9):
        self.cancelled_at, self.broken_at = cancelled_at, broken_at
        self.texts, self.counts, self.errors = [], [], []
        self.ended = threading.Event()

    def send(self, response=None, flags=0):
        if len(self.texts) + 1 == self.broken_at:
            self.ended.set()
            raise Refused("response sender has been closed")
        if response is not None and response.error is None:
            self.texts.append(response.tensors["text_output"][0].decode())
            self.counts.append(int(response.tensors.get("num_output_tokens", np.zeros(1))[0]))
        elif response is not None:
            self.errors.append(response.error.said)
        if flags == FINAL:
            assert not self.ended.is_set()
            self.ended.set()

    def is_cancelled(self):
        return len(self.texts) >= self.cancelled_at


@pytest.fixture
def serve(answers_module, tiny, tiny_tokenizer, monkeypatch):
    """Asks an engine at work; the sender that gets the answer. `serve.engine` and `serve.answers` are its own.

    A step of this engine takes less time than to send its tokens, one of a real model many times as much; so each
    waits until what the step before gave is taken."""
    monkeypatch.setattr(answers_module, "POLL_S", 0.0)
    monkeypatch.setattr(answers_module, "TURN_S", 0.001)
    engine = Engine(tiny, tiny_tokenizer, Options(max_batch_size=2))
    step = engine.step

    def step_once_all_is_taken():
        while not answers._queue.empty() and answers._thread.is_alive():
            time.sleep(0)
        return step()

    monkeypatch.setattr(engine, "step", step_once_all_is_taken)
    thread = EngineThread(engine)
    answers = answers_module.Answers(1, thread.cancel)

    def ask(prompt, max_tokens, sender, stream=True):
        parameters = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        answer = answers_module.Answer(sender, Question(prompt, parameters, stream, return_num_output_tokens=True))
        answer.id = thread.submit(prompt, parameters, partial(answers.receive, answer))
        answers.taken(answer)
        return sender

    ask.engine = thread
    ask.answers = answers
    yield ask
    thread.close()
    answers.close()


def test_a_client_that_gives_up_gets_two_tokens_more_at_most(serve):
    """P10, with the truth known: the client gives up with the fifth token in its hands."""
    sender = serve("abc", 100, Sender(cancelled_at=5))
    assert sender.ended.wait(60)
    assert 5 <= serve.engine.counters().output_tokens <= 5 + 2
    assert serve.engine.counters().cancelled == 1
    assert sender.errors == [("the request was cancelled", 3)]


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_gets_nothing_is_asked_about_too(serve, stream):
    """Two run, a third waits; whole answers and waiting requests have no responses to ask after."""
    running = [serve("abc", 100, Sender()) for _ in range(2)]
    waiting = serve("abc", 100, Sender(cancelled_at=0), stream)
    assert waiting.ended.wait(60)
    assert waiting.texts == []
    assert all(sender.ended.wait(60) and len(sender.texts) == 100 for sender in running)


def test_a_whole_answer_is_what_a_stream_adds_up_to_and_wakes_its_sender_once(serve, monkeypatch):
    streamed = serve("abc", 60, Sender())
    assert streamed.ended.wait(60)
    news, queue = [], serve.answers._queue
    noted = SimpleNamespace(get=queue.get, empty=queue.empty, put=lambda item: news.append(item[1]) or queue.put(item))
    monkeypatch.setattr(serve.answers, "_queue", noted)
    whole = serve("abc", 60, Sender(), stream=False)
    assert whole.ended.wait(60)
    assert (whole.texts, whole.counts) == (["".join(streamed.texts)], [60])
    assert [output.output_tokens for output in news if output is not None] == [60]
    monkeypatch.undo()  # its end is no news


def test_a_broken_way_costs_its_own_request_only(serve):
    broken, whole = serve("abc", 100, Sender(broken_at=3)), serve("abcd", 50, Sender())
    assert broken.ended.wait(60)
    assert whole.ended.wait(60)
    assert (len(broken.texts), len(whole.texts)) == (2, 50)
    assert serve.engine.counters().cancelled == 1


def test_what_was_written_is_sent_before_the_end(serve):
    senders = [serve("abc", 60, Sender()) for _ in range(6)]
    serve.engine.close()
    serve.answers.close()
    for sender in senders:
        assert sender.ended.is_set()
        assert len(sender.texts) == 60 or sender.errors == [("the request was cancelled", 3)]


def test_what_chunks_repeat_is_made_once(serve, answers_module, monkeypatch):
    made = []
    monkeypatch.setattr(answers_module.pb_utils, "Tensor", lambda name, array: made.append(name) or (name, array))
    sender = serve("abc", 20, Sender())
    assert sender.ended.wait(60)
    assert sender.counts == [1] * 20
    assert len(set(sender.texts)) < 20  # as greedy texts of a random model are
    assert (made.count("text_output"), made.count("num_output_tokens")) == (len(set(sender.texts)), 1)
