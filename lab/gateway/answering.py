"""Answers over HTTP that can end early: by the client, who goes away, or by the upstream, in the middle of a stream.

The status is sent with the first part of the answer, so what goes wrong before it still has a status of its own. What
goes wrong after it is told as an event of the stream ({"error": …}), and [DONE] does not follow. A client that does not
take what it asked for holds its place until TAKE_S after the deadline, no longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lab.gateway.passage import Passage
from lab.gateway.refusals import Refusal, broken, stopping
from lab.measure.records import CANCELLED, ERROR, OK

EVENTS, JSON = "text/event-stream", "application/json"
SOON_S, TAKE_S = 0.02, 30.0
GONE = 499
"""What nginx calls the status of a request whose client went away; nobody reads it but who counts."""


class Answering(Response):
    """`parts` is the body as it comes; it is closed here, and cancelled where it waits when the client goes away. The
    passage is ended here with what became of the request."""

    def __init__(self, passage: Passage, parts: AsyncGenerator[bytes, None], *, kind: str) -> None:
        self._passage, self._parts, self._kind = passage, parts, kind
        self.background = None
        self.status_code = 200
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in one
        passage = self._passage
        outcome: int | None = ERROR
        watch = _Watch(task, receive, 0.0 if self._kind == EVENTS else SOON_S, passage.timeout_s + TAKE_S)
        try:
            try:
                await (self._events(send, watch) if self._kind == EVENTS else self._whole(send, watch))
                outcome = OK
            except Refusal as refusal:
                watch.rest()
                outcome = refusal.outcome
                await self._tell(refusal, send)
            except Exception as error:
                watch.rest()
                await self._tell(broken(error), send)
                raise  # to the server's log
        except asyncio.CancelledError:
            task.uncancel()
            outcome = CANCELLED
            if not watch.gone:  # the gateway is stopped, and has waited as long as it will
                await self._tell(stopping(), send)
            elif not self._begun:
                self.status_code = GONE
        finally:
            watch.cancel()
            await self._parts.aclose()
            passage.end(outcome)

    async def _events(self, send: Send, watch: _Watch) -> None:
        passage = self._passage
        async for part in self._parts:
            if not self._begun:
                await send(_start(200, {"content-type": EVENTS, **told(passage)}))
                self._begun = True
                passage.first()
            await send({"type": "http.response.body", "body": part, "more_body": True})
        watch.rest()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _whole(self, send: Send, watch: _Watch) -> None:
        whole = b"".join([part async for part in self._parts])
        watch.rest()
        self._begun = True
        await _send_whole(send, 200, {"content-type": self._kind, **told(self._passage)}, whole)

    async def _tell(self, refusal: Refusal, send: Send) -> None:
        if not self._begun:
            self._begun, self.status_code = True, refusal.status
            headers = {"content-type": JSON, **told(self._passage), **refusal.headers()}
            await _send_whole(send, refusal.status, headers, refusal.encoded())
        elif self._kind == EVENTS:
            event = b"data: " + refusal.encoded() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": False})


class _Watch:
    """Cancels `task` when the client goes away, from `after_s` on: most answers that are not streamed are there before
    that, and to watch costs as much as to answer. After `limit_s` it is given up like one that went."""

    def __init__(self, task: asyncio.Task[Any], receive: Receive, after_s: float, limit_s: float) -> None:
        self.gone = False
        self._task, self._receive = task, receive
        self._watching: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(after_s, self._begin)
        self._limit = loop.call_later(limit_s, self._leave)

    def rest(self) -> None:
        """Look no longer whether it is there: all that it gets is on its way."""
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def cancel(self) -> None:
        self.rest()
        self._limit.cancel()

    def _begin(self) -> None:
        self._watching = asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self.gone = True
        self._task.cancel()


async def _send_whole(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    await send(_start(status, {**headers, "content-length": str(len(body))}))
    await send({"type": "http.response.body", "body": body, "more_body": False})


def told(passage: Passage) -> dict[str, str]:
    """Headers that say which request this was and who answered."""
    return {"x-request-id": passage.id, "x-model-version": passage.version.version}


def _start(status: int, headers: Mapping[str, str]) -> dict[str, object]:
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    if headers["content-type"] == EVENTS:
        raw += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    return {"type": "http.response.start", "status": status, "headers": raw}
