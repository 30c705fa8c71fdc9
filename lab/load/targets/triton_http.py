"""Triton over HTTP: the KServe v2 protocol with Triton's binary tensors, through aiohttp.

For what only speaks HTTP, and to compare the two: a request costs the client several times what it costs over gRPC,
so the load generator reaches its own limit sooner. Bodies are made in advance; answers are read to their end and
thrown away.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

import aiohttp

from lab.load.targets import INVALID, Done
from lab.load.targets.channel import RETRY_S, split_url, unconnected
from lab.load.targets.tensors import Tensors, datatype, parameters, raw
from lab.measure.records import ERROR, OK, REFUSED, TIMEOUT, TRUNCATED

OUTCOME = {
    400: INVALID,
    404: INVALID,
    408: TIMEOUT,
    429: REFUSED,
    501: INVALID,
    503: REFUSED,
    504: TIMEOUT,
    507: REFUSED,
}
"""Outcome of an HTTP status; 200 is ok, every other one an error. Triton says 503 when the queue is full."""

Message = tuple[str, dict[str, str], bytes]
"""Path, headers, body."""


class TritonHttp:
    """`url` is HOST:PORT, or http://HOST:PORT. As many connections as requests in flight: a smaller pool would queue
    requests inside the client."""

    def __init__(self, url: str, done: Done) -> None:
        host, port = split_url(url)
        self._base = f"http://{host}:{port}"
        self._done = done
        self._session: aiohttp.ClientSession
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Message]:
        path = f"{self._base}/v2/models/{model}/infer"
        return [(path, *infer_request(request)) for request in requests]

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(total=None),  # the driver's limit is the one limit
            auto_decompress=False,
        )

    def send(self, number: int, message: Message) -> None:
        self._tasks[number] = asyncio.get_running_loop().create_task(self._request(number, message))

    def cancel(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        await self._session.close()

    async def _request(self, number: int, message: Message) -> None:
        url, headers, body = message
        outcome, detail = await self._outcome(url, {**headers, "Lab-Request": str(number)}, body)
        if self._tasks.pop(number, None) is not None:
            self._done(number, outcome, detail, time.perf_counter_ns())

    async def _outcome(self, url: str, headers: dict[str, str], body: bytes) -> tuple[int, str | None]:
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                answer = await response.read()
        except aiohttp.ClientConnectorError as error:
            await asyncio.sleep(RETRY_S)  # a closed loop would else ask a dead server 5,000 times a second
            return unconnected(f"{error.host}:{error.port}", error)
        except aiohttp.ClientPayloadError as error:
            return TRUNCATED, str(error)
        except (aiohttp.ClientError, OSError) as error:
            return ERROR, str(error) or type(error).__name__
        if response.status == 200:
            return OK, None
        return OUTCOME.get(response.status, ERROR), f"HTTP {response.status}: {error_text(answer)}"


def infer_request(request: Tensors) -> tuple[dict[str, str], bytes]:
    """Headers and body: a JSON head that describes the tensors, then their raw bytes."""
    parts = [raw(array) for array in request.values()]
    inputs = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": datatype(array.dtype),
            "parameters": {"binary_data_size": len(part)},
        }
        for (name, array), part in zip(request.items(), parts, strict=True)
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True, **parameters(request)}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return headers, b"".join([head, *parts])


def error_text(answer: bytes) -> str:
    """One line: what the server says in {"error": …}, in {"error": {"message": …}}, or in {"message": …}; the start of
    the body when it is something else."""
    try:
        said = json.loads(answer)
        error = said.get("error", said)
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, AttributeError):
        text = answer[:200].decode(errors="replace")
    return " ".join(text.split())
