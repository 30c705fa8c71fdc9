"""Requests that are turned away or fail, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

One exception for all of them, since HTTP has one place for them: before the first byte it is a status, after it an
event of the stream. `outcome` is what it counts as (lab/measure/records.py); None is the client's own mistake, which
says nothing about any version.
"""

from __future__ import annotations

import json
from typing import Any

from lab.errors import LabError
from lab.load.targets import INVALID
from lab.measure.records import CANCELLED, ERROR, REFUSED, TIMEOUT, TRUNCATED
from lab.serve.eviction import Reason, Refused

RETRY_S = 1
"""What Retry-After says unless the server behind says otherwise: queues here empty within seconds or not at all."""

ABSENT = ("NOT_FOUND", "UNIMPLEMENTED")
"""gRPC statuses of a model that the server lacks though a route names it: no mistake of the client's."""

TYPES = {429: "rate_limit_error", 499: "cancelled", 504: "timeout_error"}
"""Of a status; "invalid_request_error" for any other below 500, "server_error" for the rest."""


class Refusal(Exception):
    """`status` is the HTTP status, `param` the field that is wrong, `code` the kind in one word."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        outcome: int | None = REFUSED,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after if retry_after and retry_after.isdecimal() else str(RETRY_S)
        self.status, self.code, self.param, self.outcome = status, code, param, outcome

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        return json.dumps(self.body).encode()

    def headers(self) -> dict[str, str]:
        if self.status == 408:
            return {"Connection": "close"}  # the rest of what was begun may still come
        return {"Retry-After": self.retry_after} if self.status in (429, 503) else {}


def wrong(message: str, param: str | None = None, *, code: str | None = None, status: int = 400) -> Refusal:
    """The client's mistake."""
    return Refusal(status, message, code=code, param=param, outcome=None)


def of_upstream(outcome: int, detail: str | None) -> Refusal:
    """How an upstream's call ended, if not well."""
    said = detail or "no reason given"
    if outcome == REFUSED and "queue size" in said.lower():
        return Refusal(429, f"the model's queue is full: {said}", code="queue_full")
    if outcome == REFUSED:
        return Refusal(503, f"the model cannot be had now: {said}", code="unavailable")
    if outcome == INVALID and said.startswith(ABSENT):
        return Refusal(503, f"the model cannot be had now: {said}", code="unavailable", outcome=ERROR)
    if outcome == INVALID:
        return Refusal(400, said, code="refused_by_model", outcome=None)
    if outcome == TIMEOUT:
        return Refusal(504, said, code="deadline", outcome=TIMEOUT)
    if outcome == TRUNCATED:
        return Refusal(502, f"the answer broke off: {said}", code="broken_off", outcome=TRUNCATED)
    return Refusal(502 if "connection" in said or "closed" in said else 500, said, code="failed", outcome=ERROR)


def of_residency(refused: Refused) -> Refusal:
    """A model that a budget keeps out."""
    status = STATUS[refused.reason]
    return Refusal(status, str(refused), code=refused.reason)


STATUS: dict[Reason, int] = {
    "unknown": 404,
    "too_large": 507,
    "queue_full": 429,
    "too_late": 503,
    "failed": 503,
    "pinned": 409,
    "closed": 503,
}

LATE = "the answer was not whole within {limit:g} s"


def late(limit_s: float) -> Refusal:
    return Refusal(504, LATE.format(limit=limit_s), code="deadline", outcome=TIMEOUT)


def gone() -> Refusal:
    """The client is; nobody will read this."""
    return Refusal(499, "the client closed the connection", code="cancelled", outcome=CANCELLED)


def stopping() -> Refusal:
    """Whom the gateway no longer waits for."""
    return Refusal(503, "the gateway is being stopped; ask again", code="stopping", outcome=CANCELLED)


def broken(error: Exception) -> Refusal:
    """A fault of the gateway's own."""
    said = str(error) if isinstance(error, LabError) else type(error).__name__
    return Refusal(500, f"the gateway failed: {said}", code="failed", outcome=ERROR)
