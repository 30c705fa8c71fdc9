"""Who asks in a rehearsal: people who send labelled images at set times, and people who read one long answer after the
other. Each request is one Answer, whatever became of it; those at set times are rows of the run too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import numpy as np

from lab.load.payload import held_out_digits, held_out_labels
from lab.load.recorder import Recorder
from lab.measure.records import ERROR, OK, REFUSED, TIMEOUT, TRUNCATED, Int64s

IMAGES, STREAM_TOKENS = 50, 40
"""Different images that are asked where answers are compared: each of them often; and how long an answer is read."""
TICK_S, FLUSH_S = 0.1, 0.5
OUTCOME = {429: REFUSED, 503: REFUSED, 504: TIMEOUT}

Watch = Callable[[], bool]
"""Asked ten times a second, in a thread; True ends the asking, and so does an error, which `predict` raises."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`number`: of the image, or of the user. `version`: who answered, or failed to; None where nobody said. `said`:
    what came, without what differs from request to request. `right`: None where nothing was to be right. Times are
    perf_counter_ns."""

    kind: Literal["prediction", "stream"]
    number: int
    id: str
    sent_ns: int
    done_ns: int
    outcome: int
    version: str | None
    said: str
    right: bool | None = None

    @property
    def whole(self) -> bool:
        return self.outcome == OK

    @property
    def seconds(self) -> float:
        return (self.done_ns - self.sent_ns) / 1e9


@dataclass(frozen=True, slots=True)
class _Question:
    """About one image: what is sent, and the right answer."""

    image: int
    body: bytes
    label: int


@dataclass(slots=True)
class _Came:
    """Of one request: `body` is JSON, or the text of a stream."""

    outcome: int = ERROR
    detail: str | None = None
    version: str | None = None
    body: Any = None


class Users:
    """Of the gateway at `url`. `answers` grows as they come. `scores`: they tell the gateway whether an answer was
    right. Use as an async context."""

    def __init__(self, url: str, timeout_s: float, recorder: Recorder | None = None, *, scores: bool = False) -> None:
        self._url, self._recorder, self._scores = url, recorder, scores
        self._session: aiohttp.ClientSession
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self.answers: list[Answer] = []
        self.sent = 0
        """Requests that were begun, of both kinds."""

    async def __aenter__(self) -> Users:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def predict(self, model: str, due_ns: Int64s, watch: Watch, *, images: int | None = None) -> int:
        """Ask about one of the first `images` (all of them unless given) at each of these times, in turn, until `watch`
        ends it; how many were asked. Returns with the last answer."""
        questions = _questions(images)
        over = asyncio.Event()
        watching = asyncio.ensure_future(self._watched(watch, over))
        tasks: set[asyncio.Task[None]] = set()
        asked = 0
        for n, due in enumerate(due_ns.tolist()):
            await asyncio.sleep(0)
            while (left_s := (due - time.perf_counter_ns()) / 1e9) > 0 and not over.is_set():
                await asyncio.sleep(min(left_s, TICK_S))
            if over.is_set():
                break
            task = asyncio.ensure_future(self._prediction(model, n, due, questions[n % len(questions)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            asked += 1
        await asyncio.gather(*tasks)
        over.set()
        await watching
        return asked

    async def crowd(self, model: str, size: int, until_ns: int, watch: Watch, *, images: int | None = None) -> int:
        """`size` users who each ask about another image as soon as they have an answer, until then or until `watch`
        ends it; how many were asked."""
        questions, numbers, over = _questions(images), itertools.count(), asyncio.Event()
        watching = asyncio.ensure_future(self._watched(watch, over))

        async def one() -> None:
            while (now_ns := time.perf_counter_ns()) < until_ns and not over.is_set():
                n = next(numbers)
                await self._prediction(model, n, now_ns, questions[n % len(questions)])

        await asyncio.gather(*(one() for _ in range(size)))
        over.set()
        await watching
        return next(numbers)

    async def talk(self, model: str, user: int, tokens: int, until_ns: int) -> None:
        """One streamed answer after the other to the same prompt, the last one to its end."""
        question = {"model": model, "prompt": f"Story {user}:", "max_tokens": tokens, "temperature": 0}
        body = json.dumps({**question, "ignore_eos": True, "stream": True}).encode()
        turn = 0
        while time.perf_counter_ns() < until_ns:
            await self._stream(user, f"s{user}-{turn}", body)
            turn += 1

    # --- inside -------------------------------------------------------------------------------------------------

    async def _watched(self, watch: Watch, over: asyncio.Event) -> None:
        flushed_s = time.monotonic()
        try:
            while not over.is_set():
                if await asyncio.to_thread(watch):  # it writes files, and nobody may be asked late for that
                    over.set()
                if self._recorder is not None and time.monotonic() - flushed_s > FLUSH_S:
                    flushed_s = time.monotonic()
                    self._recorder.flush()
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), TICK_S)
        finally:
            over.set()  # nobody watches any more

    async def _prediction(self, model: str, n: int, due_ns: int, asked: _Question) -> None:
        own, sent_ns = f"p{n}", time.perf_counter_ns()
        came = await self._asked(f"/predict/{model}", own, asked.body, _whole)
        done_ns = time.perf_counter_ns()
        if self._recorder is not None:
            self._recorder.add(n, due_ns, sent_ns, done_ns, came.outcome, came.detail)
        right, said = None, json.dumps(came.detail)
        if came.outcome == OK:
            own, outputs = came.body["id"], came.body["outputs"]
            right, said = int(np.argmax(outputs["LOGITS"])) == asked.label, json.dumps(outputs)
        number = asked.image
        self.answers.append(
            Answer("prediction", number, own, sent_ns, done_ns, came.outcome, came.version, said, right)
        )
        if self._scores and right is not None:
            score = json.dumps({"id": own, "score": float(right)}).encode()
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with self._session.post(f"{self._url}/v1/feedback", data=score) as answer:
                    await answer.read()

    async def _stream(self, user: int, own: str, body: bytes) -> None:
        sent_ns = time.perf_counter_ns()
        came = await self._asked("/v1/completions", own, body, _streamed)
        self.answers.append(
            Answer("stream", user, own, sent_ns, time.perf_counter_ns(), came.outcome, came.version, came.body or "")
        )

    async def _asked(
        self, path: str, own: str, body: bytes, read: Callable[[aiohttp.ClientResponse, _Came], Awaitable[None]]
    ) -> _Came:
        """What became of one request, which is data also where it failed. `read` takes the body of a good one."""
        self.sent += 1
        came = _Came()
        try:
            headers = {"X-Request-Id": own}
            async with self._session.post(f"{self._url}{path}", data=body, headers=headers) as answer:
                came.version = answer.headers.get("X-Model-Version")
                if answer.status == 200:
                    await read(answer, came)
                else:
                    came.outcome = OUTCOME.get(answer.status, ERROR)
                    came.detail = str((await answer.json())["error"]["message"])
        except TimeoutError:
            came.outcome, came.detail = TIMEOUT, "no answer in time"
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            came.outcome, came.detail = ERROR, f"{type(error).__name__} {error}"
        return came


def _questions(images: int | None) -> list[_Question]:
    """About the first so many images; all of them for None."""
    pictures, labels = held_out_digits()[:images], held_out_labels()
    bodies = [json.dumps({"inputs": {"IMAGE": picture.tolist()}}).encode() for picture in pictures]
    return [_Question(n, body, int(labels[n])) for n, body in enumerate(bodies)]


async def _whole(answer: aiohttp.ClientResponse, came: _Came) -> None:
    came.body = await answer.json()
    came.outcome = OK


async def _streamed(answer: aiohttp.ClientResponse, came: _Came) -> None:
    """The text until [DONE], without which it broke off."""
    came.outcome, came.detail, came.body = TRUNCATED, "it broke off", ""
    async for line in answer.content:
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:]).get("choices")
            came.body += choices[0]["text"] if choices else ""
        elif line.startswith(b"data: [DONE]"):
            came.outcome, came.detail = OK, None
