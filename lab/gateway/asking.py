"""A request as it comes in: its body up to the limit, and what its headers wish for."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from lab.gateway import bodies
from lab.gateway.core import Gateway
from lab.gateway.passage import Passage
from lab.gateway.refusals import Refusal, gone, wrong

READ_ON, BODY_S = 8, 60.0
"""Times of the limit that a body which is too long is read on, and how long one may take to come."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")


@dataclass(frozen=True, slots=True)
class Asked:
    """The body as it came, and the way in: `enter` counts the request and finds its version."""

    body: dict[str, Any]
    enter: Callable[[], Passage]


async def over_http(request: Request, gateway: Gateway, model: str | None = None) -> Asked:
    body = bodies.json_object(await whole_body(request, gateway.settings.body_limit_bytes))
    return understood(gateway, body, request.headers.get, model)


def understood(
    gateway: Gateway, body: dict[str, Any], header: Callable[[str], str | None], model: str | None = None
) -> Asked:
    """Refusal for headers that cannot be understood, and for a body that names no model."""
    name = body.get("model") if model is None else model
    if not isinstance(name, str):
        said = "required, and not there" if name is None else f"{json.dumps(name)[:60]}: allowed: a text"
        raise wrong(f"model {said}", "model", code="missing" if name is None else "wrong_type")
    user = body.get("user")
    key = header("x-sticky-key") or (user if isinstance(user, str) else None)
    if not REQUEST_ID.fullmatch(header("x-request-id") or "none"):
        raise wrong("X-Request-Id: allowed: 1 to 100 letters, digits and ._:-", "X-Request-Id")
    request_id = named(header)
    timeout_s, version = _seconds(header("x-request-timeout")), header("x-model-version")

    def enter() -> Passage:
        return gateway.enter(name, key=key, asked=version, timeout_s=timeout_s, request_id=request_id)

    return Asked(body, enter)


def named(header: Callable[[str], str | None]) -> str:
    """The request's id: the client's own, if it is one, or a new one."""
    given = header("x-request-id")
    return given if given and REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


def _seconds(given: str | None) -> float:
    if given is None:
        return math.inf
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise wrong(f"X-Request-Timeout {given[:40]!r}: allowed: seconds above 0", "X-Request-Timeout")
    return seconds


async def whole_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Refusal for one that is longer than the limit: it is read on, to nowhere, since a client that is
    cut off while it sends does not read the answer; up to a size that nobody sends by mistake. And for one that does
    not come within BODY_S."""
    parts, size = [], 0
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > READ_ON * limit_bytes:
        raise _too_long(limit_bytes)
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > READ_ON * limit_bytes:
                    break
                if size <= limit_bytes:
                    parts.append(part)
    except ClientDisconnect:
        raise gone() from None
    except TimeoutError:
        raise wrong(f"the body did not come within {BODY_S:g} s", code="slow_body", status=408) from None
    if size > limit_bytes:
        raise _too_long(limit_bytes)
    return b"".join(parts)


def _too_long(limit_bytes: int) -> Refusal:
    return Refusal(413, f"the body is longer than {limit_bytes} bytes, the most that is taken", code="too_long")
