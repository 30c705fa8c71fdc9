"""gRPC's calls of one message in HTTP/2 frames: what is sent for a call, and what the headers of an answer mean.

The sending side is prepared before the clock starts: a call is the same bytes each time but for its stream number.
Headers are stateless both ways (a header table of size 0), so equal bytes mean equal headers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

import hpack

from lab.load.targets import INVALID
from lab.load.targets.frames import DATA, END_HEADERS, END_STREAM, HEADERS, ProtocolError, frame_head
from lab.measure.records import ERROR, OK, REFUSED, TIMEOUT

# fmt: off
STATUS = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)
# fmt: on
OUTCOME = {
    "OK": OK,
    "DEADLINE_EXCEEDED": TIMEOUT,
    "UNAVAILABLE": REFUSED,  # Triton: the queue is full, or the model is not loaded
    "RESOURCE_EXHAUSTED": REFUSED,
    "INVALID_ARGUMENT": INVALID,
    "NOT_FOUND": INVALID,
    "UNIMPLEMENTED": INVALID,
}
"""Outcome of a gRPC status; every other status is an error."""

Reading = tuple[int, str | None]
"""(outcome, detail) of a call, as its headers say."""


class Call(NamedTuple):
    """A call ready to go. `opening` + stream number + `middle` + stream number + `body` are its two frames."""

    opening: bytes  # the HEADERS frame's head, up to its stream number
    middle: bytes  # the header block, and the DATA frame's head up to its stream number
    body: bytes  # the length-prefixed message
    headers: bytes  # the header block alone, for when the body has to be cut


class Method:
    """One gRPC method of the server at `authority` (HOST:PORT), called with `metadata`."""

    def __init__(self, authority: str, path: str, metadata: Mapping[str, str] | None = None) -> None:
        encoder = hpack.Encoder()
        encoder.header_table_size = 0
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": authority,
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "serving-lab",
            **(metadata or {}),
        }
        self._headers = encoder.encode(fields.items(), huffman=False)
        self._opening = frame_head(len(self._headers), HEADERS, END_HEADERS, 0)[:5]

    def call(self, message: bytes) -> Call:
        """A serialized request message, framed."""
        body = b"\0" + struct.pack(">L", len(message)) + message
        return Call(self._opening, self._headers + frame_head(len(body), DATA, END_STREAM, 0)[:5], body, self._headers)


def read_headers(block: bytes) -> Reading | None:
    """(outcome, detail) when the header block ends its call; None when it is the start of an answer."""
    decoder = hpack.Decoder()
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    try:
        fields = {str(name): str(value) for name, value in decoder.decode(block)}
    except hpack.HPACKError as error:
        raise ProtocolError(f"the server's headers cannot be read: {error}") from None
    if "grpc-status" in fields:
        return read_status(fields["grpc-status"], unquote(fields.get("grpc-message", "")))
    if fields.get(":status", "200") != "200":
        return ERROR, f"HTTP status {fields[':status']} instead of a gRPC answer"
    return None


def read_status(status: str, message: str) -> Reading:
    """(outcome, detail) of the gRPC `status`, a number in text."""
    name = STATUS[int(status)] if status.isdecimal() and int(status) < len(STATUS) else f"status {status}"
    return OUTCOME.get(name, ERROR), None if name == "OK" else f"{name}: {message}"
