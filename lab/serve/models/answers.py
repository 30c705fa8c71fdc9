"""Sends the language model's answers, in a thread of its own: the engine never waits for Triton.

An answer streams in chunks: its first token at once, then `stream_interval` tokens a chunk, then the rest; each chunk
is one response, and an empty one with the final flag ends it. A whole answer is one response and the same end.

The thread also asks Triton whether requests were cancelled, which nobody would tell us: after each token that was
streamed, so that the request gets two more at most, and by turns those that have been sent none, waiting requests and
whole answers: up to four within a twentieth of a second, a batch of 64 whole answers within one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .question import Question
from .request import Output

POLL_S = 0.001
"""A request is not asked about more often: asking costs a twentieth of a millisecond of each of two processes."""

TURN_S, TURN_REQUESTS = 0.05, 4
"""Of the requests that were sent nothing lately so many are asked about each time."""

KNOWN, SHORT = 4096, 32
"""Tensors kept to be sent again, those of texts up to so many characters among them: counts and words repeat, and to
make their tensors was the largest part of this thread's time."""

NOTHING = Question(prompt="", parameters={})
"""What a request asks that could not be understood."""


@dataclass(eq=False)
class Answer:
    """One request's answer on its way. `text` and `tokens` are what the next chunk will hold."""

    sender: Any  # pb_utils.InferenceResponseSender
    question: Question = NOTHING
    id: str = ""  # the engine's, once it has taken the request
    text: str = ""
    tokens: int = 0
    begun: bool = False  # a response has been sent
    ended: bool = False
    asked_s: float = 0.0  # when Triton was last asked whether it is cancelled


class Answers:
    def __init__(self, stream_interval: int, cancel: Callable[[str], None]) -> None:
        """`cancel` is told the engine's id of a request that its client gave up."""
        self._interval, self._cancel = stream_interval, cancel
        self._queue: queue.SimpleQueue[tuple[Answer, Output | str | None] | None] = queue.SimpleQueue()
        self._live: deque[Answer] = deque()
        self._known = lru_cache(KNOWN)(tensor)
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def taken(self, answer: Answer) -> None:
        """The engine has taken the request; its outputs may have begun to come."""
        self._queue.put((answer, None))

    def refuse(self, sender: Any, why: str) -> None:
        """The request ends with an error, unserved."""
        self._queue.put((Answer(sender), why))

    def receive(self, answer: Answer, output: Output) -> None:
        """What a step gave the request. Of a whole answer nothing is sent before its end: until then this thread is
        not woken, and nobody but the engine's touches what is collected."""
        if answer.question.stream or output.finish_reason is not None:
            self._queue.put((answer, output))
        else:
            answer.text += output.text
            answer.tokens += 1

    def close(self) -> None:
        """Sends what is there and ends the thread."""
        self._queue.put(None)
        self._thread.join()
        self._known.cache_clear()  # while the memory that they share with Triton is there

    def _run(self) -> None:
        turn_s = time.monotonic() + TURN_S
        while True:
            try:
                # Nobody under way: nobody to ask after.
                item = self._queue.get(timeout=max(0.0, turn_s - time.monotonic()) if self._live else None)
                if item is None:
                    return
                answer, news = item
                self._boundary(answer, partial(self._handle, news))
            except queue.Empty:
                pass
            if time.monotonic() >= turn_s:
                turn_s = time.monotonic() + TURN_S
                self._ask_by_turns()

    def _boundary(self, answer: Answer, act: Callable[[Answer], None]) -> None:
        """What goes wrong with one request ends that request, with an error if it can still be sent."""
        if answer.ended:
            return
        try:
            act(answer)
        except Exception as error:  # noqa: BLE001  all other requests are this thread's too
            self._cancel(answer.id)
            why = f"the answer could not be sent: {error}"
            pb_utils.Logger.log_warn(why)
            with suppress(Exception):
                self._fail(answer, why, pb_utils.TritonError.INTERNAL)

    def _handle(self, news: Output | str | None, answer: Answer) -> None:
        if news is None:
            self._live.append(answer)
        elif isinstance(news, str):
            self._fail(answer, news, pb_utils.TritonError.INVALID_ARG)
        elif news.finish_reason == "cancelled":
            self._fail(answer, "the request was cancelled", pb_utils.TritonError.CANCELLED)
        elif news.finish_reason == "error":
            self._fail(answer, str(news.error), pb_utils.TritonError.INTERNAL)
        else:
            answer.id = news.id
            self._add(answer, news)

    def _add(self, answer: Answer, output: Output) -> None:
        answer.text += output.text
        answer.tokens += 1
        last = output.finish_reason is not None
        due = not answer.begun or answer.tokens >= self._interval
        if last or due:
            answer.sender.send(self._response(answer, output))
            answer.begun, answer.text, answer.tokens = True, "", 0
        if last:
            answer.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            answer.ended = True
        else:
            self._ask(answer)

    def _response(self, answer: Answer, output: Output) -> Any:
        question = answer.question
        text = question.prompt + answer.text if question.echo else answer.text
        tensors = [(self._known if len(text) <= SHORT else tensor)("text_output", text)]
        if question.return_num_output_tokens:
            tensors.append(self._known("num_output_tokens", answer.tokens))
        if question.return_num_input_tokens:
            tensors.append(self._known("num_input_tokens", output.prompt_tokens))
        if question.return_finish_reason:
            tensors.append(self._known("finish_reason", str(output.finish_reason)))
        return pb_utils.InferenceResponse(tensors)

    def _fail(self, answer: Answer, why: str, code: int) -> None:
        answer.ended = True
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(why, code))
        answer.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    # --- cancellation -------------------------------------------------------------------------------------------

    def _ask(self, answer: Answer) -> None:
        now_s = time.monotonic()
        if now_s - answer.asked_s >= POLL_S:
            answer.asked_s = now_s
            if answer.sender.is_cancelled():
                self._cancel(answer.id)

    def _ask_by_turns(self) -> None:
        asked = 0
        for _ in range(len(self._live)):
            answer = self._live.popleft()
            if answer.ended:
                continue
            self._live.append(answer)
            if time.monotonic() - answer.asked_s >= TURN_S:
                self._boundary(answer, self._ask)
                asked += 1
            if asked == TURN_REQUESTS:
                return


def tensor(name: str, value: str | int) -> Any:
    """One text, or one count."""
    array = np.array([value.encode()], np.object_) if isinstance(value, str) else np.array([value], np.uint32)
    return pb_utils.Tensor(name, array)
