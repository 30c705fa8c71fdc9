"""Replicate's predictions: created by a POST, then streamed as events or polled until they are over.

    POST /v1/models/OWNER/NAME/predictions          an official model, called "OWNER/NAME" in workload.served_model
    POST /v1/deployments/OWNER/NAME/predictions     a deployment, called "deployments/OWNER/NAME"
    POST /v1/predictions {"version": …}             a version, called by its id

Follows the public description of the API (replicate.com/docs/reference/http, …/streaming) and was never tried on the
live service. An answer that streams has `urls.stream`, of which events are named: output, error, done. Token counts are
the prediction's own metrics, read once it is over; what a chunk holds is not told. A prediction that is given up is
cancelled there. Cold starts are part of the latency: a prediction is "starting" until an instance is up.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from lab import credentials
from lab.errors import InputError
from lab.load.targets import INVALID, Done, Generated, Tensors, broken, token_count
from lab.load.targets.channel import RETRY_S, unconnected
from lab.load.targets.triton_http import OUTCOME, error_text
from lab.measure.records import ERROR, OK, TRUNCATED

EVENTS = {"Accept": "text/event-stream"}
POLL_S = 0.25
CREATED = (200, 201, 202)
LATER = (429, 500, 502, 503, 504)
"""Statuses of a poll that say nothing of the prediction: it is asked again."""
ENDED = ("succeeded", "failed", "canceled", "aborted")
SAMPLING = ("max_tokens", "temperature")
"""Of the lab's sampling parameters, those that Replicate's language models take."""
VERSION = re.compile(r"[0-9a-f]{64}")
NAMED = re.compile(r"(deployments/)?[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")

Message = tuple[str, bytes]
"""URL and body."""


class Replicate:
    """`url` is [replicate+]https://HOST[:PORT], Replicate's own or one that speaks like it."""

    def __init__(self, url: str, done: Done) -> None:
        parts = urlsplit(url.removeprefix("replicate+"))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/") not in ("", "/v1"):
            raise InputError(
                f"url {url!r}: allowed is replicate+https://HOST, such as replicate+https://api.replicate.com"
            )
        self._base = f"{parts.scheme}://{parts.netloc}/v1"
        self._done = done
        self._session: aiohttp.ClientSession
        self._running: dict[int, tuple[asyncio.Task[None], Prediction]] = {}
        self._cancels: set[asyncio.Task[None]] = set()

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Message]:
        path, fields = place(model)
        return [(self._base + path, json.dumps({**fields, **_body(request)}).encode()) for request in requests]

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(total=None),  # the driver's limit is the one limit
            headers={"Content-Type": "application/json", **credentials.headers()},
        )

    def send(self, number: int, message: Message) -> None:
        prediction = Prediction()
        task = asyncio.get_running_loop().create_task(self._request(number, message, prediction))
        self._running[number] = (task, prediction)

    def cancel(self, number: int) -> Generated | None:
        task, prediction = self._running.pop(number, (None, None))
        if task is None or prediction is None:
            return None
        task.cancel()
        if prediction.cancel_url is not None:
            cancelling = asyncio.get_running_loop().create_task(self._give_up(prediction.cancel_url))
            self._cancels.add(cancelling)
            cancelling.add_done_callback(self._cancels.discard)
        return prediction.generated

    async def close(self) -> None:
        await asyncio.gather(*self._cancels, return_exceptions=True)
        await self._session.close()

    async def _give_up(self, url: str) -> None:
        async with self._session.post(url, allow_redirects=False):
            pass

    async def _request(self, number: int, message: Message, prediction: Prediction) -> None:
        outcome, detail = await self._outcome(prediction, *message)
        if self._running.pop(number, None) is not None:
            ended_ns = prediction.ended_ns or time.perf_counter_ns()
            self._done(number, broken(outcome, prediction.generated), detail, ended_ns, prediction.generated)

    async def _outcome(self, prediction: Prediction, url: str, body: bytes) -> tuple[int, str | None]:
        try:
            async with self._session.post(url, data=body, allow_redirects=False) as response:
                said = await response.read()
                if response.status not in CREATED:
                    outcome = INVALID if response.status == 422 else OUTCOME.get(response.status, ERROR)
                    return outcome, f"HTTP {response.status}: {error_text(said)}"
            prediction.read(json.loads(said))
            if prediction.stream_url is not None and not prediction.is_over:
                await self._stream(prediction)
            while not prediction.is_over or prediction.stream_url is not None:
                async with self._session.get(prediction.get_url, allow_redirects=False) as response:
                    if response.status not in LATER:
                        prediction.read(await response.json())
                if prediction.is_over:
                    break
                await asyncio.sleep(POLL_S)
        except aiohttp.ClientConnectorError as error:
            await asyncio.sleep(RETRY_S)
            return unconnected(f"{error.host}:{error.port}", error)
        except aiohttp.ClientPayloadError:
            return TRUNCATED, "the connection was lost in the middle of the answer"
        except (aiohttp.ClientError, OSError) as error:
            return ERROR, str(error) or type(error).__name__
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return ERROR, f"an answer that is no prediction: {type(error).__name__} {error}"
        return prediction.outcome()

    async def _stream(self, prediction: Prediction) -> None:
        async with self._session.get(prediction.stream_url or "", headers=EVENTS, allow_redirects=False) as response:
            if response.status != 200:
                return  # polled, then
            async for name, data, arrived_ns in events(response.content):
                if name == "output":
                    prediction.generated.add(arrived_ns, bool(data), None)
                elif name == "error":
                    prediction.failure = data
                elif name == "done":
                    prediction.ended_ns = arrived_ns
                    return


class Prediction:
    """What is known of one, by the last document that told of it."""

    def __init__(self) -> None:
        self.generated = Generated()
        self.ended_ns: int | None = None
        self.failure: str | None = None
        self.cancel_url: str | None = None
        self.stream_url: str | None = None
        self.get_url = ""
        self._status = ""

    @property
    def is_over(self) -> bool:
        return self._status in ENDED

    def read(self, told: dict[str, Any]) -> None:
        """A prediction as POST and GET give it; ValueError when it is none."""
        urls = told["urls"]
        self._status, self.get_url = str(told["status"]), urls["get"]
        self.cancel_url, self.stream_url = urls.get("cancel"), urls.get("stream")
        if told.get("error"):
            self.failure = str(told["error"])
        if not self.is_over:
            return
        if self.ended_ns is None:
            self.ended_ns = time.perf_counter_ns()
        output = told.get("output")
        text = "".join(map(str, output)) if isinstance(output, list) else str(output or "")
        if text and not self.generated.chunk_ns:  # polled: it came whole
            self.generated.add(self.ended_ns, True, None)
        metrics = told.get("metrics") or {}
        self.generated.prompt_tokens = token_count(metrics.get("input_token_count"))
        self.generated.output_tokens = token_count(metrics.get("output_token_count"))

    def outcome(self) -> tuple[int, str | None]:
        if self.failure is not None or self._status in ("failed", "canceled", "aborted"):
            return ERROR, f"prediction {self._status or 'ended'}: {self.failure or 'without a reason'}"
        return OK, None


def place(model: str) -> tuple[str, dict[str, str]]:
    """(path below /v1, fields of the body) for a model as it is called in workload.served_model. InputError for a name
    that is none of the three kinds."""
    if VERSION.fullmatch(model):
        return "/predictions", {"version": model}
    if not NAMED.fullmatch(model):
        raise InputError(
            f"workload.served_model {model!r}: allowed at Replicate are OWNER/NAME, deployments/OWNER/NAME and the 64 "
            "digits of a version"
        )
    return f"/{model if model.startswith('deployments/') else f'models/{model}'}/predictions", {}


def _body(request: Tensors) -> dict[str, Any]:
    sampling = json.loads(request["sampling_parameters"].item())
    given = {name: sampling[name] for name in SAMPLING if name in sampling}
    return {
        "input": {"prompt": request["text_input"].item().decode(), **given},
        "stream": bool(request["stream"].item()),
    }


async def events(content: Any) -> AsyncIterator[tuple[str, str, int]]:
    """(name, data, perf_counter_ns of the last byte) of each server-sent event, cut anywhere."""
    name, rest = "message", b""
    lines: list[str] = []
    async for part in content.iter_any():
        arrived_ns = time.perf_counter_ns()
        *whole, rest = (rest + part).split(b"\n")
        for line in (one.removesuffix(b"\r") for one in whole):
            if not line:
                if lines:
                    yield name, "\n".join(lines), arrived_ns
                name, lines = "message", []
            elif line.startswith(b"event:"):
                name = line[6:].strip().decode(errors="replace")
            elif line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" ").decode(errors="replace"))
