"""Somebody else's server that speaks OpenAI's protocol: bodies go there as they came, answers come back as they are.

Only the model's name is put in its place, and the end of a stream is looked at: a connection that ends without [DONE]
has broken off, and the client must hear so. Of headers only the request's id goes on; a key is the lab's own
(lab/credentials.py).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from lab import credentials
from lab.gateway.refusals import Refusal, of_upstream
from lab.load.targets.channel import reason
from lab.load.targets.triton_http import error_text
from lab.measure.records import ERROR, REFUSED, TIMEOUT, TRUNCATED

CONNECT_S = 5.0
OUTCOME: dict[int, int | None] = {
    400: None,
    413: None,
    422: None,
    408: TIMEOUT,
    504: TIMEOUT,
    429: REFUSED,
    503: REFUSED,
}
"""What a status counts as: None is the client's mistake."""
OURS = (401, 403, 404)
"""That a key or a model is unknown there is the route's mistake and not the client's: 502, as is any other status that
is neither an answer nor a refusal."""
END = b"data: [DONE]"


class OpenAIUpstream:
    """The server at `url`, openai+http://HOST:PORT with or without /v1. For one event loop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._base = url.removeprefix("openai+").rstrip("/").removesuffix("/v1")
        self._session: aiohttp.ClientSession
        self.in_flight = 0

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            headers=credentials.headers(),  # the lab's own: a client's key is for this gateway alone
        )

    async def close(self) -> None:
        await self._session.close()

    async def models(self) -> list[str]:
        async with self._session.get(f"{self._base}/v1/models", allow_redirects=False) as answer:
            return [str(model["id"]) for model in (await answer.json())["data"]]

    async def is_ready(self, model: str) -> bool:
        try:
            return model in await self.models()
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
            return False

    async def whole(
        self, path: str, body: Mapping[str, Any], model: str, request_id: str
    ) -> AsyncGenerator[bytes, None]:
        """The answer, JSON, in one part. Refusal with the server's own status and words when it gives another one than
        200."""
        async with self._post(path, body, model, request_id) as answer:
            yield await answer.read()

    async def stream(
        self, path: str, body: Mapping[str, Any], model: str, request_id: str
    ) -> AsyncGenerator[bytes, None]:
        """The events, as bytes that may be cut anywhere. Refusal when it breaks off."""
        tail = b""
        async with self._post(path, body, model, request_id) as answer:
            async for data in answer.content.iter_any():
                tail = (tail + data)[-64:]
                yield data
        if END not in tail:
            raise of_upstream(TRUNCATED, "the server ended the stream without [DONE]")

    @asynccontextmanager
    async def _post(
        self, path: str, body: Mapping[str, Any], model: str, request_id: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request under way, in which aiohttp's errors are Refusals."""
        data = json.dumps({**body, "model": model}).encode()
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        self.in_flight += 1
        try:
            url = f"{self._base}{path}"
            async with self._session.post(url, data=data, headers=headers, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise refused(answer.status, error_text(await answer.read()), answer.headers.get("Retry-After"))
                yield answer
        except aiohttp.ClientConnectorError as error:
            raise of_upstream(REFUSED, f"{error.host}:{error.port}: {reason(error)}") from None
        except aiohttp.ClientPayloadError:
            raise of_upstream(TRUNCATED, "the connection was lost in the middle of the answer") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise of_upstream(ERROR, f"the connection was lost: {error or type(error).__name__}") from None
        finally:
            self.in_flight -= 1


def refused(status: int, words: str, retry_after: str | None) -> Refusal:
    """What another server said in place of an answer, as this gateway's client is told."""
    outcome = OUTCOME.get(status, ERROR)
    if status < 400 or status in OURS:
        words, status = f"the server behind this model answered {status}: {words}", 502
    return Refusal(status, words, code="refused_by_upstream", outcome=outcome, retry_after=retry_after)


def said(whole: bytes) -> Any:
    """What an answer says, events or one document: its texts by choice, or its embeddings. All of it where it is laid
    out otherwise."""
    told = [line[6:] for line in whole.splitlines() if line.startswith(b"data: {")] or [whole]
    texts: dict[int, str] = {}
    try:
        for document in map(json.loads, told):
            if "data" in document:
                return document["data"]
            for choice in document["choices"]:
                words = choice if "text" in choice else choice.get("message") or choice["delta"]
                more = words.get("text") or words.get("content") or ""
                index = choice.get("index", 0)
                texts[index] = texts.get(index, "") + more
    except (ValueError, LookupError, TypeError, AttributeError):
        return whole
    return [texts[index] for index in sorted(texts)]
