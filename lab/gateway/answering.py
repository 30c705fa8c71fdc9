"""Answers over HTTP that can end early: by the client, who goes away, or by the upstream, in the middle of a stream.

The status is sent with the first part of the answer, so what goes wrong before it still has a status of its own. What
goes wrong after it is told as an event of the stream ({"error": …}), and [DONE] does not follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lab.gateway.passage import Passage
from lab.gateway.refusals import Refusal, broken
from lab.measure.records import CANCELLED, ERROR, OK

EVENTS, JSON = "text/event-stream", "application/json"
SOON_S = 0.02


class Answering(Response):
    """`parts` is the body as it comes; it is closed here, and cancelled where it waits when the client goes away. The
    passage is ended here with what became of the request."""

    def __init__(self, passage: Passage, parts: AsyncGenerator[bytes, None], *, kind: str) -> None:
        self._passage, self._parts, self._kind = passage, parts, kind
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in one
        passage, begun = self._passage, False
        outcome: int | None = ERROR
        watch = _Watch(task, receive, 0.0 if self._kind == EVENTS else SOON_S)
        try:
            if self._kind == EVENTS:
                async for part in self._parts:
                    if not begun:
                        await send(_start(200, {"content-type": EVENTS, **told(passage)}))
                        begun = True
                        passage.first()
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                watch.cancel()
                outcome = OK
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                whole = b"".join([part async for part in self._parts])
                watch.cancel()
                outcome = OK
                await _send_whole(send, 200, {"content-type": self._kind, **told(passage)}, whole)
        except Refusal as refusal:
            watch.cancel()
            outcome = refusal.outcome
            await self._tell(refusal, send, begun)
        except Exception as error:
            watch.cancel()
            await self._tell(broken(error), send, begun)
            raise  # to the server's log
        except asyncio.CancelledError:
            if not watch.gone:
                raise  # somebody else's wish
            task.uncancel()
            outcome = CANCELLED
        finally:
            watch.cancel()
            await self._parts.aclose()
            passage.end(outcome)

    async def _tell(self, refusal: Refusal, send: Send, begun: bool) -> None:
        if not begun:
            headers = {"content-type": JSON, **told(self._passage), **refusal.headers()}
            await _send_whole(send, refusal.status, headers, refusal.encoded())
        elif self._kind == EVENTS:
            event = b"data: " + refusal.encoded() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": False})


class _Watch:
    """Cancels `task` when the client goes away, from `after_s` on: most answers that are not streamed are there before
    that, and to watch costs as much as to answer."""

    def __init__(self, task: asyncio.Task[Any], receive: Receive, after_s: float) -> None:
        self.gone = False
        self._task, self._receive = task, receive
        self._watching: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(after_s, self._begin)

    def cancel(self) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _begin(self) -> None:
        self._watching = asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
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
