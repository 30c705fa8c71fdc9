"""Answers that come as server-sent events over HTTP, whoever's events they are.

    EventStream   posts requests and reads what comes back
    Answer        what one answer has said so far; a subclass knows the server's words

HTTP says 200 before the first token, so how an answer ends is in its events: one that says what went wrong, or one
that says it is finished. A stream that ends without either has broken off, however cleanly the connection was closed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from lab.load.targets import INVALID, Done, Generated, broken
from lab.load.targets.channel import RETRY_S, unconnected
from lab.load.targets.sse import Events
from lab.load.targets.triton_http import OUTCOME, error_text
from lab.measure.records import ERROR, OK, TRUNCATED

Message = tuple[str, bytes]
"""URL and body."""

HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}
UNPROCESSABLE = 422
"""What FastAPI says to a body with a field it does not know."""


class Answer:
    """`read` is given each event; `complete` is then whether the server has said that the answer is finished, and
    `failure` what it said went wrong."""

    def __init__(self) -> None:
        self.generated = Generated()
        self.complete = False
        self.failure: str | None = None

    def read(self, event: dict[str, Any], arrived_ns: int) -> None:
        raise NotImplementedError

    def total(self) -> Generated:
        """What was generated, when no more of it will come."""
        raise NotImplementedError

    def read_raw(self, data: bytes, arrived_ns: int) -> None:
        if data == b"[DONE]":
            self.complete = True
            return
        if not data:  # a gateway keeps the connection open with such
            return
        try:
            event = json.loads(data)
            if event.get("error") is not None:  # some servers say null in each
                self.failure = error_text(data)
            else:
                self.read(event, arrived_ns)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.failure = f"an event that is none of this protocol: {data[:200].decode(errors='replace')}"


class EventStream:
    """As many connections as requests in flight. A subclass prepares the messages."""

    def __init__(self, done: Done, answer: Callable[[], Answer]) -> None:
        self._done = done
        self._new_answer = answer
        self._session: aiohttp.ClientSession
        self._running: dict[int, tuple[asyncio.Task[None], Answer]] = {}

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(total=None),  # the driver's limit is the one limit
            headers=HEADERS,
        )

    def send(self, number: int, message: Message) -> None:
        answer = self._new_answer()
        task = asyncio.get_running_loop().create_task(self._request(number, message, answer))
        self._running[number] = (task, answer)

    def cancel(self, number: int) -> Generated | None:
        task, answer = self._running.pop(number, (None, None))
        if task is None or answer is None:
            return None
        task.cancel()  # closes the connection, which is how the server learns of it
        return answer.total()

    async def close(self) -> None:
        await self._session.close()

    async def _request(self, number: int, message: Message, answer: Answer) -> None:
        outcome, detail = await self._outcome(answer, number, *message)
        if self._running.pop(number, None) is not None:
            generated = answer.total()
            self._done(number, broken(outcome, generated), detail, time.perf_counter_ns(), generated)

    def _headers(self, number: int) -> dict[str, str]:
        """Of request `number`, beside those of all."""
        return {}

    async def _outcome(self, answer: Answer, number: int, url: str, body: bytes) -> tuple[int, str | None]:
        try:
            async with self._session.post(
                url, data=body, headers=self._headers(number), allow_redirects=False
            ) as response:
                if response.status != 200:
                    outcome = INVALID if response.status == UNPROCESSABLE else OUTCOME.get(response.status, ERROR)
                    body = await response.read()
                    said = Events().feed(body) or [body]  # Triton puts its errors into an event
                    return outcome, f"HTTP {response.status}: {error_text(said[0])}"
                await self._read(response, answer)
        except aiohttp.ClientConnectorError as error:
            await asyncio.sleep(RETRY_S)  # a closed loop would else ask a dead server 5,000 times a second
            return unconnected(f"{error.host}:{error.port}", error)
        except aiohttp.ClientPayloadError:
            return TRUNCATED, "the connection was lost in the middle of the answer"
        except (aiohttp.ClientError, OSError) as error:
            return ERROR, str(error) or type(error).__name__
        if answer.failure is not None:
            return ERROR, answer.failure
        if not answer.complete:
            return TRUNCATED, "the stream ended without saying that the answer is finished"
        return OK, None

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        """All that comes after the head of a good answer: events, or one document."""
        if response.content_type == "text/event-stream":
            events = Events()
            async for data in response.content.iter_any():
                arrived_ns = time.perf_counter_ns()
                for event in events.feed(data):
                    answer.read_raw(event, arrived_ns)
        else:
            whole = await response.read()
            answer.read_raw(whole, time.perf_counter_ns())
