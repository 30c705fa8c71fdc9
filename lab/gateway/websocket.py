"""A conversation over a WebSocket: requests come as messages, answers go back chunk by chunk.

    client   {"model": …, "prompt" or "messages": …, …}      the body of OpenAI's paths; `stream` need not be said
    gateway  {…chunk…} {…chunk…} {"done": true, "id": …, "version": …}      or {"error": {…}} in place of the rest
    client   {"cancel": true}                                ends the answer under way; "cancelled" in place of "done"

One answer at a time; a client that closes ends the one under way.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.websockets import WebSocket, WebSocketDisconnect

from lab.gateway import bodies
from lab.gateway.asking import understood
from lab.gateway.core import Gateway
from lab.gateway.edge import Edge
from lab.gateway.passage import Passage
from lab.gateway.refusals import Refusal, wrong
from lab.measure.records import CANCELLED, ERROR, OK


class _Answer:
    """One answer under way. It is over before its last message goes out, so that the client may ask again at once."""

    def __init__(self, socket: WebSocket, gateway: Gateway, edge: Edge, body: dict[str, Any]) -> None:
        self._socket, self._gateway, self._edge, self._body = socket, gateway, edge, body
        self._over = False
        self.task = asyncio.create_task(self._run())

    @property
    def over(self) -> bool:
        return self._over or self.task.done()  # one that was stopped before it began never says so

    async def _run(self) -> None:
        """From message to last chunk."""
        passage: Passage | None = None
        outcome: int | None = ERROR
        last: dict[str, Any] = {}
        try:
            passage = understood(self._gateway, self._body, self._socket.headers.get).enter()
            body, chat = {**self._body, "stream": True}, "messages" in self._body
            passage.asking = lambda other: self._edge.generated(other, body, chat)
            told = self._edge.chunks(passage, body, chat)
            try:
                async for chunks in told:
                    passage.first()
                    for chunk in chunks:
                        await self._socket.send_text(chunk)
            finally:
                await told.aclose()
            outcome, last = OK, {"done": True, "id": passage.id, "version": passage.version.version}
        except Refusal as refusal:
            outcome, last = refusal.outcome, refusal.body
        except asyncio.CancelledError:
            outcome, last = CANCELLED, {"cancelled": True, "id": passage and passage.id}
        except (RuntimeError, WebSocketDisconnect):  # the client has closed
            outcome = CANCELLED
        finally:
            if passage is not None:
                passage.end(outcome)
            self._over = True
        with suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.send_text(json.dumps(last))


async def converse(socket: WebSocket, gateway: Gateway, edge: Edge) -> None:
    """Until the client closes. A browser says which page opened the socket, and a page from elsewhere is turned away:
    browsers let any page connect to this machine."""
    origin = socket.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != socket.headers.get("host"):
        await socket.close(1008)
        return
    await socket.accept()
    answer: _Answer | None = None
    limit = gateway.settings.body_limit_bytes
    with suppress(WebSocketDisconnect):
        try:
            while True:
                text = await socket.receive_text()
                try:
                    if len(text) > limit:
                        raise Refusal(413, f"the message is longer than {limit} bytes", code="too_long", outcome=None)
                    body = bodies.json_object(text.encode())
                    if body.get("cancel") is True:
                        if answer is not None and not answer.over:
                            answer.task.cancel()
                    elif answer is not None and not answer.over:
                        raise wrong('an answer is under way; allowed: {"cancel": true}, or wait for its end')
                    else:
                        answer = _Answer(socket, gateway, edge, body)
                except Refusal as refusal:
                    await socket.send_text(json.dumps(refusal.body))
        finally:
            if answer is not None and not answer.over:
                answer.task.cancel()
                await asyncio.wait([answer.task])
